"""examples/pretrain: it learns, an interrupted run continues with the same numbers, and layouts do not change them."""

import importlib.util
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from harness.ranks import ROOT, run_example

SMALL = (
    "--depth 2 --length 48 --rows 4 --batch-tokens 384 --steps 10 --evaluate-every 5 --save-every 3 --sample 8".split()
)
TEXT = ["--text", *sorted(map(str, (ROOT / "examples/gpt").glob("*.py")))]


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("pretrain", ROOT / "examples/pretrain/pretrain.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def whole(program, tmp_path_factory):
    run = tmp_path_factory.mktemp("whole")
    return run, program.main([str(run), *TEXT, *SMALL])


def test_it_learns_and_writes_a_model(program, whole):
    run, losses = whole
    assert len(losses) == 10 and np.mean(losses[-3:]) < 0.85 * losses[0]
    np.testing.assert_allclose(np.loadtxt(run / "losses.txt"), losses, atol=1e-6)
    model = program.flow.models.from_pretrained(run / "model")
    assert model.config["num_hidden_layers"] == 2 and model.config["hidden_size"] == 128
    ids = program.flow.arange(20).unsqueeze(0)
    assert np.isfinite(model.loss(ids, labels=ids).item())


def test_an_interrupted_run_continues(program, whole, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    update = program.State.update

    def until_the_eighth(self, step):
        if step == 7:
            raise Stop
        update(self, step)

    monkeypatch.setattr(program.State, "update", until_the_eighth)
    with pytest.raises(Stop):
        program.main([str(tmp_path), *TEXT, *SMALL])
    monkeypatch.setattr(program.State, "update", update)
    assert program.main([str(tmp_path), *SMALL]) == whole[1]  # without the texts: the tokens are there


def test_rows_and_their_documents(program):
    ids, documents = program.packed(np.array([5, 6, 256, 7, 256, 8, 9], np.uint16), [0, 1], 6, 256)
    assert ids.tolist() == [[5, 6, 256, 7, 256, 8], [6, 256, 7, 256, 8, 9]]
    assert documents.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2]]


def test_the_dial(program):
    sizes = [program.config_of(depth, 128, 257, 1) for depth in (1, 4, 12)]
    assert [c["hidden_size"] for c in sizes] == [64, 256, 768]
    assert [c["num_attention_heads"] for c in sizes] == [1, 4, 12]
    assert all(c["intermediate_size"] % 64 == 0 and c["vocab_size"] == 320 for c in sizes)
    rates = [program.learning_rate(step, 100, 1.0) for step in range(100)]
    assert rates[0] == 0.2 and max(rates) == rates[4] == 1.0 and abs(rates[-1] - 0.1) < 1e-2
    with pytest.raises(SystemExit, match="--tp 2 does not divide"):
        program.config_of(3, 128, 257, 2)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [["--dp", "2"], ["--tp", "2"]], ids=["dp", "tp"])
def test_on_two_ranks(whole, tmp_path, layout):
    run_example("pretrain/pretrain.py", 2, tmp_path, *TEXT, *SMALL, *layout)
    np.testing.assert_allclose(np.loadtxt(tmp_path / "losses.txt"), whole[1], rtol=2e-3)


@pytest.mark.slow
def test_on_another_layout(tmp_path):
    def run(*options):
        return run_example("pretrain/pretrain.py", 2, tmp_path, *options)

    run(*[*TEXT, *SMALL, "--steps", "5", "--dp", "2"])
    before = np.loadtxt(tmp_path / "losses.txt")
    assert "from step 5" in run(*[*SMALL, "--steps", "8", "--tp", "2"])
    after = np.loadtxt(tmp_path / "losses.txt")
    np.testing.assert_array_equal(after[: len(before)], before)
    assert len(after) > len(before) and after[len(before)] < 1.1 * before[0]


def test_what_is_refused(program, tmp_path):
    with pytest.raises(SystemExit, match="Name the documents"):
        program.main([str(tmp_path), *SMALL])
    short = tmp_path / "short.txt"
    short.write_text("a few words")
    with pytest.raises(SystemExit, match="tokens are too few for rows of 48"):
        program.main([str(tmp_path / "run"), "--text", str(short), *SMALL])


def test_the_curve(whole, tmp_path):
    picture = tmp_path / "curve.svg"
    subprocess.run([sys.executable, ROOT / "examples/curve.py", whole[0], picture], check=True)
    root = ElementTree.parse(picture).getroot()
    name = "{http://www.w3.org/2000/svg}"
    lines, points = root.findall(f"{name}polyline"), root.findall(f"{name}circle")
    assert [len(line.get("points").split()) for line in lines] == [10, 10] and len(points) == 2
