"""comm's collectives on tensors of devices, and send and recv."""

import sys

import numpy as np

import holon as flow
from holon import comm

rank, world = flow.env.get_rank(), flow.env.get_world_size()
device = flow.device("cuda")


def mine(r=rank, rows=3):
    return np.arange(rows * 4, dtype="float32").reshape(rows, 4) * (r + 1)


def host(t):
    assert t.device.type == "cuda"
    return t.cpu().numpy()


x = flow.tensor(mine()).to(device)
comm.all_reduce(x)
np.testing.assert_array_equal(host(x), sum(mine(r) for r in range(world)))

x = flow.tensor(mine()).to(device)
comm.broadcast(x, 1)
np.testing.assert_array_equal(host(x), mine(1))

out = [flow.zeros(3, 4, device=device) for _ in range(world)]
comm.all_gather(out, flow.tensor(mine()).to(device))
for r in range(world):
    np.testing.assert_array_equal(host(out[r]), mine(r))

whole = flow.tensor(np.concatenate([mine() + r for r in range(world)])).to(device)
part = flow.zeros(3, 4, device=device)
comm.reduce_scatter(part, [whole[3 * r : 3 * r + 3] for r in range(world)])
np.testing.assert_array_equal(host(part), sum(mine(r) + rank for r in range(world)))

out = [flow.zeros(3, 4, device=device) for _ in range(world)]
comm.all_to_all(out, [flow.tensor(mine() + r).to(device) for r in range(world)])
for r in range(world):
    np.testing.assert_array_equal(host(out[r]), mine(r) + rank)

if rank == 0:
    comm.send(flow.tensor(mine()).to(device).T, 1)
    comm.send(flow.tensor(mine()).to(device), 1, send_meta=False)
elif rank == 1:
    np.testing.assert_array_equal(comm.recv(0).numpy(), mine(0).T)
    np.testing.assert_array_equal(host(comm.recv(0, shape=[3, 4], dtype=flow.float32, device=device)), mine(0))
# What a rank gives on the CPU to a placement of devices.
t = flow.tensor(mine()).to_global(flow.placement("cuda", list(range(world))), flow.sbp.broadcast)
np.testing.assert_array_equal(host(t.to_local()), mine(0))
flags = (
    flow.tensor(np.array([rank == 0, False, rank == world - 1]))
    .to(device)
    .to_global(flow.placement("cuda", list(range(world))), flow.sbp.split(0))
)
np.testing.assert_array_equal(flags.to_global(sbp=flow.sbp.broadcast).to_local().cpu().numpy().sum(), 2)
sys.stdout.write(f"rank {rank}: all right\n")
