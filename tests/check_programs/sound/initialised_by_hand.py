# layouts: 2; 3
# Every rank draws its own numbers, and the first one's count.
import holon as flow

rank = flow.env.get_rank()
everyone = flow.placement.all("cpu")
w = flow.randn(6, 6).to_global(everyone, flow.sbp.broadcast).requires_grad_()
x = flow.randn(6, 6, placement=everyone, sbp=flow.sbp.split(0))
for _ in range(3):
    loss = (x @ w).square().sum()
    loss.backward()
    with flow.no_grad():
        w -= 0.01 * w.grad
    w.grad = None
    if rank == 0:
        print("done")
