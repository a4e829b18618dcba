"""The GPT of examples/gpt on cuda devices: each layout's curve is that of the CPU."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from harness import ranks  # noqa: E402
from harness.text import write_text  # noqa: E402

SMALL = [
    "--steps",
    4,
    "--layers",
    2,
    "--width",
    32,
    "--length",
    16,
    "--batch",
    8,
    "--sample",
    4,
]


def curve(tmp_path, n, device, flags):
    written = tmp_path / f"{device}.txt"
    done = ranks.launch(
        ROOT / "examples/gpt/train.py",
        n,
        240,
        arguments=[*SMALL, "--data", write_text(tmp_path), *flags, "--device", device, "--curve", written],
        EMULATED_DEVICES=2,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return np.loadtxt(written)


# --amp on either side rounds other sums to bfloat16.
@pytest.mark.parametrize(
    "n, flags, close",
    [
        (1, ["--graph", "--amp"], 2e-3),
        (2, ["--tp", "2"], 2e-5),
        (2, ["--dp", "2", "--graph"], 2e-5),
        (2, ["--pipeline", "2"], 2e-5),
    ],
    ids=["amp", "tp", "dp-graph", "pipeline"],
)
def test_curve(tmp_path, n, flags, close):
    here, there = curve(tmp_path, n, "cpu", flags), curve(tmp_path, n, "cuda", flags)
    assert here[-1] < here[0], "the CPU's loss does not fall"
    np.testing.assert_allclose(there, here, rtol=close)
