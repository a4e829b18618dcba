"""nn.Graph on a device: what it computes is what the modules compute, there and on the CPU,
recorded as CUDA graphs or not."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import holon as flow
from holon import nn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness import ranks  # noqa: E402

STEPS = 5


class MLP(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.inner = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        h = nn.functional.gelu(self.embed(x))
        h = self.norm(self.drop(self.inner(h)) + h)
        return self.head(nn.functional.relu(h))


class Train(nn.Graph):
    def __init__(self, model, optimizer, micro=1, clip=False):
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss()
        self.add_optimizer(optimizer)
        if micro > 1:
            self.config.set_gradient_accumulation_steps(micro)

    def build(self, x, y):
        logits = self.model(x)
        loss = self.loss(logits, y)
        loss.backward()
        return loss, logits


class Forward(nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def build(self, x):
        return self.model(x)


def batches(n=STEPS, rows=8):
    rng = np.random.default_rng(1)
    return [(rng.standard_normal((rows, 8)).astype(np.float32), rng.integers(0, 4, rows)) for _ in range(n)]


def optimizer_of(kind, parameters):
    if kind == "sgd":
        return flow.optim.SGD(parameters, lr=0.1, momentum=0.9)
    if kind == "adamw":
        return flow.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
    return flow.optim.SGD(
        [{"params": list(parameters), "lr": 0.1, "clip_grad_max_norm": 0.5, "clip_grad_norm_type": 2.0}]
    )


def to_device(device):
    if device == "global":
        place, sbp = flow.placement("cuda", [0]), flow.sbp.broadcast
        return lambda t: t.to("cuda").to_global(place, sbp)
    return lambda t: t.to(device)


def train(device, kind="sgd", graph=False, micro=1, dropout=0.0, seed=0):
    flow.manual_seed(seed)
    move = to_device(device)
    model = move(MLP(dropout))
    optimizer = optimizer_of(kind, model.parameters())
    losses, logits, step = [], [], None
    if graph:
        step = Train(model, optimizer, micro)
    for x, y in batches():
        x, y = move(flow.tensor(x)), move(flow.tensor(y))
        if graph:
            loss, out = step(x, y)
            loss = loss.to_local().mean() if device == "global" else loss.mean()
        else:
            parts, outs = [], []
            for m in range(micro):
                rows = slice(m * 8 // micro, (m + 1) * 8 // micro)
                out = model(x[rows])
                part = nn.CrossEntropyLoss()(out, y[rows])
                (part / micro).backward()
                parts.append(part.detach())
                outs.append(out.detach())
            if kind == "clip":
                optimizer.clip_grad()
            optimizer.step()
            optimizer.zero_grad()
            loss, out = sum(parts) / micro, flow.cat(outs)
        losses.append(loss.item())
        logits.append(out)  # read at the end: later steps must not change it
    read = (lambda t: t.to_local().cpu().numpy()) if device == "global" else (lambda t: t.cpu().numpy())
    weights = [read(p.detach()) for p in model.parameters()]
    return losses, [read(o) for o in logits], weights, step


def same(a, b, tolerance=2e-5):
    for x, y in zip(a[:3], b[:3]):
        for p, q in zip(x, y):
            np.testing.assert_allclose(p, q, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["sgd", "adamw", "clip"])
@pytest.mark.parametrize("device", ["cuda", "global"])
def test_training_is_that_of_eager_and_of_the_cpu(device, kind):
    cpu, eager, graph = train("cpu", kind), train("cuda", kind), train(device, kind, graph=True)
    same(graph, cpu)
    same(graph, eager, 1e-6)


@pytest.mark.parametrize("device", ["cuda", "global"])
def test_gradient_accumulation(device):
    same(train(device, "adamw", graph=True, micro=2), train("cpu", "adamw", micro=2))


def test_dropout_draws_anew_in_each_step_and_as_on_the_cpu():
    graph, cpu = train("cuda", dropout=0.5, graph=True), train("cpu", dropout=0.5, graph=True)
    same(graph, cpu)
    other = train("cuda", dropout=0.5, graph=True, seed=1)
    assert not np.allclose(graph[0], other[0])


def test_forward_outputs_are_the_callers_own():
    flow.manual_seed(0)
    model = MLP().to("cuda").eval()
    graph = Forward(model)
    kept = []
    with flow.no_grad():
        for x, _ in batches(6):
            x = flow.tensor(x).to("cuda")
            kept.append((graph(x), model(x)))
            x.zero_()  # the input's memory is the caller's, too
    for got, want in kept:
        np.testing.assert_allclose(got.cpu().numpy(), want.cpu().numpy(), rtol=1e-6, atol=1e-6)


def test_parameters_that_move_are_found_again():
    flow.manual_seed(0)
    model = MLP().to("cuda").eval()
    graph = Forward(model)
    x = flow.tensor(batches(1)[0][0]).to("cuda")
    with flow.no_grad():
        for i in range(4):
            if i == 3:
                model.head.weight.data = model.head.weight * 2
                model.head.bias.data = model.head.bias * 2
            got = graph(x)
            np.testing.assert_allclose(got.cpu().numpy(), model(x).cpu().numpy(), rtol=1e-6, atol=1e-6)


def test_a_graph_for_one_device_refuses_the_others_tensors():
    model = MLP().to("cuda")
    graph = Forward(model)
    x = flow.tensor(batches(1)[0][0])
    graph(x.to("cuda"))
    with pytest.raises((ValueError, RuntimeError), match="cuda"):
        graph(x)


def test_a_bad_index_is_raised_and_the_next_step_is_right():
    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, i):
            return nn.functional.relu((self.table(i) * 2 + 1) * 3)

    flow.manual_seed(0)
    model = Lookup().to("cuda")
    graph = Forward(model)
    good, bad = flow.tensor([1, 2, 3]).to("cuda"), flow.tensor([1, 99, 3]).to("cuda")
    with flow.no_grad():
        want = model(good).cpu().numpy()
        for _ in range(3):
            np.testing.assert_array_equal(graph(good).cpu().numpy(), want)
        with pytest.raises(IndexError):
            graph(bad)
            flow.cuda.synchronize()
        np.testing.assert_array_equal(graph(good).cpu().numpy(), want)


class Chain(nn.Module):
    """Copies alone, which every device has kernels for."""

    def forward(self, x):
        for _ in range(4):
            x = x.transpose(0, 1).contiguous()
        return x


def test_what_can_be_recorded_is():
    graph = Forward(Chain())
    for x, _ in batches(4):
        got = graph(flow.tensor(x).to("cuda"))
        assert np.array_equal(got.cpu().numpy(), x)
    if os.environ.get("HOLON_CUDA_GRAPHS", "1") == "1":
        assert graph.stats()["recorded"] >= 1


def test_without_recording_and_with_waits_after_every_op():
    for name, value in [("HOLON_CUDA_GRAPHS", "0"), ("HOLON_SYNC", "1")]:
        if os.environ.get(name) == value:
            return
        chosen = "training_is and sgd or dropout or caller or accumulation"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", chosen],
            env={**os.environ, name: value},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]


def test_ranks_with_a_device_each_train_as_on_the_cpu():
    done = ranks.launch(HERE / "programs" / "graph_pairs.py", 2, timeout=120, EMULATED_DEVICES=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as on the CPU") == 2


class Clipped(nn.Graph):
    def __init__(self, model, optimizer, clip, passes):
        super().__init__()
        self.model, self.clip = model, clip
        self.add_optimizer(optimizer)
        if not passes:
            self.config.disable_passes("narrow_gradients")

    def build(self, x, y):
        with flow.autocast("cuda", dtype=flow.bfloat16):
            loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        if self.clip == "value":
            nn.utils.clip_grad_value_(self.model.parameters(), 1e-3)
        for _ in range({"norm": 1, "norm twice": 2}.get(self.clip, 0)):
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        return loss


@pytest.mark.parametrize("clip", [None, "norm", "norm twice", "value"])
@pytest.mark.parametrize("rule", ["AdamW", "LAMB"])
def test_updates_read_narrow_gradients_as_they_are(rule, clip):
    """With the bits of gradients that are cast first."""
    found = []
    for passes in (True, False):
        flow.manual_seed(2)
        model = MLP().to("cuda")
        graph = Clipped(model, getattr(flow.optim, rule)(model.parameters(), lr=1e-2), clip, passes)
        for x, y in batches():
            graph(flow.tensor(x).to("cuda"), flow.tensor(y).to("cuda"))
        assert graph.stats()["recorded"] == 1
        found.append(([p.detach().cpu().numpy() for p in model.parameters()], graph.plan().count("cast(")))
    for a, b in zip(found[0][0], found[1][0]):
        np.testing.assert_array_equal(a, b)
    saved = found[1][1] - found[0][1]
    assert saved >= 4 if clip in (None, "norm") else saved == 0
