# layouts: 2
# kind: local op on a global meaning
# Statistics of a split hidden axis are each rank's own (NVIDIA/Megatron-LM#1446).
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 8, placement=everyone, sbp=flow.sbp.split(1), requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for _ in range(2):
    x = flow.randn(4, 6, placement=everyone, sbp=flow.sbp.broadcast)
    h = (x @ w).to_local()
    h = flow.nn.functional.layer_norm(h, (h.shape[-1],))  # BUG
    loss = (h.to_global(everyone, flow.sbp.split(1)) - 0.5).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
