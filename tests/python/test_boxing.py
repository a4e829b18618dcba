"""Boxing from Python: what explain says, the live log, one set of figures for all ranks, and random conversions."""

import re

import numpy as np
import pytest
from harness import ranks
from hypothesis import given, settings
from hypothesis import strategies as st

import holon as flow
from holon import _C

tensor, sbp, placement = _C.tensor, _C.sbp, _C.placement
B, P, S = sbp.broadcast, sbp.partial_sum, sbp.split
DTYPES = {
    "float32": _C.float32,
    "float64": _C.float64,
    "int32": _C.int32,
    "int64": _C.int64,
    "float16": _C.float16,
    "bfloat16": _C.bfloat16,
}


@st.composite
def placements(draw, world):
    """Ranks in any order, in a grid of one to three axes."""
    grid = []
    for _ in range(draw(st.integers(1, 3))):
        grid.append(draw(st.integers(1, world // int(np.prod(grid, dtype=int)))))
    some = draw(st.permutations(range(world)))[: int(np.prod(grid))]
    return np.array(some).reshape(grid).tolist(), len(grid)


@st.composite
def conversions(draw):
    world = draw(st.integers(1, 8))
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 7, 11]), max_size=3))
    kinds = [None, "P"] + list(range(len(shape)))
    path = []
    for _ in range(draw(st.integers(1, 4))):
        where, axes = draw(placements(world))
        path.append((where, draw(st.lists(st.sampled_from(kinds), min_size=axes, max_size=axes))))
    return world, shape, path, draw(st.sampled_from(sorted(DTYPES)))


def sbp_of(kinds):
    return [B if k is None else P if k == "P" else S(k) for k in kinds]


@settings(max_examples=80, deadline=None)
@given(conversions())
def test_any_chain_of_conversions_keeps_the_tensor(case):
    world, shape, path, dtype = case
    data = np.arange(int(np.prod(shape))).reshape(shape) % 19 - 9  # small: exact in every dtype
    first, last = path[0], path[-1]

    def run(rank):
        where = placement("cpu", first[0])
        x = (
            tensor(data.tolist(), dtype=DTYPES[dtype], placement=where, sbp=sbp_of(first[1]))
            if data.size
            else flow.zeros(shape, dtype=DTYPES[dtype], placement=where, sbp=sbp_of(first[1]))
        )
        for ranks_, kinds in path[1:]:
            p = placement("cpu", ranks_)
            text = _C.explain(x, p, sbp_of(kinds))
            before = _C.comm_stats()["bytes_read"]
            x = x.to_global(p, sbp_of(kinds))
            read = _C.comm_stats()["bytes_read"] - before
            most = re.search(r"at most (\d+) bytes per rank", text)
            assert read <= (int(most.group(1)) if most else 0), text
        assert list(x.sbp) == sbp_of(last[1]) and list(x.shape) == shape
        whole = x.to_global(x.placement, [B] * len(last[1]))
        return whole.to_local().tolist() if rank in np.ravel(last[0]) else None

    for rank, got in enumerate(_C.run_ranks(world, run)):
        if rank in np.ravel(last[0]):
            assert got == data.tolist(), case


def test_explain_names_steps_links_memory_and_time():
    def run(rank):
        x = flow.zeros([5, 3], placement=placement("cpu", [0, 1]), sbp=S(0))
        lines = _C.explain(x, sbp=B).splitlines()
        assert re.fullmatch(
            r"S\(0\) on .* -> B on .*, float32 \[5, 3\]: 1 step, at most 36 bytes per rank, [\d.]+ us", lines[0]
        ), lines[0]
        assert re.fullmatch(
            r"  1\. all_gather S\(0\) -> B: reads 24 bytes on rank 0, 36 bytes on rank 1, [\d.]+ us", lines[1]
        ), lines[1]
        assert lines[2:] == ["  links: 0->1: 36 bytes; 1->0: 24 bytes", "  memory: at most 60 bytes besides the input"]
        assert "nothing to do" in _C.explain(x)
        assert "reads nothing from other ranks" in _C.explain(x.to_global(sbp=B), sbp=S(0))
        y = flow.zeros([512, 512], placement=placement("cpu", [0, 1]), sbp=P)
        assert "in two phases" in _C.explain(y, sbp=B)
        with pytest.raises(RuntimeError, match="local"):
            _C.explain(tensor([1.0]), sbp=B)
        return True

    assert _C.run_ranks(2, run) == [True] * 2


PROGRAM = """
import holon as flow
p = flow.placement("cpu", [0, 1])
x = flow.zeros(5, 3, placement=p, sbp=flow.sbp.split(0))
y = x.to_global(sbp=flow.sbp.broadcast)
print("plan", flow.explain(x, sbp=flow.sbp.broadcast).replace(chr(10), "|"))
z = flow.matmul(x, flow.zeros(3, 4, placement=p, sbp=flow.sbp.split(0)))
"""


def lines_of(result, start):
    return [line for line in result.stdout.splitlines() if line.startswith(start)]


@pytest.mark.parametrize("costs", ["", "fixed", "sync=7e-3", "fixed,sync=7e-3,copy=1e9"])
def test_processes_plan_alike(tmp_path, costs):
    """Also where each process has an environment of its own: rank 0's figures count."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os\nif os.environ['RANK'] == '1': os.environ['HOLON_MACHINE_COSTS'] = 'sync=1'\n" + PROGRAM
    )
    result = ranks.launch(program, 2, HOLON_MACHINE_COSTS=costs)
    assert result.returncode == 0, result.stderr
    plans = lines_of(result, "plan")
    assert len(plans) == 2 and plans[0] == plans[1]
    assert ("ms" in plans[0]) == ("7e-3" in costs)


def test_one_rank_alone_may_ask(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import holon as flow
x = flow.zeros(5, 3, placement=flow.placement("cpu", [0, 1]), sbp=flow.sbp.split(0))
if flow.env.get_rank() == 0:
    print("plan", flow.explain(x, sbp=flow.sbp.broadcast).replace(chr(10), "|"))
""")
    result = ranks.launch(program, 2)
    assert result.returncode == 0, result.stderr
    assert "all_gather" in lines_of(result, "plan")[0]


def test_wrong_figures_are_an_error_on_every_rank(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    result = ranks.launch(program, 2, HOLON_MACHINE_COSTS="copy=fast")
    assert result.returncode != 0
    assert '"fast" is not a number' in result.stderr


def test_the_log_tells_of_every_boxing(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    result = ranks.launch(program, 2, HOLON_LOG="boxing", HOLON_MACHINE_COSTS="fixed")
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stderr.splitlines() if "boxing:" in line]
    for rank, read in ((0, 24), (1, 36)):
        mine = [line for line in said if f"[{rank}]" in line]
        assert any(
            re.search(
                rf"to_global: S\(0\) -> B on .* float32 \[5, 3\]: all_gather; rank {rank} of 2 reads {read} bytes; "
                r"took [\d.e+]+ us, predicted",
                line,
            )
            for line in mine
        ), mine
        assert any("matmul" in line for line in mine), mine
