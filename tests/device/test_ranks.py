"""Programs on several ranks: boxing, a graph, and the GPT of examples/gpt, equal to the CPU's."""

from pathlib import Path

import numpy as np
import pytest
from harness import ranks
from harness.text import write_text

ROOT = ranks.ROOT
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("n", [1, 2, 4])
def test_every_boxing_is_that_of_the_cpu(n):
    done = ranks.launch(ROOT / "tests/cuda/programs/boxing_pairs.py", n, HOLON_TEST_DEVICE="toy")
    assert done.returncode == 0 and done.stdout.count("boxings") == n, done.stdout + done.stderr


@pytest.mark.parametrize("n", [1, 2])
def test_a_graph_trains_as_on_the_cpu(n):
    done = ranks.launch(HERE / "programs/graph.py", n)
    assert done.returncode == 0 and done.stdout.count("the same losses") == n, done.stdout + done.stderr


SMALL = ["--steps", 3, "--layers", 2, "--width", 32, "--length", 16, "--batch", 8, "--sample", 4]


def curve(tmp_path, n, device, flags):
    written = tmp_path / f"{device}.txt"
    arguments = [*SMALL, "--data", write_text(tmp_path), *flags, "--device", device, "--curve", written]
    done = ranks.launch(ROOT / "examples/gpt/train.py", n, 240, arguments=arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return np.loadtxt(written)


@pytest.mark.parametrize(
    "n, flags",
    [(1, []), (2, ["--tp", "2"]), (2, ["--dp", "2", "--graph"]), (2, ["--pipeline", "2"])],
    ids=["eager", "tp", "dp-graph", "pipeline"],
)
def test_gpt(tmp_path, n, flags):
    here, there = curve(tmp_path, n, "cpu", flags), curve(tmp_path, n, "toy", flags)
    assert here[-1] < here[0], "the CPU's loss does not fall"
    np.testing.assert_allclose(there, here, rtol=1e-6)
