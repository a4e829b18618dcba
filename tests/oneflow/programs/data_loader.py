"""Loading data: a DistributedSampler and local batches made global by to_global (each rank brings its rows), under the
global view, and DDP on local tensors with flow.comm. All three train alike."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn
from oneflow.utils.data import DataLoader, Dataset, TensorDataset, random_split
from oneflow.utils.data.distributed import DistributedSampler

RANK, WORLD = flow.env.get_rank(), flow.env.get_world_size()
P = flow.env.all_device_placement("cpu")
N, BATCH = 16, 8


class Circles(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(5)
        self.x = rng.standard_normal((n, 2)).astype(np.float32)
        self.y = (np.linalg.norm(self.x, axis=1) > 1).astype(np.int64)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return flow.from_numpy(self.x[i]), int(self.y[i])


def net():
    flow.manual_seed(8)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))


def loader(dataset):
    sampler = DistributedSampler(dataset, num_replicas=WORLD, rank=RANK, shuffle=False)
    return sampler, DataLoader(dataset, batch_size=BATCH // WORLD, sampler=sampler, num_workers=0, drop_last=True)


def train_global(dataset):
    model = net().to_global(placement=P, sbp=flow.sbp.broadcast)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    sampler, batches = loader(dataset)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in batches:
            x = x.to_global(placement=P, sbp=flow.sbp.split(0))
            y = y.to_global(placement=P, sbp=flow.sbp.split(0))
            assert x.shape == (BATCH, 2) and y.dtype == flow.int64
            loss = nn.CrossEntropyLoss()(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.numpy().item())
    return losses, model[0].weight.numpy()


def train_ddp(dataset):
    model = nn.parallel.DistributedDataParallel(net())
    optimizer = flow.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    sampler, batches = loader(dataset)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            whole = loss.detach().clone()
            flow.comm.all_reduce(whole)
            losses.append(whole.item() / WORLD)
    return losses, model[0].weight.numpy()


def main():
    dataset = Circles(N)
    by_global, weight = train_global(dataset)
    by_ddp, other = train_ddp(dataset)
    np.testing.assert_allclose(by_ddp, by_global, rtol=1e-4)
    np.testing.assert_allclose(other, weight, rtol=1e-3, atol=1e-5)
    gathered = [flow.zeros(16, 2) for _ in range(WORLD)]
    flow.comm.all_gather(gathered, flow.tensor(other))
    assert all(flow.equal(g, gathered[0]) for g in gathered)

    first, second = random_split(dataset, [10, 6])
    assert len(first) == 10 and len(second) == 6
    pairs = TensorDataset(flow.arange(6), flow.arange(6) * 2)
    seen = [int(a) for a, b in DataLoader(pairs, batch_size=None, shuffle=False)]
    assert seen == list(range(6))
    flow.comm.barrier()
    print("result", *(f"{v:.5f}" for v in by_global))


if __name__ == "__main__":
    main()
