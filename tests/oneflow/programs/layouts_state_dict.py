"""State dicts between layouts: a model trained under one placement and sbp goes on under another, through global and
through local values, with its optimizer and its schedule."""

import copy

import numpy as np
import oneflow as flow
import oneflow.nn as nn
from oneflow.utils.global_view import to_global, to_local

P = flow.placement.all("cpu")
FIRST = flow.placement("cpu", ranks=[0])
B, S = flow.sbp.broadcast, flow.sbp.split


def mlp(placement, sbp):
    flow.manual_seed(21)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 6))
    return model.to_global(placement=placement, sbp=B).to_global(placement=placement, sbp=sbp)


def data(step, placement):
    rng = np.random.default_rng(step)
    x = rng.standard_normal((4, 6)).astype(np.float32)
    return flow.tensor(x, placement=placement, sbp=B), flow.tensor(np.roll(x, 1, 1).copy(), placement=placement, sbp=B)


def step(model, optimizer, schedule, i, placement):
    x, y = data(i, placement)
    loss = flow.nn.functional.mse_loss(model(x), y, reduction="sum")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    schedule.step()
    return float(loss.numpy())


def tools(model):
    optimizer = flow.optim.Adam(model.parameters(), lr=0.02)
    return optimizer, flow.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def main():
    model = mlp(P, S(0))
    optimizer, schedule = tools(model)
    losses = [step(model, optimizer, schedule, i, P) for i in range(3)]
    state = copy.deepcopy(model.state_dict())
    optimizer_state, schedule_state = copy.deepcopy(optimizer.state_dict()), schedule.state_dict()
    expected = [step(model, optimizer, schedule, i, P) for i in range(3, 6)]

    layouts = [(P, S(1)), (P, B), (FIRST, B)]
    for placement, sbp in layouts:
        other = mlp(placement, B)
        if sbp == S(1):
            other.to_global(placement, {"*.weight": S(1), "*.bias": S(0)})
        own = {k: (v.placement, v.sbp) for k, v in other.state_dict().items()}
        missing, unexpected = other.load_state_dict(state)
        assert missing == [] and unexpected == []
        assert {k: (v.placement, v.sbp) for k, v in other.state_dict().items()} == own
        other_optimizer, other_schedule = tools(other)
        other_optimizer.load_state_dict(optimizer_state)
        other_schedule.load_state_dict(schedule_state)
        again = [step(other, other_optimizer, other_schedule, i, placement) for i in range(3, 6)]
        np.testing.assert_allclose(again, expected, rtol=1e-4)

    # Through the local view: whole on each rank, and back.
    whole = to_local(to_global(state, placement=P, sbp=lambda d, t: B))
    assert all(v.is_local for v in whole.values()) and whole["0.weight"].shape == flow.Size([10, 6])
    local = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 6))
    local.load_state_dict(whole)
    x, _ = data(9, P)
    back = mlp(P, B)
    back.load_state_dict(to_global(whole, placement=P, sbp=B))
    np.testing.assert_allclose(local(x.to_local()).numpy(), back(x).numpy(), rtol=1e-5)
    try:
        back.load_state_dict(whole)
    except RuntimeError as error:
        assert "local / global mismatch" in str(error)
    else:
        raise AssertionError("local values were taken for global parameters")
    parts = to_local({"nested": [state["0.weight"], (state["0.bias"],)]})
    assert parts["nested"][0].shape[0] == 10 // flow.env.get_world_size() + (
        flow.env.get_rank() < 10 % flow.env.get_world_size()
    )
    print("result", *(f"{v:.5f}" for v in losses + expected))


if __name__ == "__main__":
    main()
