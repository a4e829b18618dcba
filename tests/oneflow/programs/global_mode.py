"""A program of local tensors that runs global:
in global_mode, tensors that it makes from nothing are global, and it may ask for devices."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn
from oneflow.utils.global_view import current_global_mode, global_mode

P = flow.placement.all("cpu")
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)


class Noisy(nn.Module):
    """Written for one device."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3, False)

    def forward(self, x):
        device = self.linear.weight.device
        x = x.to(device)
        out = self.linear(x)
        sample = flow.randn(out.shape, device="cpu").to(device)
        out = out + sample * 100
        out = out - sample * 100
        positions = flow.arange(0, out.shape[1], dtype=flow.float32, device=device)
        ones = flow.ones(out.shape[0], 1).to(device)
        mask = flow.zeros((1, out.shape[1]), dtype=flow.bool, device=x.device)
        scale = flow.tensor([2.0], device=device)
        return (out + positions * 0 + ones * 0).masked_fill(mask, -1e9) * scale


class Run(nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def build(self, x):
        with global_mode(True, placement=P, sbp=B):
            mode = current_global_mode()
            assert mode.is_enabled and mode.placement == P and mode.sbp[0] == B
            return self.model(x)


def main():
    assert not current_global_mode().is_enabled
    flow.manual_seed(0)
    model = Noisy().to_global(placement=P, sbp=B)
    data = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    x = flow.tensor(data, placement=P, sbp=S0)
    expected = 2 * data @ model.linear.weight.numpy().T
    with global_mode(True, placement=P, sbp=B):
        eager = model(x)
        made = flow.rand(2, 3)
        assert made.is_global and made.sbp == (B,) and made.placement == P
        assert flow.full((2,), 3.0).is_global and flow.eye(2).is_global and flow.randint(0, 3, (4,)).is_global
        with global_mode(False):
            assert flow.ones(2).is_local
        assert flow.ones(2).is_global
        assert flow.ones(4, placement=P, sbp=S0).sbp == (S0,)
    assert flow.ones(2).is_local
    compiled = Run(model)(x)
    for y in (eager, compiled):
        assert y.is_global and (y.sbp == (S0,) or P.ranks.size == 1)
        np.testing.assert_allclose(y.numpy(), expected, atol=1e-3)
    try:
        x.device  # noqa: B018
    except RuntimeError as error:
        assert "Only local tensors have 'device'" in str(error)
    else:
        raise AssertionError("a global tensor told a device outside of global_mode")
    print("result", f"{np.abs(expected).sum():.4f}")


if __name__ == "__main__":
    main()
