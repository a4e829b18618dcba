"""One tensor on two ranks: python -m holon.distributed.launch --nproc_per_node 2 examples/python/hello.py"""

import holon as flow

placement = flow.placement.all("cpu")
x = (
    flow.arange(8, dtype=flow.float32)
    .reshape(4, 2)
    .to_global(placement, flow.sbp.broadcast)
    .to_global(sbp=flow.sbp.split(0))
)
total = x.sum()
print(
    f"rank {flow.env.get_rank()} of {flow.env.get_world_size()} holds {x.to_local().tolist()} of {tuple(x.shape)}; "
    f"the sum is {total.item()}"
)
