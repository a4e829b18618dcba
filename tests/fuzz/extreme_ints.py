#!/usr/bin/env python3
"""Calls every op with each of its integers, and lists of integers, at the ends of what they can be: lists of other
lengths, none, 0, -1, the ends of int64.

  extreme_ints.py [OP...]

The calls are those of the tables of values (tests/python/ops), right but for the one argument. As in fuzz_ops.py, a
call may give a result or raise an error that users are promised, and the call that runs is named in $HOLON_FUZZ_LOG
before it begins.
"""

import faulthandler
import importlib
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "python" / "ops")]
import op_table  # noqa: E402
from fuzz_ops import ALLOWED, limit_memory, read, roots, shown  # noqa: E402

import holon as flow  # noqa: E402

NUMBERS = (0, -1, 3, 2**40, 2**62, 2**63 - 1, -(2**63))
LISTS = ([], *([n] * length for length in (1, 2, 3, 4, 6) for n in (1, *NUMBERS)))
KINDS = {"int": (*NUMBERS, []), "int[]": LISTS, "int[n]": (*NUMBERS, *LISTS), "int...": LISTS}


def tensors(value, dtype):
    if isinstance(value, op_table.np.ndarray):
        tensor = flow.tensor(value)
        if value.dtype == "float64":
            tensor = tensor.to(getattr(flow, dtype)).requires_grad_()
        return tensor
    return type(value)(tensors(v, dtype) for v in value) if isinstance(value, (list, tuple)) else value


def calls(op, row):
    """The row's call with one argument replaced, as (positional, keywords)."""
    for at, arg in enumerate(op["args"]):
        for extreme in KINDS.get(arg["type"], ()):
            if at < len(row.args):
                given = list(row.args)
                given[at] = extreme
                yield given, row.kwargs
            elif not arg["keyword_only"] or arg["name"] in row.kwargs:
                yield list(row.args), {**row.kwargs, arg["name"]: extreme}


def one_call(op, positional, keywords):
    """Returns what is wrong, or None."""
    try:
        result = flow._C.find_op_function(op)(*positional, **keywords)
        read(result)
        for r in roots(result):
            r.sum().backward()
    except ALLOWED as e:
        if not str(e) and not isinstance(e, MemoryError):
            return f"{type(e).__name__} without a word"
        return str(e) if "internal" in str(e).lower() or "broken promise" in str(e).lower() else None
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return None


def main():
    for file in sorted(Path(op_table.__file__).parent.glob("values_*.py")):
        importlib.import_module(file.stem)
    limit_memory()
    rows = {}
    for row in op_table.rows:
        rows.setdefault(row.op, []).append(row)
    log = open(os.environ["HOLON_FUZZ_LOG"], "w") if "HOLON_FUZZ_LOG" in os.environ else None
    n_calls, failures, without = 0, [], []
    for op in flow._C.op_table():
        wanted = op["name"] in sys.argv[1:] if sys.argv[1:] else op["function"] or op["method"]
        if not wanted or not any(arg["type"] in KINDS for arg in op["args"]):
            continue
        known = [r for r in rows.get(op["name"], []) if r.dtype == "float32"][:3]
        if not known:
            without.append(op["name"])
        for row in known:
            for positional, keywords in calls(op, row):
                args = [tensors(a, "float32") for a in positional]
                named = {k: tensors(v, "float32") for k, v in keywords.items()}
                text = f"{op['name']}({', '.join([*map(shown, args), *(f'{k}={shown(v)}' for k, v in named.items())])})"
                faulthandler.dump_traceback_later(60, exit=True)
                if log:
                    log.seek(0)
                    log.truncate()
                    log.write(text + "\n")
                    log.flush()
                n_calls += 1
                if wrong := one_call(op["name"], args, named):
                    failures.append(text)
                    print(f"{text}: {wrong}", flush=True)
    print(f"{n_calls} calls, {len(failures)} failures; without a row: {' '.join(without)}", flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
