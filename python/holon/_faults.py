"""What a rank says to the others when it ends by an exception, and where errors say that the program was."""

import _thread
import os
import sys

from . import _C

_C.add_package_folder(os.path.dirname(os.path.abspath(__file__)) + os.sep)


def _place(traceback):
    # The innermost line of the user's program: the package's own frames say less.
    place = ""
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not place or _C.is_users_file(name):
            place = f"{name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def reason(kind, value, traceback):
    """Returns an exception as one line, with the place it came from."""
    text = str(value).strip()
    place = _place(traceback)
    return kind.__name__ + (f": {text}" if text else "") + (f" (at {place})" if place else "")


def _install():
    # The module threading takes its hook from _thread when it is imported;
    # a program without threads need not pay for that.
    threading = sys.modules.get("threading")
    before, before_thread = sys.excepthook, threading.excepthook if threading else _thread._excepthook

    def excepthook(kind, value, traceback):
        # At a prompt the program goes on after an error.
        if not hasattr(sys, "ps1"):
            _C.contract_abandon()
            try:
                _C.abort_world(reason(kind, value, traceback))
            except Exception:  # whatever is wrong with the world, the exception itself is what matters
                pass
        before(kind, value, traceback)

    def thread_excepthook(args):
        # The rank may live on without this thread; if it does not, this is why.
        try:
            if args.exc_type is not SystemExit:
                _C.note_trouble(reason(args.exc_type, args.exc_value, args.exc_traceback))
        except Exception:
            pass
        before_thread(args)

    sys.excepthook = excepthook
    if threading:
        threading.excepthook = thread_excepthook
    else:
        _thread._excepthook = thread_excepthook


_install()
