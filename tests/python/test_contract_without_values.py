"""Contracts that are recorded without values: the files that runs on real ranks record, and what cannot be recorded."""

import re

import pytest
from harness.contracts import EAGER_GPT, GRAPH_GPT, LAYOUTS, command

# What reads values does not run without them.
NO_READS = re.compile(r"\n    read, calls = .*\n    print\(.*\)\n")


def recorded(folder, program, ranks, *arguments, real=True):
    """The contract of a program; real: from ranks that compute."""
    file = folder / ("real.contract" if real else "shapes.contract")
    options = ["-n", ranks, "-o", file] + ([] if real else ["--no-values"])
    done = command("contract", "record", *options, program, *arguments)
    assert done.returncode == 0, done.stderr
    return file


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("text", [EAGER_GPT, GRAPH_GPT], ids=["eager", "graph"])
def test_a_gpt_has_the_contract_of_real_ranks(tmp_path, text, layout):
    program = tmp_path / "gpt.py"
    text, n = NO_READS.subn("\n", text)
    assert n == 1
    program.write_text(text)
    file = recorded(tmp_path, program, 4, *layout, real=False)
    assert file.read_text() == recorded(tmp_path, program, 4, *layout).read_text()
    kept = command("contract", "check", "-n", 4, "-c", file, program, *layout)
    assert kept.returncode == 0, kept.stderr


MLP = """
import sys

import numpy as np

import holon as flow
from holon import nn
from holon.nn import functional as F

ranks = int(sys.argv[1])
placement = flow.placement("cpu", list(range(ranks)))
B, S, P = flow.sbp.broadcast, flow.sbp.split, flow.sbp.partial_sum


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16, placement=placement, sbp=S(0))
        self.norm = nn.LayerNorm(16, placement=placement, sbp=B)
        self.down = nn.Linear(16, 10, placement=placement, sbp=S(1))
        self.register_buffer("seen", flow.zeros(16, placement=placement, sbp=B))

    def forward(self, x):
        h = F.dropout(F.gelu(self.up(x)), 0.1)
        with flow.no_grad():
            self.seen += h.sum(0)
        return self.down(self.norm(h))


flow.manual_seed(1)
net = Net()
optimizer = flow.optim.AdamW(net.parameters(), lr=1e-3)
scheduler = flow.optim.lr_scheduler.StepLR(optimizer, 2)
rng = np.random.default_rng(0)
for step in range(3):
    x = flow.tensor(rng.standard_normal((4, 8)).astype(np.float32), placement=placement, sbp=S(0))
    part = flow.tensor(rng.integers(0, 10, (4,)))
    labels = part.to_global(placement, B)
    y = net(x)
    # Classes are split: the loss makes sums of rows on its way.
    loss = F.cross_entropy(y.to_global(sbp=S(1)), labels)
    if step == 1:
        loss = loss + net.down.weight.square().sum() * 0.01
    (loss / 2).backward()
    (F.mse_loss(net(x), flow.zeros_like(y)) / 2).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    # end of the step
with flow.no_grad():
    result = net(x).to_global(sbp=B)
"""


@pytest.fixture
def mlp(tmp_path):
    def write(text=MLP):
        program = tmp_path / "mlp.py"
        program.write_text(text)
        return program

    return write


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_mlp_has_the_contract_of_real_ranks(tmp_path, mlp, ranks):
    file = recorded(tmp_path, mlp(), ranks, ranks, real=False)
    text = file.read_text()
    assert text == recorded(tmp_path, mlp(), ranks, ranks).read_text()
    assert "== step  " in text and "== end" in text


@pytest.mark.parametrize(
    "optimizer",
    ["SGD(net.parameters(), lr=0.1, momentum=0.9)", "LAMB(net.parameters(), lr=0.1)", "Adagrad(net.parameters())"],
)
def test_other_optimizers(tmp_path, mlp, optimizer):
    program = mlp(re.sub(r"AdamW\(.*\)", lambda _: optimizer, MLP))
    assert recorded(tmp_path, program, 2, 2, real=False).read_text() == recorded(tmp_path, program, 2, 2).read_text()


def test_a_world_that_no_machine_has(tmp_path, mlp):
    program = mlp(MLP.replace("nn.Linear(8, 16,", "nn.Linear(8, 1 << 17,").replace("(16", "(1 << 17"))
    file = tmp_path / "large.contract"
    done = command("contract", "record", "-n", 512, "--hosts", 64, "--no-values", "-o", file, program, 512)
    assert done.returncode == 0, done.stderr
    assert "\nranks 512, hosts 64\n" in file.read_text()
    priced = command("contract", "cost", file)
    assert priced.returncode == 0 and "self.up(x)" in priced.stdout, priced.stderr


@pytest.mark.parametrize(
    "line, call",
    [
        ("print(loss.item())", "item"),
        ("loss.numpy()", "numpy"),
        ("x.to_local().numpy()", "numpy"),
        ("part.numpy()", "numpy"),
        ("float(loss)", "item"),
        ("if loss > 1: break", "item"),
        ("loss.tolist()", "tolist"),
        ("flow.save(net.state_dict(), 'saved')", "save"),
        ("flow.nonzero(x)", "nonzero"),
    ],
)
def test_a_value_that_is_read_is_an_error(tmp_path, mlp, line, call):
    file = tmp_path / "none.contract"
    program = mlp(MLP.replace("# end of the step", line))
    done = command("contract", "record", "-n", 2, "--no-values", "-o", file, program, 2, cwd=tmp_path)
    assert done.returncode == 1 and not file.exists()
    assert line in done.stderr  # the program's line
    last = done.stderr.strip().splitlines()[-1]
    assert "this rank is one of a world that is not there" in last and "run the program on real ranks" in last, last


def test_communication_besides_global_tensors(tmp_path, mlp):
    # Collectives on local tensors are boxings; a barrier moves nothing.
    program = mlp(MLP.replace("# end of the step", "flow.comm.all_reduce(part)\n    flow.comm.barrier()"))
    text = recorded(tmp_path, program, 2, 2, real=False).read_text()
    assert text == recorded(tmp_path, program, 2, 2).read_text() and "flow.comm.all_reduce(part)" in text
    program = mlp(MLP.replace("# end of the step", "flow.comm.send(x.to_local(), 1)"))
    file = tmp_path / "none.contract"
    done = command("contract", "record", "-n", 2, "--no-values", "-o", file, program, 2)
    assert done.returncode == 1 and not file.exists()
    assert "comm.send: " in done.stderr and "this rank is one of a world that is not there" in done.stderr


ATTENTION = """
import holon as flow
from holon.nn import functional as F

placement = flow.placement("cpu", [0, 1])
q, k, v = (flow.randn(2, 4, 64, 8, placement=placement, sbp=flow.sbp.split(2)).requires_grad_() for _ in range(3))
for _ in range(2):
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    y.sum().backward()
    flow.contract.end_step()
"""


@pytest.mark.parametrize("way", ["ring", "heads", "gather"])
def test_kernels_that_read_other_ranks(tmp_path, mlp, way, monkeypatch):
    monkeypatch.setenv("HOLON_SEQUENCE_ATTENTION", way)
    program = mlp(ATTENTION)
    text = recorded(tmp_path, program, 2, real=False).read_text()
    assert text == recorded(tmp_path, program, 2).read_text()
    assert f"takes {way}" in text and (" inside" in text) == (way == "ring")


def test_tensors_are_printed_without_values(tmp_path, mlp):
    program = mlp(MLP.replace("# end of the step", "print(loss)"))
    done = command("contract", "record", "-n", 2, "--no-values", "-o", tmp_path / "a", program, 2)
    assert done.returncode == 0, done.stderr
    assert "tensor(..., shape=[], without values, placement=" in done.stdout


def test_wrong_arguments(tmp_path, mlp):
    file, program = tmp_path / "none.contract", mlp()

    def told(*arguments):
        done = command("contract", "record", "-o", file, *arguments)
        assert done.returncode != 0 and not file.exists()
        return done.stderr

    assert "it runs Python programs" in told("-n", 2, "--no-values", "/bin/true")
    assert "3 ranks do not divide among 2 hosts" in told("-n", 3, "--hosts", 2, "--no-values", program, 3)
    assert "--no-values" in told("-n", 2, "--hosts", 2, program, 2)  # of real ranks the hosts are known
    assert "No such file" in told("-n", 2, "--no-values", tmp_path / "missing.py")
    assert "rank 2 is not in the world of 2 ranks" in told("-n", 2, "--no-values", program, 3)
    program.write_text("raise KeyError(7)\n")
    assert "KeyError: 7" in told("-n", 2, "--no-values", program)
    program.write_text("import sys\nsys.exit(3)\n")
    told("-n", 2, "--no-values", program)
