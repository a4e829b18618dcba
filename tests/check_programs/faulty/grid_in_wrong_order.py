# layouts: 4
# kind: wrong slice
# Tiles of a matrix are put together with the axes of the grid exchanged (pytorch/pytorch#160266).
import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
side = int(world**0.5)
grid = flow.placement("cpu", [[r * side + c for c in range(side)] for r in range(side)])
flow.manual_seed(1)
whole = flow.randn(4, 4)
n = 4 // side
row, column = rank // side, rank % side
tile = whole[row * n : (row + 1) * n, column * n : (column + 1) * n]
x = tile.to_global(grid, [flow.sbp.split(1), flow.sbp.split(0)])  # BUG
w = flow.randn(4, 4, placement=grid, sbp=[flow.sbp.broadcast, flow.sbp.broadcast])
print((x @ w).numpy())
