# layouts: 2
# kind: drifted replicas, differs
# Weight decay is in the options of the first rank's optimizer only.
import holon as flow

rank, everyone = flow.env.get_rank(), flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 4, requires_grad=True)
optimizer = flow.optim.AdamW([w], lr=0.1, weight_decay=0.1 if rank == 0 else 0.0)
for _ in range(2):
    loss = (flow.randn(8, 6) @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # BUG
