# layouts: 2; 4
import holon as flow

world = flow.env.get_world_size()
everyone = flow.placement.all("cpu")
x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
w = flow.randn(6, 8, placement=everyone, sbp=flow.sbp.split(1))
y = flow.matmul(x.to_global(sbp=flow.sbp.broadcast), w)
z = flow.matmul(y, w.transpose(0, 1)).to_global(sbp=flow.sbp.broadcast)
z = z.softmax(-1)
print(z.shape, z.sum().item())
