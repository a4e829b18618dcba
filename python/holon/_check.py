"""`holon check`: one program on one rank and under its layouts, compared value by value (holon/verify)."""

import argparse
import dataclasses
import os
import re
import shlex
import subprocess
import sys
import tempfile

from . import _C
from ._programs import find_program

_FOUND, _FAILED = 1, 2
_PERTURBED = 2  # runs on one rank that are rounded otherwise


@dataclasses.dataclass
class Layout:
    """A number of ranks, and what tells the program its layout: arguments after its own, environment variables."""

    text: str
    ranks: int
    arguments: list
    variables: dict

    @classmethod
    def parse(cls, text):
        words = shlex.split(text)
        if not words or not words[0].isdecimal() or int(words[0]) < 1:
            raise ValueError(
                f"layout {text!r}: it begins with its number of ranks, as in '2' or '4 DP=2 TP=2' or '2 --tp 2'."
            )
        variables, rest = {}, words[1:]
        while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
            name, _, value = rest.pop(0).partition("=")
            variables[name] = value
        return cls(" ".join(words), int(words[0]), rest, variables)


@dataclasses.dataclass
class Result:
    """What was found under one layout. kind, site ("train.py:31") and op are those of the first value that differs, and
    "" where all agree; compared counts values. str() is for people."""

    layout: str
    is_sound: bool
    kind: str
    site: str
    op: str
    compared: int
    text: str

    def __str__(self):
        return f"{self.layout}: {self.text}"


def _result(layout, report):
    text = str(report) if report.kind else f"{report.compared} values agree with one rank's"
    text = "; ".join([text, *report.notes]).replace(os.getcwd() + os.sep, "")
    return Result(layout.text, report.is_sound, report.kind, report.site, report.op, report.compared, text)


def _command(program, arguments, layout, folder, steps, perturbation):
    inner = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "_check_program.py")]
    inner += [folder, str(steps), str(perturbation), program, *arguments, *layout.arguments]
    if layout.ranks == 1:
        return [sys.executable, *inner]
    launcher = find_program("holon-launch", "HOLON_LAUNCH")
    return [launcher, "--python", sys.executable, "--nproc_per_node", str(layout.ranks), *inner]


def _environment(layout):
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    # Sums have the same bits on every rank only if they run on as many threads, and plans must not depend on the day.
    env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("HOLON_MACHINE_COSTS", "fixed")
    env.setdefault("HOLON_COMM_TIMEOUT_S", "20")
    return env | layout.variables


class _Run:
    """A program that runs and is recorded."""

    def __init__(self, program, arguments, layout, steps, folder, perturbation=0):
        os.makedirs(folder)
        self.layout, self.folder = layout, folder
        self.output = open(os.path.join(folder, "output"), "w+")
        self.process = subprocess.Popen(
            _command(program, arguments, layout, folder, steps, perturbation),
            env=_environment(layout),
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def wait(self, timeout):
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.output.seek(0)
        text = self.output.read()
        self.output.close()
        return text

    def recordings(self):
        return [os.path.join(self.folder, f"rank{r}") for r in range(self.layout.ranks)]


def check_program(program, layouts=("2",), arguments=(), steps=3, timeout=60.0, folder=None):
    """Runs a program on one rank and under layouts, and yields a Result for each: whether gradients, updates, states of
    optimizers, buffers and all that the program reads are those of one rank, to rounding, and where they are not, the
    first line that makes the difference.

        for result in check_program("train.py", ["2", "4 DP=2 TP=2", "4 --tp 4"]):
            print(result)

    A layout is a number of ranks, NAME=VALUE for the program's environment, and arguments that follow `arguments`; one
    of 1 rank is what the others are compared with, instead of "1". steps: of optimizers, then a run ends; 0: all.
    timeout: seconds for each run. folder: where recordings and outputs are kept; it must not exist. Errors: a layout
    that cannot be read (ValueError); a program that fails on one rank, or ranks that left no recording (RuntimeError).
    """
    layouts = [Layout.parse(text) for text in layouts]
    one = next((layout for layout in layouts if layout.ranks == 1), Layout.parse("1"))
    with tempfile.TemporaryDirectory(prefix="holon-check-") as temporary:
        folder = folder or temporary
        runs = [
            _Run(program, arguments, one, steps, os.path.join(folder, f"1-{k}"), 77 * k) for k in range(_PERTURBED + 1)
        ]
        outputs = [run.wait(timeout) for run in runs]
        reference, *rounded = [run.recordings()[0] for run in runs]
        for i, layout in enumerate(layouts):
            if layout.ranks == 1 and layout is one:
                continue
            run = _Run(program, arguments, layout, steps, os.path.join(folder, f"{layout.ranks}-{i}"))
            output = run.wait(timeout)
            try:
                report = _C.check_recordings(reference, rounded, run.recordings())
            except RuntimeError as error:
                raise RuntimeError(f"{error}\n{outputs[0]}{output}".strip()) from None
            yield _result(layout, report)


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="holon check",
        description="Runs a program on one rank and under other layouts, and names the first line whose values differ "
        "by more than rounding, with both values and what kind of fault it looks like.",
    )
    parser.add_argument(
        "program",
        help="a Python program that reads the same global batch under every layout; -- before its own arguments",
    )
    parser.add_argument("--ranks", help="numbers of ranks, as in 2,4; the same as --layouts '2; 4' (default: 2)")
    parser.add_argument(
        "--layouts",
        help="layouts, separated by ';': a number of ranks, NAME=VALUE for the environment, arguments for the program, "
        "as in '2; 4 DP=2 TP=2; 4 --tp 4'. One of 1 rank is what the others are compared with",
    )
    parser.add_argument("--steps", type=int, default=3, help="steps of the optimizer to run (default: 3; 0: all)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for each run (default: 60)")
    parser.add_argument("--keep", metavar="FOLDER", help="where recordings and outputs are kept; must not exist")
    own, program_arguments = arguments, []
    if "--" in arguments:
        own, program_arguments = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    a = parser.parse_args(own)
    if not os.path.isfile(a.program):
        parser.error(f"there is no program {a.program}")
    texts = [t.strip() for t in (a.layouts or "").split(";") if t.strip()]
    texts += [t.strip() for t in (a.ranks or "").split(",") if t.strip()]
    try:
        for text in texts:
            Layout.parse(text)
    except ValueError as error:
        parser.error(str(error))
    if a.keep and os.path.exists(a.keep):
        parser.error(f"--keep {a.keep}: it exists already")
    sound = True
    try:
        for result in check_program(a.program, texts or ["2"], program_arguments, a.steps, a.timeout, a.keep):
            print(result, flush=True)
            sound = sound and result.is_sound
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return _FAILED
    return 0 if sound else _FOUND
