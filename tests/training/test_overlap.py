"""Gradients that are summed while backward goes on: training has the same bits, by processes and by threads."""

import os

import pytest
from harness.ranks import launch

import holon as flow

PROGRAM = """
import hashlib, sys
import holon as flow
import holon.nn as nn

def train(rank=None):
    flow.manual_seed(3)
    everybody = flow.placement.all("cpu")
    spec = {"placement": everybody, "sbp": flow.sbp.broadcast}
    model = nn.Sequential(nn.Linear(60, 200), nn.Tanh(), nn.Linear(200, 300), nn.Tanh(), nn.Linear(300, 10))
    model = model.to_global(**spec)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = flow.randn(900, 60, placement=everybody, sbp=flow.sbp.split(0))
    y = flow.randn(900, 10, placement=everybody, sbp=flow.sbp.split(0))
    for _ in range(4):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().to_local().numpy().tobytes())
    return digest.hexdigest()
"""


@pytest.fixture
def setting():
    names = ("HOLON_OVERLAP", "HOLON_GRADIENT_BUCKET_MB")
    before = {n: os.environ.pop(n, None) for n in names}
    yield os.environ
    for n in names:
        os.environ.pop(n, None)
        if before[n] is not None:
            os.environ[n] = before[n]


def test_threads(setting):
    scope = {}
    exec(PROGRAM, scope)
    setting["HOLON_OVERLAP"] = "0"
    expected = flow.run_ranks(3, scope["train"])
    assert len(set(expected)) == 1
    setting["HOLON_OVERLAP"] = "1"
    for mib in ("0.01", "0.2", "50"):
        setting["HOLON_GRADIENT_BUCKET_MB"] = mib
        assert flow.run_ranks(3, scope["train"]) == expected, mib


def test_processes(setting, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM + "\nprint('parameters', train())\n")

    def run(overlap, mib):
        done = launch(program, 2, HOLON_OVERLAP=overlap, HOLON_GRADIENT_BUCKET_MB=mib)
        assert done.returncode == 0, done.stderr
        found = {line.split("parameters ")[1] for line in done.stdout.splitlines() if "parameters " in line}
        assert len(found) == 1, done.stdout
        return found

    assert run("0", "4") == run("1", "0.01") == run("1", "0.2")
