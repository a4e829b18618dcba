# layouts: 2
# kind: dropped gradient
# The last stage reads a copy of the first one's table, which has no way back (pipelines with tied embeddings).
import holon as flow

world = flow.env.get_world_size()
first, last = flow.placement("cpu", [0]), flow.placement("cpu", [world - 1])
flow.manual_seed(1)
table = flow.randn(10, 6, placement=first, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.SGD([table], lr=0.1)
for _ in range(2):
    ids = flow.randint(0, 10, (5,), placement=first, sbp=flow.sbp.broadcast)
    x = flow.nn.functional.embedding(ids, table).tanh()
    x = x.to_global(last, flow.sbp.broadcast)
    head = table
    if world > 1:
        head = table.detach().to_global(last, flow.sbp.broadcast)  # BUG
    loss = flow.nn.functional.cross_entropy(x @ head.transpose(0, 1), ids.to_global(last, flow.sbp.broadcast))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
