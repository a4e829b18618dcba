"""Data-parallel training: the ranks share the rows of a batch, and nothing but the layout says so.

    python -m holon.distributed.launch --nproc_per_node 2 examples/python/data_parallel.py

The weights are broadcast, the data is split; their gradients are then summed over the ranks without a line for it. The
losses are those of one rank.
"""

import numpy as np

import holon as flow
from holon import nn, optim


def main():
    flow.manual_seed(0)
    everywhere = flow.placement.all("cpu")
    whole, rows = flow.sbp.broadcast, flow.sbp.split(0)
    model = nn.Sequential(
        nn.Linear(16, 64, placement=everywhere, sbp=whole), nn.Tanh(), nn.Linear(64, 1, placement=everywhere, sbp=whole)
    )
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(16, 1))
    for step in range(101):
        x = rng.normal(size=(64, 16))
        x, y = (flow.tensor(a.astype(np.float32), placement=everywhere, sbp=rows) for a in (x, np.sin(x @ truth)))
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        if step % 25 == 0 and flow.env.get_rank() == 0:
            print(f"step {step:3d}  loss {value:.6f}")


if __name__ == "__main__":
    main()
