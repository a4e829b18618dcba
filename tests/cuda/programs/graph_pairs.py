"""nn.Graph over ranks with a cuda device each:
data parallel, ZeRO, a split model and two stages train as on the CPU."""

import sys

import numpy as np

import holon as flow
from holon import nn

RANKS = list(range(flow.env.get_world_size()))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(nn.functional.relu(self.a(x)))


class Train(nn.Graph):
    def __init__(self, model, optimizer, zero, micro):
        super().__init__()
        self.model, self.loss = model, nn.CrossEntropyLoss()
        self.add_optimizer(optimizer)
        if zero:
            self.config.enable_zero(True, stage=zero)
        if micro > 1:
            self.config.set_gradient_accumulation_steps(micro)

    def build(self, x, y):
        loss = self.loss(self.model(x), y)
        loss.backward()
        return loss


def train(device, how, clip=False):
    flow.manual_seed(0)
    place, sbp = flow.placement(device, RANKS), flow.sbp
    model = MLP().to_global(place, sbp.broadcast)
    if how == "split":
        model.a.to_global(place, sbp.split(0))
    groups = [
        {
            "params": list(model.parameters()),
            **({"clip_grad_max_norm": 0.1, "clip_grad_norm_type": 2.0} if clip else {}),
        }
    ]
    optimizer = flow.optim.AdamW(groups, lr=1e-2)
    step = Train(model, optimizer, zero={"zero1": 1, "zero2": 2}.get(how, 0), micro=2 if how == "micro" else 1)
    rng = np.random.default_rng(3)
    losses = []
    for _ in range(4):
        x, y = flow.tensor(rng.standard_normal((8, 8)).astype(np.float32)), flow.tensor(rng.integers(0, 4, 8))
        over = sbp.broadcast if how == "split" else sbp.split(0)
        x, y = (t.to_global(flow.placement("cpu", RANKS), sbp.broadcast).to_global(place, over) for t in (x, y))
        losses.append(step(x, y).to_global(place, sbp.broadcast).to_local().cpu().numpy().mean())
    return losses, [p.to_global(place, sbp.broadcast).to_local().cpu().numpy() for p in model.parameters()]


for how in ["data", "zero1", "zero2", "split", "micro"]:
    for clip in [False, True]:
        there, here = train("cuda", how, clip), train("cpu", how, clip)
        np.testing.assert_allclose(there[0], here[0], rtol=2e-5, atol=2e-5, err_msg=f"{how} {clip}")
        for a, b in zip(there[1], here[1]):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=f"{how} {clip}")
print("as on the CPU")
sys.stdout.flush()
