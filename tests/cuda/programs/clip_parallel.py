"""Gradients of global parameters on devices are clipped as on the CPU, without a wait of the host, and all ranks get
the same bits; so do steps of a graph, which are one recording."""

import ctypes
import os
import sys

import numpy as np

import holon as flow
from holon import nn

rank, world = flow.env.get_rank(), flow.env.get_world_size()
S, B, P = flow.sbp.split, flow.sbp.broadcast, flow.sbp.partial_sum
LAYOUTS = {
    "broadcast": [B, B, B],
    "split": [S(0), S(1), S(0)],
    "mixed": [B, S(0), S(1)],
    "partial": [P, S(0), B],
    "some local": [None, S(0), B],
}
SHAPES = [(7, 3), (40, 130), (5, 6)]


def waits():
    library = os.environ.get("HOLON_CUDA_LIBRARY", "")
    return ctypes.CDLL(library).emulated_wait_count() if "emulated" in library else 0


def everywhere(t):
    """The bits that each rank has of it."""
    place = flow.placement("cpu", list(range(world)))
    return t.cpu().reshape(1).to_global(place, S(0)).numpy()


def clipped(kind, layout, norm_type):
    rng, place = np.random.default_rng(2), flow.placement(kind, list(range(world)))
    params = []
    for shape, sbp in zip(SHAPES, layout):
        value = flow.tensor(rng.standard_normal(shape).astype("f")).to(kind)
        if sbp is None:
            p, g = value, value * 2
        else:
            p = value.to_global(place, B).to_global(place, B if sbp == P else sbp)
            g = (value * 2).to_global(place, B).to_global(place, sbp)
        p = p.detach().requires_grad_()
        p.grad = g
        params.append(p)
    before = waits()
    norm = nn.utils.clip_grad_norm_(params, 0.5, norm_type)
    assert kind == "cpu" or waits() == before or "EMULATED_NO_NCCL" in os.environ, (layout, waits() - before)
    assert norm.device.type == kind
    whole = [p.grad.numpy() if p.is_global else p.grad.cpu().numpy() for p in params]
    return norm, whole


for name, layout in LAYOUTS.items():
    for norm_type in (2.0, 1.0, 3.0, 0.0, float("inf"), float("-inf")):
        here, there = clipped("cpu", layout, norm_type), clipped("cuda", layout, norm_type)
        np.testing.assert_allclose(float(there[0]), float(here[0]), rtol=1e-6, err_msg=f"{name} {norm_type}")
        assert len(set(everywhere(there[0]))) == 1
        for a, b in zip(here[1], there[1]):
            np.testing.assert_allclose(b, a, rtol=2e-6, atol=1e-8, err_msg=f"{name} {norm_type}")


class Step(nn.Graph):
    def __init__(self, net, optimizer):
        super().__init__()
        self.net = net
        self.add_optimizer(optimizer)

    def build(self, x):
        loss = self.net(x).square().mean()
        loss.backward()
        return loss


def trained(kind, norm_type):
    flow.manual_seed(4)
    place = flow.placement(kind, list(range(world)))
    net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5)).to_global(place, B)
    net[0].to_global(place, S(0))
    net[2].weight = nn.Parameter(net[2].weight.detach().to_global(place, S(1)))
    group = {"params": list(net.parameters()), "lr": 0.1, "clip_grad_max_norm": 0.05, "clip_grad_norm_type": norm_type}
    step = Step(net, flow.optim.SGD([group], momentum=0.9))
    rng, norms = np.random.default_rng(3), []
    for _ in range(4):
        x = flow.tensor(rng.standard_normal((8, 12)).astype("f")).to(kind).to_global(place, B)
        step(x)
        norms.append(step.grad_norms()[0])
    return step.stats()["recorded"], norms, [p.numpy() for p in net.parameters()]


for norm_type in (2.0, float("inf")):
    here, there = trained("cpu", norm_type), trained("cuda", norm_type)
    assert there[0] == (1 if os.environ.get("HOLON_CUDA_GRAPHS", "1") == "1" else 0), there[0]
    np.testing.assert_allclose(there[1], here[1], rtol=1e-5)
    assert max(here[1]) > 0.05
    for a, b in zip(here[2], there[2]):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=1e-6)
sys.stdout.write(f"rank {rank}: clipped alike\n")
