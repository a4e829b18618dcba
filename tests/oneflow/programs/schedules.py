"""Learning-rate schedules in eager mode and in graphs, where the graph steps them: warm-ups, chains, plateaus."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn
from oneflow.optim import lr_scheduler

P = flow.placement.all("cpu")
B = flow.sbp.broadcast

SCHEDULES = {
    "step": lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.5),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, milestones=[2, 4], gamma=0.1),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=5, eta_min=0.01),
    "decay": lambda o: lr_scheduler.CosineDecayLR(o, decay_steps=5, alpha=0.1),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 6, 0.001, 1.0, False),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.8),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lr_lambda=[lambda s: 0.9**s]),
    "linear": lambda o: lr_scheduler.LinearLR(o, start_factor=0.5, end_factor=1.0, total_iters=3),
    "constant": lambda o: lr_scheduler.ConstantLR(o, factor=0.5, total_iters=3),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(
        o, T_0=2, T_mult=2, eta_min=0.01, decay_rate=0.5, restart_limit=0
    ),
    "warm cosine": lambda o: lr_scheduler.WarmUpLR(
        lr_scheduler.CosineDecayLR(o, 8), warmup_factor=0.1, warmup_iters=3, warmup_method="linear"
    ),
    "warm": lambda o: lr_scheduler.WarmupLR(o, warmup_factor=0.5, warmup_iters=2, warmup_method="constant"),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.ConstantLR(o, factor=0.1, total_iters=2), lr_scheduler.ExponentialLR(o, gamma=0.9)],
        milestones=[2],
        interval_rescaling=True,
    ),
    "chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, factor=0.5, total_iters=2), lr_scheduler.ExponentialLR(o, gamma=0.9)]
    ),
}


def parts(make):
    flow.manual_seed(2)
    model = nn.Linear(4, 1).to_global(placement=P, sbp=B)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, make(optimizer)


def eager(make):
    model, optimizer, schedule = parts(make)
    rates, losses = [], []
    for _ in range(6):
        loss = (model(0.3 * flow.ones(8, 4, placement=P, sbp=flow.sbp.split(0))) - 3.0).square().mean()
        loss.backward()
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.numpy().item())
    assert schedule.get_last_lr()[0] == optimizer.param_groups[0]["lr"]
    return rates, losses


class Train(nn.Graph):
    def __init__(self, model, optimizer, schedule):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, x):
        loss = (self.model(x) - 3.0).square().mean()
        loss.backward()
        return loss


def main():
    results = []
    for name, make in SCHEDULES.items():
        rates, losses = eager(make)
        model, optimizer, schedule = parts(make)
        graph = Train(model, optimizer, schedule)
        x = 0.3 * flow.ones(8, 4, placement=P, sbp=flow.sbp.split(0))
        compiled = [graph(x).numpy().item() for _ in range(6)]
        np.testing.assert_allclose(compiled, losses, rtol=1e-4, err_msg=name)
        results.append(sum(rates))
        if name == "step":
            np.testing.assert_allclose(rates, [0.1, 0.1, 0.05, 0.05, 0.025, 0.025])
        if name == "warm cosine":
            assert abs(rates[0] - 0.01) < 1e-9 and rates[3] > rates[0]
    model, optimizer, _ = parts(lambda o: None)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", factor=0.1, patience=1, threshold=1e-4)
    for metric in (1.0, 0.5, 0.5, 0.5):
        plateau.step(flow.tensor(metric))
    np.testing.assert_allclose(optimizer.param_groups[0]["lr"], 0.01)
    print("result", *(f"{v:.6f}" for v in results))


if __name__ == "__main__":
    main()
