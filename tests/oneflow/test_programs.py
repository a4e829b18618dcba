"""Programs as users of OneFlow write them, on one, two and four ranks:
each checks itself, and its results do not depend on the ranks."""

from pathlib import Path

import pytest
from harness.ranks import launch

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def results(done, ranks):
    """The numbers after `result`, which every rank prints."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    assert len(lines) == ranks and len(set(lines)) == 1, done.stdout
    return [float(word) for word in lines[0].split()[1:]]


@pytest.mark.parametrize("program", PROGRAMS, ids=[p.stem for p in PROGRAMS])
def test_program(program):
    alone = results(launch(program, 1), 1)
    for ranks in (2, 4):
        assert results(launch(program, ranks), ranks) == pytest.approx(alone, rel=2e-3, abs=1e-5)


@pytest.mark.parametrize("name", ["data_parallel_cnn", "libai_gpt"])
def test_on_simulated_cuda(name, tmp_path):
    text = (Path(__file__).parent / "programs" / f"{name}.py").read_text()
    program = tmp_path / f"{name}.py"
    program.write_text(text.replace('"cpu"', '"cuda"'))
    alone = results(launch(program, 1, HOLON_SIMULATE="cuda"), 1)
    assert results(launch(program, 2, HOLON_SIMULATE="cuda"), 2) == pytest.approx(alone, rel=2e-3, abs=1e-5)
