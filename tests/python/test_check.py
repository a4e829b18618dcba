"""`holon check`: programs with a planted fault are found at its line, and sound ones are left alone.

The programs are in tests/check_programs. Each names its layouts in its first line; one with a fault also says which
kinds of fault it may be taken for, and marks its line with # BUG: the first
whose value is not what it is on one rank."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness.ranks import ROOT, environment
from holon.utils.conformance import check_program

PROGRAMS = ROOT / "tests/check_programs"
QUICK = {"data_parallel", "tensor_parallel_by_hand", "row_parallel_without_sum", "summed_twice", "update_on_first_rank"}

# Where another line is named than the marked one, and why.
KNOWN_MISSES = {
    "state_sent_to_wrong_rank": "copies differ a line before already, where one rank alone makes the update",
}


def programs(kind):
    paths = sorted((PROGRAMS / kind).glob("*.py"))
    return [pytest.param(p, id=p.stem, marks=() if p.stem in QUICK else pytest.mark.slow) for p in paths]


def said(path, what):
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"# {what}:"))
    return line.split(":", 1)[1]


def layouts(path):
    return [text.strip() for text in said(path, "layouts").split(";")]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("path", programs("sound"))
def test_sound_programs_are_left_alone(path):
    results = list(check_program(path, layouts(path)))
    assert results and all(r.is_sound for r in results), [str(r) for r in results]


@pytest.mark.parametrize("path", programs("faulty"))
def test_faults_are_found_at_their_line(path, request):
    if path.stem in KNOWN_MISSES:
        request.applymarker(pytest.mark.xfail(reason=KNOWN_MISSES[path.stem], strict=True))
    lines = path.read_text().splitlines()
    (marked,) = [i for i, line in enumerate(lines, 1) if line.endswith("# BUG")]
    kinds = [kind.strip() for kind in said(path, "kind").split(",")]
    for result in check_program(path, layouts(path)):
        assert result.site == f"{path}:{marked}", str(result)
        assert result.kind in kinds, str(result)


def test_there_are_enough_programs():
    assert len(programs("faulty")) >= 30 and len(programs("sound")) >= 20


def command(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "holon", "check", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
    )


def test_the_command(tmp_path):
    program = tmp_path / "scaled.py"
    program.write_text(
        "import os, sys\n"
        "import holon as flow\n"
        "everyone = flow.placement.all('cpu')\n"
        "x = flow.ones(4, 4, placement=everyone, sbp=flow.sbp.split(0))\n"
        "x = x * float(os.environ.get('FACTOR', 1)) * float(sys.argv[1])\n"
        "print(x.sum().item())\n"
    )
    done = command("scaled.py", "--layouts", "2; 2 FACTOR=3", "--", "2.5", cwd=tmp_path)
    first, second = done.stdout.splitlines()
    assert first.startswith("2: ") and first.endswith("values agree with one rank's"), done
    assert second.startswith("2 FACTOR=3: scaled.py:5: mul_scalar: wrong scale: 3 times"), done
    assert done.returncode == 1
    assert command("scaled.py", "--ranks", "2", "--", "2", cwd=tmp_path).returncode == 0
    # The last word goes to one layout alone.
    done = command("scaled.py", "--layouts", "1 2; 2 3", cwd=tmp_path)
    assert "scaled.py:5: mul_scalar: wrong scale" in done.stdout and done.returncode == 1


def test_a_program_that_fails_on_one_rank(tmp_path):
    program = tmp_path / "fails.py"
    program.write_text("raise KeyError('lost')\n")
    done = command(program)
    assert done.returncode == 2 and "fails.py:1: KeyError: 'lost'" in done.stderr


def test_a_program_without_tensors(tmp_path):
    program = tmp_path / "empty.py"
    program.write_text("print('hello')\n")
    done = command(program)
    assert done.returncode == 1 and "has no tensors that could be compared" in done.stdout


def test_a_rank_that_hangs_is_an_answer(tmp_path):
    program = tmp_path / "hangs.py"
    program.write_text(
        "import time\n"
        "import holon as flow\n"
        "everyone = flow.placement.all('cpu')\n"
        "x = flow.ones(4, 4, placement=everyone, sbp=flow.sbp.split(0))\n"
        "if flow.env.get_rank() == 1:\n"
        "    time.sleep(1000)\n"
        "print(x.sum().item())\n"
    )
    (result,) = check_program(program, ["2"], timeout=8)
    assert not result.is_sound and result.kind in ("fails under this layout", "rank-dependent branch")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("no.py",), "there is no program no.py"),
        ((__file__, "--layouts", "two"), "begins with its number of ranks"),
        ((__file__, "--keep", "."), "exists already"),
    ],
)
def test_mistakes(arguments, message):
    done = command(*arguments)
    assert done.returncode == 2 and message in done.stderr


def test_placements_that_name_ranks_run_on_one(tmp_path):
    program = tmp_path / "named.py"
    program.write_text(
        "import holon as flow\n"
        "first, both = flow.placement('cpu', [1]), flow.placement('cpu', [0, 1])\n"
        "x = flow.randn(4, 5, placement=both, sbp=flow.sbp.split(0))\n"
        "w = flow.randn(5, 8, placement=both, sbp=flow.sbp.broadcast)\n"
        "y = (x @ w).to_global(first, flow.sbp.broadcast)\n"
        "print(y.sum().item())\n"
    )
    (result,) = check_program(program, ["2"])
    assert result.is_sound and result.compared >= 4, str(result)


def test_graphs_are_checked_op_by_op(tmp_path):
    program = tmp_path / "graph.py"
    program.write_text(
        "import os\n"
        "import holon as flow\n"
        "from holon import nn\n"
        "everyone, world = flow.placement.all('cpu'), flow.env.get_world_size()\n"
        "model = nn.Linear(6, 3).to_global(everyone, flow.sbp.broadcast)\n"
        "class Train(nn.Graph):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.model = model\n"
        "        self.add_optimizer(flow.optim.Adam(model.parameters(), lr=0.01))\n"
        "    def build(self, x):\n"
        "        loss = self.model(x).square().mean()\n"
        "        loss = loss * (world if 'WRONG' in os.environ else 1)\n"
        "        loss.backward()\n"
        "        return loss\n"
        "step = Train()\n"
        "for _ in range(3):\n"
        "    step(flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0)))\n"
    )
    sound, wrong = check_program(program, ["2", "2 WRONG=1"])
    assert sound.is_sound and sound.compared > 50, str(sound)
    assert wrong.kind == "wrong scale" and wrong.site.endswith("graph.py:13"), str(wrong)


def test_recordings_can_be_kept(tmp_path):
    folder = tmp_path / "kept"
    list(check_program(PROGRAMS / "sound/forward_only.py", ["2"], folder=folder))
    assert {p.name for p in Path(folder).iterdir()} == {"1-0", "1-1", "1-2", "2-0"}
    assert (folder / "2-0/rank1").stat().st_size > 0 and "[8, 6]" in (folder / "2-0/output").read_text()
