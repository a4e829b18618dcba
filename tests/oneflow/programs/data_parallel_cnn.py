"""A CNN on global tensors, data parallel: split images, broadcast parameters."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F

BATCH, STEPS = 8, 4
placement = flow.placement.all("cpu")


class Net(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, kernel_size=3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 12, 3, stride=2, padding=1, bias=False),
            nn.LeakyReLU(0.1),
            nn.AdaptiveAvgPool2d((2, 2)),
        )
        self.dropout = nn.Dropout(p=0.0)
        self.classifier = nn.Linear(12 * 2 * 2, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0, 0.01)
                nn.init.constant_(m.bias, 0)

    def forward(self, x):
        x = self.features(x)
        x = flow.flatten(x, 1)
        return self.classifier(self.dropout(x))


def batches():
    rng = np.random.default_rng(7)
    for _ in range(STEPS):
        labels = rng.integers(0, 10, BATCH)
        images = rng.standard_normal((BATCH, 1, 12, 12)).astype(np.float32) + labels[:, None, None, None] / 5
        yield images.astype(np.float32), labels


def train(placement, sbp):
    flow.manual_seed(42)
    model = Net().to_global(placement=placement, sbp=flow.sbp.broadcast)
    criterion = nn.CrossEntropyLoss().to("cpu")
    optimizer = flow.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    losses, model = [], model.train()
    for images, labels in batches():
        x = flow.tensor(images, placement=placement, sbp=sbp)
        y = flow.tensor(labels, dtype=flow.int64, placement=placement, sbp=sbp)
        logits = model(x)
        assert logits.is_global and logits.sbp == sbp, logits.sbp
        loss = criterion(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.to_global(sbp=flow.sbp.broadcast).to_local().item())
    assert losses[-1] < losses[0]
    model.eval()
    with flow.no_grad():
        correct = 0
        for images, labels in batches():
            out = F.softmax(model(flow.tensor(images, placement=placement, sbp=sbp)), dim=1)
            predicted = out.argmax(dim=1)
            correct += int((predicted == flow.tensor(labels, placement=placement, sbp=sbp)).sum().item())
    return losses, correct, model


def main():
    world = flow.env.get_world_size()
    split = (flow.sbp.split(0),)
    losses, correct, model = train(placement, split)
    weight = model.classifier.weight
    assert weight.shape == flow.Size([10, 48]) and weight.grad.sbp == (flow.sbp.broadcast,)
    assert weight.to_local().shape == (10, 48)
    x = flow.randn(BATCH, 3, placement=placement, sbp=split[0])
    assert x.to_local().shape[0] == BATCH // world
    print("result", *(f"{v:.5f}" for v in losses), correct)


if __name__ == "__main__":
    main()
