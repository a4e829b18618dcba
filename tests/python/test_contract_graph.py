"""Graphs under a contract: what a compilation takes from the file instead of the planner, and what deviates."""

import pytest
from harness.contracts import GRAPH_GPT, LAYOUTS, bytes_of, recorded_and_replayed


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "gpt.py"
    path.write_text(GRAPH_GPT)
    return path


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_graph_is_compiled_from_its_contract(gpt, tmp_path, layout):
    file = tmp_path / "gpt.contract"
    lines, again = recorded_and_replayed(gpt, file, layout)
    for number in "12":
        assert sum(int(read) for n, read, *_ in lines if n == number) == bytes_of(file, "graph") > 0
    assert all(int(calls) > 0 for _, _, calls, _ in lines)
    assert {calls for _, _, calls, _ in again} == {"0"}
    assert sorted((n, r, loss) for n, r, _, loss in again) == sorted((n, r, loss) for n, r, _, loss in lines)
