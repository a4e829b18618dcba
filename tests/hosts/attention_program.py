"""Attention over a sequence that is split over ranks of several hosts: results and gradients to a file."""

import sys

import numpy as np

import holon as flow


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


ARRAYS = [drawn(i, 2, 4, 301, 8) for i in range(4)]
OPTIONS = [{"is_causal": True}, {"is_causal": True, "window": 40}, {}]


def results(tensor):
    """Of all options: the result and the gradients of query, key and value."""
    found = []
    for options in OPTIONS:
        q, k, v, dy = (tensor(a) for a in ARRAYS)
        y = flow.scaled_dot_product_attention(*(t.requires_grad_() for t in (q, k, v)), **options)
        found += [y.detach(), *flow.autograd.grad(y, (q, k, v), dy)]
    return found


if __name__ == "__main__":
    placement = flow.placement.all("cpu")
    outs = results(lambda a: flow.tensor(a, placement=placement, sbp=flow.sbp.split(2)))
    arrays = [o.to_global(placement, flow.sbp.broadcast).to_local().numpy() for o in outs]
    if flow.env.get_rank() == 0:
        np.savez(sys.argv[1], *arrays)
