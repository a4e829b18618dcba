"""Graphs under a contract: what a compilation takes from the file instead of the planner, and what deviates."""

import re

import pytest
from harness.contracts import GRAPH_GPT, LAYOUTS, command


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "gpt.py"
    path.write_text(GRAPH_GPT)
    return path


def graph_bytes(file):
    """What all ranks read in a call of the graph, by the file."""
    graph = re.search(r"^== graph .*?(?=^-- |\Z)", file.read_text(), re.M | re.S)[0]
    return sum(int(n) * int(each) for n, each in re.findall(r"^  x(\d+) .*, all (\d+) bytes", graph, re.M))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_graph_is_compiled_from_its_contract(gpt, tmp_path, layout):
    file = tmp_path / "gpt.contract"
    recorded = command("contract", "record", "-n", 4, "-o", file, gpt, *layout)
    assert recorded.returncode == 0, recorded.stderr
    lines = [line.split() for line in recorded.stdout.splitlines()]
    for number in "12":
        assert sum(int(read) for n, read, *_ in lines if n == number) == graph_bytes(file) > 0
    assert all(int(calls) > 0 for _, _, calls, _ in lines)
    replayed = command("contract", "check", "-n", 4, "-c", file, gpt, *layout)
    assert replayed.returncode == 0, replayed.stderr
    again = [line.split() for line in replayed.stdout.splitlines()]
    assert {calls for _, _, calls, _ in again} == {"0"}
    assert sorted((n, r, loss) for n, r, _, loss in again) == sorted((n, r, loss) for n, r, _, loss in lines)
