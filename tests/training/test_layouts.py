"""The example's GPT trains alike on one rank and on every layout of several."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import holon

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt"
SMALL = ["--layers", "2", "--width", "32", "--heads", "4", "--length", "32", "--batch", "8", "--lr", "0.003"]


@pytest.fixture(scope="module")
def example():
    """The example's three files, as modules that find each other."""
    names, modules = ("data", "model", "train"), {}
    before = {name: sys.modules.get(name) for name in names}
    try:
        for name in names:
            spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
            modules[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(modules[name])
        yield modules
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


TEXT = np.frombuffer(b"def f(x):\n    return x + 1\n\nclass A:\n    pass\n\n" * 200, np.uint8)


def curve(example, dp, tp, steps, *flags, stages=1):
    def run(rank):
        options = example["train"].arguments(
            [*SMALL, "--dp", str(dp), "--tp", str(tp), "--pipeline", str(stages), "--steps", str(steps), *flags]
        )
        return example["train"].train(options, TEXT)[1]

    results = holon.run_ranks(dp * tp * stages, run)
    assert all(r == results[0] for r in results)
    return results[0]


@pytest.fixture(scope="module")
def one_rank(example):
    return curve(example, 1, 1, 50)


def test_one_rank_learns(one_rank):
    assert abs(one_rank[0] - np.log(256)) < 0.3 and one_rank[-1] < 0.5 * one_rank[0]


@pytest.mark.parametrize("dp, tp", [(2, 1), (1, 2), (2, 2), (3, 1)], ids=lambda n: str(n))
def test_layout_follows_one_rank(example, one_rank, dp, tp):
    np.testing.assert_allclose(curve(example, dp, tp, 50), one_rank, rtol=1e-3)


@pytest.mark.parametrize(
    "dp, tp, stages, micro_batches",
    [(1, 1, 1, 1), (1, 1, 1, 4), (2, 2, 1, 1), (1, 1, 2, 4), (1, 2, 2, 2), (2, 2, 2, 4)],
    ids=lambda n: str(n),
)
def test_compiled_steps_follow_eager_ones(example, one_rank, dp, tp, stages, micro_batches):
    losses = curve(example, dp, tp, 25, "--graph", "--micro-batches", str(micro_batches), stages=stages)
    np.testing.assert_allclose(losses, one_rank[:25], rtol=1e-3)


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--pipeline", "2"], "2 ranks; 1 are running"),
        (["--micro-batches", "3"], "not a multiple"),
        (["--micro-batches", "-1"], "less than one"),
        (["--tp", "0"], "less than one"),
    ],
)
def test_what_does_not_divide_is_an_error(example, capsys, flags, said):
    with pytest.raises(SystemExit):
        example["train"].arguments([*SMALL, *flags])
    assert said in capsys.readouterr().err


def test_split_of_the_text(example, tmp_path):
    data = example["data"]
    for i in range(30):
        (tmp_path / f"{i}.py").write_bytes(bytes([i]) * 5000)
    train, held_out = data.load([tmp_path / f"{i}.py" for i in range(30)])
    assert not set(np.unique(train)) - {10} & set(np.unique(held_out)) - {10}
    assert len(np.unique(train)) + len(np.unique(held_out)) >= 30
    seen, following = data.batch(train, np.random.default_rng(0), 4, 8)
    assert seen.shape == following.shape == (4, 8) and (seen[:, 1:] == following[:, :-1]).all()


def test_bigram_loss(example):
    # After a comes b three times of four (and once added to each of 256): known by hand.
    train = np.frombuffer(b"abacabab", np.uint8)
    pairs = [(np.array([[ord("a")]]), np.array([[ord("b")]]))]
    assert example["data"].bigram_loss(train, pairs) == pytest.approx(-np.log(4 / 260))
