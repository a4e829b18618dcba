# layouts: 2
# kind: stale replica, rank-dependent branch
# A buffer is updated on the first rank only (Megatron-LM#7452: stale buffers).
import holon as flow
from holon import nn

rank, everyone = flow.env.get_rank(), flow.placement.all("cpu")


class Centre(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", flow.zeros(4))

    def forward(self, x):
        if rank == 0:
            self.mean.mul_(0.9).add_(x.mean(0).numpy().sum() * 0.1)  # BUG
        return x


centre = Centre()
flow.manual_seed(1)
for _ in range(3):
    x = flow.randn(8, 4)
    y = centre(x)
