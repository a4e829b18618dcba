"""Runs a program and records what it computes: for `holon check`, one process for each rank."""

import os
import sys
import traceback
import types


def _error(raised, is_users_file):
    """ "train.py:31: ValueError: ...", by the innermost line of the user's."""
    lines = [f for f in traceback.extract_tb(raised.__traceback__) if is_users_file(f.filename)]
    text = traceback.format_exception_only(type(raised), raised)[-1].strip()
    return f"{lines[-1].filename}:{lines[-1].lineno}: {text}" if lines else text


def _record_state(modules):
    from holon import _C

    inner = {id(child) for m in modules for child in m.modules() if child is not m}
    for i, root in enumerate(m for m in modules if id(m) not in inner):
        for name, tensor in (*root.named_parameters(), *root.named_buffers()):
            if isinstance(tensor, _C.Tensor):
                _C.record_state(f"{type(root).__name__} {i}: {name}", tensor)


def _run_eagerly(graph, *args, **kwargs):
    """A call of an nn.Graph, op by op: what is compiled has no lines."""
    result = graph.build(*args, **kwargs)
    for optimizer in graph._optimizers:
        optimizer.clip_grad()
        optimizer.step()
        optimizer.zero_grad()
    for schedule in graph._schedulers:
        schedule.step()
    return result


def main():
    folder, steps, perturbation, program, *arguments = sys.argv[1:]
    program = os.path.abspath(program)
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(program)

    import holon
    from holon import _C

    modules = []
    init = holon.nn.Module.__init__

    def keeping(self, *args, **kwargs):
        init(self, *args, **kwargs)
        modules.append(self)

    holon.nn.Module.__init__ = keeping
    holon.nn.Graph.__call__ = _run_eagerly
    # A program whose placements name ranks runs on one rank all the same.
    _C.set_placements_on_one_rank(_C.world_size() == 1)
    main_module = types.ModuleType("__main__")
    main_module.__file__ = program
    sys.modules["__main__"] = main_module
    with open(program, encoding="utf-8") as file:
        code = compile(file.read(), program, "exec")
    _C.start_recording(os.path.join(folder, f"rank{_C.rank()}"), int(steps), int(perturbation))
    error = ""
    try:
        exec(code, main_module.__dict__)
    except SystemExit as raised:
        if raised.code not in (None, 0):
            error = _error(raised, _C.is_users_file)
    except BaseException as raised:
        error = _error(raised, _C.is_users_file)
        traceback.print_exc()
    if not error:
        _record_state(modules)
    _C.end_recording(error)
    sys.exit(1 if error else 0)


if __name__ == "__main__":
    main()
