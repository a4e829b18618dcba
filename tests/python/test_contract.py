"""Contracts from Python: by the launcher, as blocks, in graphs; what deviates is named by its line."""

import contextlib
import re
import subprocess
import textwrap

import pytest
from harness import cpp
from harness.contracts import EAGER_GPT, FIXED, LAYOUTS, bytes_of, command, recorded_and_replayed
from harness.ranks import ROOT, environment, launch

import holon as flow
from holon import _C, run_ranks


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt") / "gpt.py"
    path.write_text(EAGER_GPT)
    return path


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_bytes_are_the_transports_and_a_replay_does_not_plan(gpt, tmp_path, layout):
    file = tmp_path / "gpt.contract"
    lines, again = recorded_and_replayed(gpt, file, layout)
    for step in "123":
        assert sum(int(read) for s, read, *_ in lines if s == step) == bytes_of(file, "step") > 0
    assert {calls for _, _, calls, _ in again} == {"0"}
    assert sorted((s, loss) for s, _, _, loss in again) == sorted((s, loss) for s, _, _, loss in lines)


@pytest.mark.parametrize("overlap", [0, 1])
def test_it_holds_where_ranks_have_other_cores(gpt, tmp_path, overlap):
    # Gradients are summed together where a second thread pays.
    file = tmp_path / "gpt.contract"
    recorded = command("contract", "record", "-n", 4, "-o", file, gpt, 4, 1, 1, HOLON_OVERLAP=overlap)
    assert recorded.returncode == 0, recorded.stderr
    assert ("gradients together" in file.read_text()) == bool(overlap)
    kept = command("contract", "check", "-n", 4, "-c", file, gpt, 4, 1, 1, HOLON_OVERLAP=1 - overlap)
    assert kept.returncode == 0, kept.stderr
    read = [sorted(line.split()[:2] for line in done.stdout.splitlines()) for done in (recorded, kept)]
    assert read[0] == read[1] != []
    assert {line.split()[2] for line in kept.stdout.splitlines()} == {"0"}


NET = """
import holon as flow
from holon import _C, nn
from holon.nn import functional as F

placement = flow.placement("cpu", ranks=[0, 1])
B, S, P = flow.sbp.broadcast, flow.sbp.split, flow.sbp.partial_sum


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16, placement=placement, sbp=S(0))
        self.down = nn.Linear(16, 8, placement=placement, sbp=S(1))
        self.norm = nn.LayerNorm(8, placement=placement, sbp=B)

    def forward(self, x):
        #1
        h = self.up(x)
        #2
        h = F.gelu(h)
        #3
        h = self.down(h)
        #4
        h = self.norm(h)
        #5
        return h


def loss_of(net, x):
    #6
    y = net(x)
    #7
    y = y * y
    #8
    loss = y.mean()
    #9
    return loss


def main():
    flow.manual_seed(1)
    net = Net()
    optimizer = flow.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = flow.randn(4, 8, placement=placement, sbp=S(0))
        #10
        loss = loss_of(net, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.to_local().numpy().tobytes().hex(), _C.planner_calls())


if __name__ == "__main__":
    main()
"""
# At each mark a tensor, and two moves of it that the program does not have.
VARIABLES = {1: "x", 2: "h", 3: "h", 4: "h", 5: "h", 6: "x", 7: "y", 8: "y", 9: "loss", 10: "x"}


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    folder = tmp_path_factory.mktemp("net")
    (folder / "net.py").write_text(NET)
    recorded = command("contract", "record", "-n", 2, "-o", folder / "net.contract", folder / "net.py")
    assert recorded.returncode == 0, recorded.stderr
    return folder, recorded.stdout


def test_twenty_planted_moves_are_named_by_line(net, tmp_path):
    folder, _ = net
    contract = str(folder / "net.contract")
    planted = 0
    for mark, name in VARIABLES.items():
        for kind in ("gathers", "reduces"):
            # An explicit move there and back, or an op that makes one by itself: a sum over ranks.
            line = {
                "gathers": f"flow.cat([{name}.reshape(-1), {name}.reshape(-1)]).to_global(sbp=S(0)).to_global(sbp=B)",
                "reduces": f"({name} * 0 + 1).to_global(sbp=P).to_global(sbp=B).sum()",
            }[kind]
            source = NET.replace(f"#{mark}\n", line + "\n", 1)
            number = next(i for i, text in enumerate(source.splitlines(), 1) if line in text)
            program = tmp_path / "net.py"
            program.write_text(source)
            told = run_main(program, contract)
            assert f"net.py:{number}, in " in told, told
            assert "is not in the contract" in told and "nothing on this line" in told
            planted += 1
    assert planted == 20


def run_main(program, contract, record=False):
    """Runs main() of a program on two ranks as threads under the contract; returns what it raised on all of them."""
    code = compile(program.read_text(), str(program), "exec")

    def rank(_):
        exec(code, space := {"__name__": "net"})
        try:
            with flow.contract(contract, record=record):
                space["main"]()
        except RuntimeError as error:
            return str(error)
        return ""

    costs = pytest.MonkeyPatch()
    costs.setenv("HOLON_MACHINE_COSTS", "fixed")
    try:
        texts = run_ranks(2, rank)
    finally:
        costs.undo()
    assert texts[0] == texts[1]
    return texts[0]


def test_edits_that_change_no_communication_change_nothing(net, tmp_path):
    folder, _ = net
    before = (folder / "net.contract").read_text()
    program = tmp_path / "net.py"
    # Lines more, and others in between.
    program.write_text(
        NET.replace("#3\n", "unused = [\n            1,\n        ]\n").replace("class Net", "LIMIT = 3\n\n\nclass Net")
    )
    assert run_main(program, str(folder / "net.contract")) == ""
    run_main(program, str(tmp_path / "again.contract"), record=True)
    after = (tmp_path / "again.contract").read_text()
    assert without_numbers(after) == without_numbers(before)
    # A line that is written otherwise, and a function with another name, move what they moved.
    program.write_text(NET.replace("h = self.up(x)", "h = self.up(x)  # wider").replace("loss_of", "compute_loss"))
    assert run_main(program, str(folder / "net.contract")) == ""


def without_numbers(text):
    return re.sub(r"  # \d+$", "", text, flags=re.M)


def test_what_changes_is_explained(net, tmp_path):
    folder, _ = net
    program = tmp_path / "net.py"
    program.write_text(NET.replace("flow.randn(4, 8", "flow.randn(8, 8"))
    told = run_main(program, str(folder / "net.contract"))
    assert "2 times the elements ([8, 8] instead of [4, 8])" in told and "bytes more each time" in told
    program.write_text(
        NET.replace(
            "flow.randn(4, 8, placement=placement, sbp=S(0))", "flow.randn(4, 8, placement=placement, sbp=S(1))"
        )
    )
    told = run_main(program, str(folder / "net.contract"))
    assert "instead of" in told and "a rank reads up to" in told
    program.write_text(NET.replace("#10\n", "if step == 1:\n            optimizer.step()\n            continue\n"))
    told = run_main(program, str(folder / "net.contract"))
    assert "moves less than the contract has" in told


def test_processes_end_with_the_deviation(net, tmp_path):
    folder, _ = net
    program = tmp_path / "net.py"
    program.write_text(NET.replace("#4\n", "h.to_global(sbp=B)\n"))
    done = command("contract", "check", "-n", 2, "-c", folder / "net.contract", program)
    assert done.returncode != 0
    assert "in Net.forward: h.to_global(sbp=B) moves data that is not in the contract" in done.stderr
    # A program that fails by itself is not told about its contract, and writes none.
    program.write_text(NET.replace("loss.backward()", "raise KeyError(step)"))
    done = launch(program, 2, HOLON_CONTRACT_RECORD=tmp_path / "none", **FIXED)
    assert done.returncode != 0 and "KeyError" in done.stderr and not (tmp_path / "none").exists()


def test_one_rank_that_deviates_ends_the_others(net, tmp_path):
    folder, _ = net
    program = tmp_path / "net.py"
    program.write_text(NET.replace("#4\n", "if _C.rank() == 1: h.to_global(sbp=B)\n"))
    done = command("contract", "check", "-n", 2, "-c", folder / "net.contract", program)
    assert done.returncode != 0 and "is not in the contract" in done.stderr


GRAPH = """
import holon as flow
from holon import _C, nn

placement = flow.placement("cpu", ranks=[0, 1])
B, S = flow.sbp.broadcast, flow.sbp.split


class Train(nn.Graph):
    def __init__(self, net, optimizer):
        super().__init__()
        self.net = net
        self.add_optimizer(optimizer)

    def build(self, x):
        loss = self.net(x).square().mean()
        loss.backward()
        return loss


def main():
    flow.manual_seed(1)
    net = nn.Sequential(
        nn.Linear(8, 16, placement=placement, sbp=B), nn.GELU(), nn.Linear(16, 8, placement=placement, sbp=B)
    )
    train = Train(net, flow.optim.SGD(net.parameters(), lr=0.1))
    x = flow.ones(4, 8, placement=placement, sbp=S(0))
    train(x)
    before, planned = _C.comm_stats()["bytes_read"], _C.planner_calls()
    train(x)
    return _C.comm_stats()["bytes_read"] - before, _C.planner_calls() - planned
"""


def test_graphs_are_recorded_when_they_are_compiled(tmp_path):
    program, file = tmp_path / "graph.py", tmp_path / "graph.contract"

    def run(source, record=False, hold=True):
        program.write_text(source)
        code = compile(source, str(program), "exec")

        def rank(_):
            exec(code, space := {"__name__": "graph"})
            with flow.contract(str(file), record=record) if hold else contextlib.nullcontext():
                return space["main"]()

        return run_ranks(2, rank)

    results = run(GRAPH, record=True)
    assert all(planned == 0 for _, planned in results)
    text = file.read_text()
    graph = text[text.index("== graph  Train") :]
    in_file = sum(int(n) * int(each) for n, each in re.findall(r"^  x(\d+) .*, all (\d+) bytes", graph, re.M))
    assert sum(read for read, _ in results) == in_file > 0
    assert run(GRAPH) == results
    with pytest.raises(
        RuntimeError,
        match=r"graph.py:\d+, in Train.build: loss = self.net\(x.to_global\(sbp=B\)\).*not in the contract",
    ):
        run(GRAPH.replace("loss = self.net(x)", "loss = self.net(x.to_global(sbp=B))"))


def test_cost_and_diff_at_the_shell(net, tmp_path):
    folder, _ = net
    file = folder / "net.contract"
    priced = command("contract", "cost", file)
    assert priced.returncode == 0, priced.stderr
    assert "== step  net.py  main  optimizer.step(): " in priced.stdout and "h = self.up(x)" in priced.stdout
    assert command("contract", "cost", file, "--hosts", 2, "--machine", "net=1e6").stdout != priced.stdout
    assert command("contract", "diff", file, file).stdout == "the contracts are the same\n"
    other = tmp_path / "other.contract"
    program = tmp_path / "net.py"
    program.write_text(NET.replace("#4\n", "h.to_global(sbp=B)\n"))
    run_main(program, str(other), record=True)
    differ = command("contract", "diff", file, other)
    assert differ.returncode == 1 and "h.to_global(sbp=B)" in differ.stdout and "+ x1 to_global" in differ.stdout
    broken = tmp_path / "broken.contract"
    broken.write_text(file.read_text().replace("float32", "float33", 1))
    told = command("contract", "cost", broken)
    assert told.returncode == 2 and "line " in told.stderr and "float33" in told.stderr
    assert command("contract", "record", "-o", tmp_path / "x").returncode == 2


def test_a_plain_call_lasts_until_the_program_ends(tmp_path):
    program = tmp_path / "plain.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys

            import holon as flow

            flow.contract(sys.argv[1], record=sys.argv[2] == "record")
            x = flow.ones(4, 4, placement=flow.placement("cpu", [0, 1]), sbp=flow.sbp.split(0))
            if sys.argv[2] != "less":
                x.to_global(sbp=flow.sbp.broadcast)
            """
        )
    )
    for how, status in (("record", 0), ("check", 0), ("less", 1)):
        done = launch(program, 2, arguments=[tmp_path / "plain.contract", how], **FIXED)
        assert (done.returncode != 0) == bool(status), done.stderr
    assert "moves less than the contract has" in done.stderr


def test_a_wrong_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        flow.contract(str(tmp_path / "none"))
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(ValueError, match=r'line 1: a contract begins with "holon contract 1"'):
        flow.contract(str(tmp_path / "text"))
    assert _C.planner_calls() >= 0


def test_the_example_in_cpp_prints_what_the_guide_shows(tmp_path):
    guide = (ROOT / "docs/guides/contract.md").read_text()
    shown = guide.split("### In C++")[1].split("```text\n")[1].split("```")[0]
    made = cpp.compiled(ROOT / "examples/cpp/contract.cpp", tmp_path / "contract", *cpp.WARNINGS, "-Werror")
    assert made.returncode == 0, made.stderr
    start = [cpp.LAUNCHER, "-n", "2", tmp_path / "contract"]
    done = subprocess.run(start, cwd=tmp_path, env=environment(**FIXED), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown
