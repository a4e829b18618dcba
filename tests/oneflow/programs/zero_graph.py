"""ZeRO by nn.Graph: optimizer states, gradients and parameters split over the data-parallel ranks, at each of its three
stages; losses and parameters are those without."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn

P = flow.placement.all("cpu")
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)


def model():
    flow.manual_seed(3)
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    return net.to_global(placement=P, sbp=B)


class TrainGraph(nn.Graph):
    def __init__(self, net, zero_stage):
        super().__init__()
        self.net = net
        self.loss_fn = nn.MSELoss()
        optimizer = flow.optim.Adam(net.parameters(), lr=0.01)
        self.add_optimizer(optimizer)
        if zero_stage:
            self.config.enable_zero(True, stage=zero_stage, shard_min_size=1, shard_restore_level=0)

    def build(self, x, y):
        loss = self.loss_fn(self.net(x), y)
        loss.backward()
        return loss


def main():
    rng = np.random.default_rng(0)
    xs = rng.standard_normal((6, 8, 12)).astype(np.float32)
    ys = np.tanh(xs[..., :4] * 2 - xs[..., 4:8]).astype(np.float32)
    curves, weights = [], []
    for stage in (0, 1, 2, 3):
        net = model()
        graph = TrainGraph(net, stage)
        losses = []
        for x, y in zip(xs, ys):
            x, y = (flow.tensor(a, placement=P, sbp=S0) for a in (x, y))
            losses.append(graph(x, y).to_global(sbp=B).to_local().numpy().item())
        curves.append(losses)
        weights.append(net[2].weight.numpy())
        # Parameters themselves are split at stage 3 only.
        assert net[2].weight.sbp == (B,) or stage == 3
        state = graph.state_dict()
        assert set(state) >= {"net"} and state["net"]["0.weight"].shape == (32, 12)
    for losses, weight in zip(curves[1:], weights[1:]):
        np.testing.assert_allclose(losses, curves[0], rtol=1e-4)
        np.testing.assert_allclose(weight, weights[0], rtol=1e-3, atol=1e-5)
    print("result", *(f"{v:.5f}" for v in curves[0]))


if __name__ == "__main__":
    main()
