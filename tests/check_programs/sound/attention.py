# layouts: 2; 4
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
split, copy = flow.sbp.split, flow.sbp.broadcast
flow.manual_seed(4)
heads, width = 4, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(flow.randn(heads * width, heads * width, placement=everyone, sbp=split(1)) * 0.2)
        self.k = nn.Parameter(flow.randn(heads * width, heads * width, placement=everyone, sbp=split(1)) * 0.2)
        self.v = nn.Parameter(flow.randn(heads * width, heads * width, placement=everyone, sbp=split(1)) * 0.2)
        self.out = nn.Parameter(flow.randn(heads * width, heads * width, placement=everyone, sbp=split(0)) * 0.2)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = ((x @ w).reshape(n, t, heads, width).transpose(1, 2) for w in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) / width**0.5
        mask = flow.tril(flow.ones(t, t, placement=everyone, sbp=copy))
        scores = scores.masked_fill(mask == 0, -1e9)
        y = flow.softmax(scores, dim=-1) @ v
        return (y.transpose(1, 2).reshape(n, t, c) @ self.out).to_global(sbp=copy)


model = Attention()
optimizer = flow.optim.Adam(model.parameters(), lr=0.01)
for _ in range(2):
    x = flow.randn(2, 6, heads * width, placement=everyone, sbp=copy)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
