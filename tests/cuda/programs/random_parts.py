"""A rank's part of a random tensor on devices is its part on the CPU, however the tensor is split."""

import numpy as np

import holon as flow

world = flow.env.get_world_size()
S, B = flow.sbp.split, flow.sbp.broadcast


def local(x):
    x = x.to_local().cpu()
    return (x.to(flow.float32) if x.dtype == flow.bfloat16 else x).numpy()


def compare(draw):
    parts = []
    for kind in ["cpu", "cuda"]:
        flow.manual_seed(5)
        parts.append(local(draw(flow.placement(kind, list(range(world))))))
    np.testing.assert_array_equal(*parts)


for shape in [(130,), (6, 200), (9, 7, 35), (4, 3)]:
    for sbp in [B] + [S(a) for a in range(len(shape))]:
        for dtype in [flow.float32, flow.float64, flow.bfloat16]:
            compare(lambda where: flow.randn(*shape, placement=where, sbp=sbp, dtype=dtype))
            compare(lambda where: flow.rand(*shape, placement=where, sbp=sbp, dtype=dtype))
        compare(lambda where: flow.randint(0, 1000, shape, placement=where, sbp=sbp))
        compare(
            lambda where: flow.nn.functional.dropout(flow.ones(*shape, placement=where, sbp=sbp), 0.4, training=True)
        )
compare(lambda where: flow.randperm(501, placement=where, sbp=S(0)))
compare(lambda where: flow.arange(0, 501, placement=where, sbp=S(0)))
compare(lambda where: flow.eye(31, 17, placement=where, sbp=S(1)))
compare(lambda where: flow.tril(flow.ones(31, 17, placement=where, sbp=S(0)), 2))
compare(lambda where: flow.multinomial(flow.ones(31, 17, placement=where, sbp=S(0)), 40, replacement=True))
print("the parts are the same")
