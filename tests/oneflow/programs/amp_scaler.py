"""Mixed precision: flow.autocast with a GradScaler in eager mode,
and config.enable_amp with set_grad_scaler in nn.Graph. The curves are near that of float32."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn

P = flow.placement.all("cpu")
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)


def setup():
    flow.manual_seed(9)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1)).to_global(P, B)
    optimizer = flow.optim.SGD(
        [{"params": model.parameters(), "clip_grad_max_norm": 1.0, "clip_grad_norm_type": 2.0}], lr=0.1, momentum=0.5
    )
    return model, optimizer


def batches():
    rng = np.random.default_rng(2)
    for _ in range(5):
        x = rng.standard_normal((8, 8)).astype(np.float32)
        yield (flow.tensor(a, placement=P, sbp=S0) for a in (x, np.sin(x.sum(1, keepdims=True))))


def eager(amp):
    model, optimizer = setup()
    scaler = flow.amp.GradScaler(
        init_scale=2.0**10, growth_factor=2.0, backoff_factor=0.5, growth_interval=1000, enabled=amp
    )
    losses = []
    for x, y in batches():
        with flow.autocast("cpu", dtype=flow.bfloat16, enabled=amp):
            out = model(x)
            assert out.dtype == (flow.bfloat16 if amp else flow.float32)
            loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optimizer.clip_grad()
        assert model[0].weight.grad.dtype == flow.float32
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    # Gradients that are not finite: the step is left out, and the scale falls.
    before, scale = model[0].weight.numpy(), scaler.get_scale()
    scaler.scale(model(x).sum() * float("inf")).backward()
    if amp:
        scaler.step(optimizer)
        scaler.update()
        np.testing.assert_array_equal(model[0].weight.numpy(), before)
        assert scaler.get_scale() == scale / 2
    return losses


class AmpGraph(nn.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.mse = nn.MSELoss()
        self.add_optimizer(optimizer)
        self.config.enable_amp(True)
        self.set_grad_scaler(flow.amp.StaticGradScaler(2.0**8))

    def build(self, x, y):
        loss = self.mse(self.model(x).to(flow.float32), y)
        loss.backward()
        return loss


def main():
    full, mixed = eager(False), eager(True)
    graph = AmpGraph(*setup())
    compiled = [graph(x, y).numpy().item() for x, y in batches()]
    np.testing.assert_allclose(mixed, full, rtol=0.05, atol=0.02)
    np.testing.assert_allclose(compiled, full, rtol=0.05, atol=0.02)
    assert mixed != full
    print("result", *(f"{v:.5f}" for v in full))


if __name__ == "__main__":
    main()
