"""Checkpoints by flow.save and flow.load: of a global model and its optimizer, which goes on under another layout;
of local values; and of a graph's state."""

import os
import tempfile

import numpy as np
import oneflow as flow
import oneflow.nn as nn

P = flow.placement.all("cpu")
B, S = flow.sbp.broadcast, flow.sbp.split


def folder():
    """One for all ranks: rank 0 makes it and tells the others its name."""
    name = tempfile.mkdtemp() if flow.env.get_rank() == 0 else ""
    text = np.zeros(256, np.uint8)
    text[: len(name)] = np.frombuffer(name.encode(), np.uint8)
    text = flow.tensor(text)
    flow.comm.broadcast(text, 0)
    return bytes(text.numpy()).rstrip(b"\0").decode()


def build(sbp):
    flow.manual_seed(13)
    model = (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        .to_global(placement=P, sbp=B)
        .to_global(placement=P, sbp=sbp)
    )
    return model, flow.optim.Adam(model.parameters(), lr=0.05)


def step(model, optimizer, i):
    x = np.random.default_rng(i).standard_normal((4, 4)).astype(np.float32)
    loss = model(flow.tensor(x, placement=P, sbp=S(0))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.numpy().item()


def main():
    path = folder()
    model, optimizer = build(B)
    losses = [step(model, optimizer, i) for i in range(3)]
    flow.save(model.state_dict(), os.path.join(path, "model"), global_dst_rank=0)
    flow.save({"optimizer": optimizer.state_dict(), "step": 3}, os.path.join(path, "rest"), global_dst_rank=0)
    expected = [step(model, optimizer, i) for i in range(3, 6)]

    other, other_optimizer = build(S(0))
    other.load_state_dict(flow.load(os.path.join(path, "model"), global_src_rank=0))
    rest = flow.load(os.path.join(path, "rest"), global_src_rank=0)
    other_optimizer.load_state_dict(rest["optimizer"])
    assert rest["step"] == 3 and other[0].weight.sbp == (S(0),)
    np.testing.assert_allclose([step(other, other_optimizer, i) for i in range(3, 6)], expected, rtol=1e-4)

    flow.comm.barrier()
    if flow.env.get_rank() == 0:
        local = nn.Linear(3, 3)
        flow.save(local.state_dict(), os.path.join(path, "local"))
        again = nn.Linear(3, 3)
        again.load_state_dict(flow.load(os.path.join(path, "local")))
        assert (again.weight.numpy() == local.weight.numpy()).all()
    flow.comm.barrier()
    print("result", *(f"{v:.5f}" for v in losses + expected))


if __name__ == "__main__":
    main()
