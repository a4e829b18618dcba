# layouts: 2
# kind: unsynchronised random numbers
# Copies of one activation drop other elements on each rank (tenstorrent/tt-metal#16823).
import holon as flow

rank, everyone = flow.env.get_rank(), flow.placement.all("cpu")
flow.manual_seed(1)
x = flow.randn(4, 8, placement=everyone, sbp=flow.sbp.broadcast)
w = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(1), requires_grad=True)
flow.manual_seed(10 + rank)
h = flow.nn.functional.dropout(x.to_local(), 0.5)  # BUG
part = h @ w.to_local()
loss = part.to_global(everyone, flow.sbp.split(1)).square().mean()
loss.backward()
print(loss.item())
