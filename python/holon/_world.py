"""Ranks that stay: a world of n ranks behind one Python program, for notebooks and for trying things out."""

import ast
import ctypes
import io
import linecache
import queue
import re
import sys
import threading
import traceback

from . import _C

# How a rank that others wait for reports that it raised, and how their errors are distinguished from this.
_REASON = "in its cell it raised {error}"
_WOKEN = re.compile("in its cell it raised ")


class RanksError(RuntimeError):
    """What some ranks of a world raised. `errors` has each one's exception by its rank, `outputs` what was printed
    before; the first exception that is not the consequence of another is the cause."""

    def __init__(self, message, errors, outputs):
        super().__init__(message)
        self.errors, self.outputs = errors, outputs


class _Output(io.TextIOBase):
    """sys.stdout or sys.stderr while ranks work:
    what a rank writes is its own, what other threads write passes through."""

    def __init__(self, stream):
        self.stream, self.texts = stream, {}

    def write(self, text):
        mine = self.texts.get(threading.get_ident())
        if mine is None:
            return self.stream.write(text)
        mine.append(text)
        return len(text)

    def flush(self):
        self.stream.flush()

    def __getattr__(self, name):
        return getattr(self.stream, name)


class _Call:
    """Work for all ranks, and what came of it."""

    def __init__(self, function, n):
        self.function = function
        self.values, self.errors, self.outputs = [None] * n, {}, [""] * n
        self.done = threading.Event()
        self._left, self._lock = n, threading.Lock()

    def finish(self):
        with self._lock:
            self._left -= 1
            if not self._left:
                self.done.set()


class World:
    """n ranks as threads of this process, each with a namespace that lives as long as the world.

    world.run(code) executes source text on every rank, in the rank's namespace; world.call(f, ...) calls f(...) on
    every rank. If a rank raises, those that wait for it are woken, RanksError tells who raised what, and the world,
    with its namespaces and random state, goes on. Ctrl-C interrupts all ranks in the same way. Use it in a with
    statement, or close() it.
    Example: world = holon.world(2)
    """

    def __init__(self, n):
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"world: {n!r} ranks; a world has at least one.")
        if _C.world_size() > 1:
            raise RuntimeError(
                f"world: this process is rank {_C.rank()} of {_C.world_size()} already; "
                "start the program without the launcher."
            )
        self.n = n
        self.namespaces = [{"__name__": "__main__", "__builtins__": __builtins__} for _ in range(n)]
        self._queues = [queue.SimpleQueue() for _ in range(n)]
        self._states = [None] * n
        self._idents = [None] * n
        self._busy = threading.Lock()
        self._interruption, self._working = threading.Lock(), set()  # of which threads may be interrupted
        self._closed = False
        self._cells = 0
        self._begin()

    def _begin(self):
        self._thread = threading.Thread(target=self._run_ranks, name="holon world", daemon=True)
        self._thread.start()

    def _run_ranks(self):
        try:
            _C.run_ranks(self.n, self._work)
        except RuntimeError:  # which the call has told
            pass

    def _work(self, rank):
        self._idents[rank] = threading.get_ident()
        if self._states[rank] is not None:
            random, gradients = self._states[rank]
            _C.set_rng_state(random)
            _C.set_grad_enabled(gradients)
        while True:
            call = self._queues[rank].get()
            if call is None:
                return
            error = self._one(call, rank)
            if error is not None:
                call.errors[rank] = error
                # The others may wait for this rank: what they wait for raises.
                _C.abort_world(_REASON.format(rank=rank, error=_line(error)))
            self._states[rank] = (_C.get_rng_state(), _C.is_grad_enabled())
            call.finish()

    def _one(self, call, rank):
        """The call on this rank; returns what it raised.
        An interruption may come at any line of it, and at none after it."""
        error = None
        try:
            with self._interruption:
                self._working.add(threading.get_ident())
            call.values[rank] = call.function(rank)
        except BaseException as raised:
            error = raised
        while True:
            try:
                with self._interruption:
                    self._working.discard(threading.get_ident())
                    _raise_in(threading.get_ident(), None)
                return error
            except KeyboardInterrupt as raised:
                error = error or raised

    def _do(self, function, show):
        """function(rank) on every rank; show() gets what they printed, also where one raises."""
        if self._closed:
            raise RuntimeError("world: it is closed; holon.world(n) creates another.")
        if threading.get_ident() in self._idents:
            raise RuntimeError("world: a rank cannot give work to its own world.")
        with self._busy:
            call = _Call(function, self.n)
            out, err = _Output(sys.stdout), _Output(sys.stderr)
            texts = [[] for _ in range(self.n)]

            def on_rank(rank):
                out.texts[threading.get_ident()] = err.texts[threading.get_ident()] = texts[rank]
                return function(rank)

            call.function = on_rank
            before = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = out, err
            interrupted = False
            try:
                for q in self._queues:
                    q.put(call)
                while not call.done.is_set():
                    try:
                        call.done.wait()
                    except KeyboardInterrupt:
                        interrupted = True
                        self._interrupt()
            finally:
                sys.stdout, sys.stderr = before
            call.outputs = ["".join(t) for t in texts]
            if call.errors:
                self._restart()
        show(call.outputs)
        if interrupted and any(isinstance(e, KeyboardInterrupt) for e in call.errors.values()):
            raise KeyboardInterrupt
        if call.errors:
            raise _ranks_error(call.errors, call.outputs, self.n)
        return call

    def _interrupt(self):
        with self._interruption:
            for ident in self._working:
                _raise_in(ident, KeyboardInterrupt)

    def _restart(self):
        for q in self._queues:
            q.put(None)
        self._thread.join()
        self._begin()

    def run(self, code):
        """Executes code on every rank and prints what they print: once where all ranks agree, else by rank. If its last
        line is an expression, its value is shown in the same way. Returns the ranks' values of that line in a list."""
        return self.execute(code, _show)

    def execute(self, code, show):
        """run(), where show(value) is called on each rank with the value of the last line, unless that is None."""
        return self._do(self._cell(code, show), _print_outputs).values

    def _cell(self, code, show):
        self._cells += 1
        name = f"<cell {self._cells} of the ranks>"
        # Where tracebacks find its lines.
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        body = ast.parse(code, name)
        last = None
        if body.body and isinstance(body.body[-1], ast.Expr):
            last = compile(ast.Expression(body.body.pop().value), name, "eval")
        start = compile(body, name, "exec")

        def on_rank(rank):
            space = self.namespaces[rank]
            exec(start, space)
            if last is None:
                return None
            value = eval(last, space)
            if value is not None:
                show(value)
            return value

        return on_rank

    def call(self, function, *args, **kwargs):
        """Calls function(*args, **kwargs) on every rank, and returns the ranks' results in a list."""
        return self._do(lambda rank: function(*args, **kwargs), _print_outputs).values

    def close(self):
        """Ends the ranks. What they hold is freed."""
        with self._busy:
            if self._closed:
                return
            self._closed = True
            for q in self._queues:
                q.put(None)
            self._thread.join()
            for space in self.namespaces:
                space.clear()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __repr__(self):
        return f"<world of {self.n} ranks{', closed' if self._closed else ''}>"


def _raise_in(ident, error):
    """Has the thread raise the exception before its next line; None takes back one that it has not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(ident), None if error is None else ctypes.py_object(error)
    )


def _line(error):
    return "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]


def ranks_text(ranks):
    ranks = list(ranks)
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _show(value):
    print(repr(value))


def alike(texts):
    """The ranks by what they say: {text: ranks}."""
    groups = {}
    for rank, text in enumerate(texts):
        groups.setdefault(text, []).append(rank)
    return groups


def _print_outputs(outputs):
    groups = alike(outputs)
    if len(groups) == 1:
        print(outputs[0], end="")
        return
    for text, ranks in groups.items():
        if text:
            print(f"[{ranks_text(ranks)}]")
            print(text, end="" if text.endswith("\n") else "\n")


def _ranks_error(errors, outputs, n):
    # Those that were only woken raise an error that is about another rank.
    own = {r: e for r, e in errors.items() if not (isinstance(e, RuntimeError) and _WOKEN.search(str(e)))} or errors
    first = own[min(own)]
    groups = {}
    for rank in sorted(own):
        groups.setdefault(_line(own[rank]), []).append(rank)
    lines = [f"{ranks_text(ranks)} of {n} raised {text}" for text, ranks in groups.items()]
    woken = sorted(set(errors) - set(own))
    if woken:
        lines.append(f"{ranks_text(woken)} waited for {'it' if len(own) == 1 else 'them'}")
    error = RanksError("; ".join(lines), errors, outputs)
    trace = first.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__cause__ = first.with_traceback(trace)
    return error


def world(n):
    """Returns a World of n ranks, threads of this process: global tensors on one machine without a launcher.
    Example: with holon.world(2) as ranks: ranks.run("import holon; print(holon.env.get_rank())")"""
    return World(n)
