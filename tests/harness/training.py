"""A training for tests that interrupt one: split weights, dropout, shuffled batches, a schedule and a scaler."""

import holon
from holon import nn, optim, utils


class Training:
    def __init__(self, seed, layout, **options):
        holon.manual_seed(seed)
        everywhere = holon.placement.all("cpu")
        where = {"placement": everywhere, "sbp": layout}
        self.model = nn.Sequential(nn.Linear(6, 8, **where), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 4, **where))
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 40)
        self.scaler = holon.amp.GradScaler(init_scale=2.0**10, growth_interval=7)
        data = utils.data.TensorDataset(holon.arange(6 * 37).reshape(37, 6).to(holon.float32) / 100)
        self.loader = utils.data.DataLoader(
            data, 4, shuffle=True, generator=7, drop_last=True, placement=everywhere, sbp=holon.sbp.split(0)
        )
        self.batches = self.endless()
        self.options = options

    def endless(self):
        while True:
            yield from self.loader

    def checkpointer(self, folder, **more):
        return holon.checkpoint.Checkpointer(
            folder,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.schedule,
            scaler=self.scaler,
            loader=self.loader,
            **{**self.options, **more},
        )

    def train(self, steps):
        losses = []
        for _ in range(steps):
            (x,) = next(self.batches)
            loss = (self.model(x) ** 2).mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
            losses.append(loss.item())
        return losses
