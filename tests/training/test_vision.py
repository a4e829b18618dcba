"""examples/vision: both models learn, a run that was interrupted continues, and bad folders are refused."""

import importlib.util
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from harness.ranks import ROOT, run_example

Image = pytest.importorskip("PIL.Image", reason="the package Pillow is not installed")

SMALL = "--size 16 --batch 16 --epochs 4 --save-every 3 --workers 1 --mixup 0.2".split()


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("vision", ROOT / "examples/vision/vision.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["vision"] = module  # for workers
    spec.loader.exec_module(module)
    yield module
    del sys.modules["vision"]


@pytest.fixture(scope="module")
def images(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    program.draw_images(folder, 1, train=12, val=4)
    for part in ("train", "val"):
        for name in ("cross", "ring", "stripes"):
            shutil.rmtree(folder / part / name)
    return folder


@pytest.fixture(scope="module")
def whole(program, images, tmp_path_factory):
    run = tmp_path_factory.mktemp("whole")
    return run, program.main([str(run), "--images", str(images), "--depth", "2", *SMALL])


def test_a_vit_is_trained_and_written(program, whole):
    run, losses = whole
    assert len(losses) == 8 and all(np.isfinite(losses))
    validation = np.loadtxt(run / "validation.txt")
    assert validation.shape == (4, 4) and validation[-1, 0] == 8
    assert (validation[:, 3] == 100).all() and (validation[:, 2] <= 100).all()  # of three classes, one is among five
    model = program.flow.models.from_pretrained(run / "model")
    assert model.config["id2label"] == {"0": "circle", "1": "square", "2": "triangle"}
    pixels = program.flow.tensor(
        program.Images([(path, 0) for path in (run.parent).rglob("*.png")][:2], 16)[0][0][None]
    )
    assert model(pixels).shape == (1, 3)


def test_a_resnet_learns_and_a_checkpoint_is_continued_with_another_head(program, images, tmp_path):
    options = ["--images", str(images), "--depth", "1", *SMALL, "--workers", "0", "--augment", "0", "--mixup", "0"]
    losses = program.main([str(tmp_path / "first"), "--model", "resnet", *options, "--epochs", "10", "--lr", "3e-3"])
    assert np.mean(losses[-4:]) < 0.75 * losses[0]
    two = tmp_path / "two"
    for part in ("train", "val"):
        shutil.copytree(images / part, two / part, ignore=shutil.ignore_patterns("circle"))
    again = program.main(
        [
            str(tmp_path / "second"),
            "--model",
            str(tmp_path / "first/model"),
            *options,
            "--images",
            str(two),
            "--epochs",
            "1",
        ]
    )
    assert len(again) == 1
    config = program.flow.models.from_pretrained(tmp_path / "second/model").config
    assert config["id2label"] == {"0": "square", "1": "triangle"}


def test_an_interrupted_run_continues(program, images, whole, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    update = program.State.update

    def until_the_sixth(self, step):
        if step == 5:
            raise Stop
        update(self, step)

    given = [str(tmp_path), "--images", str(images), "--depth", "2", *SMALL]
    monkeypatch.setattr(program.State, "update", until_the_sixth)
    with pytest.raises(Stop):
        program.main(given)
    monkeypatch.setattr(program.State, "update", update)
    assert program.main(given) == whole[1]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [["--dp", "2"], ["--tp", "2"]], ids=["dp", "tp"])
def test_on_two_ranks(images, whole, tmp_path, layout):
    run_example("vision/vision.py", 2, tmp_path, "--images", images, "--depth", "2", *SMALL, *layout)
    found = np.loadtxt(tmp_path / "losses.txt")
    np.testing.assert_allclose(found[:3], whole[1][:3], rtol=1e-4)
    np.testing.assert_allclose(found, whole[1], rtol=5e-3)


@pytest.mark.slow
def test_on_another_layout(images, tmp_path):
    def run(*options):
        return run_example("vision/vision.py", 2, tmp_path, *options)

    run(*["--images", images, *SMALL, "--depth", "2", "--epochs", "1", "--dp", "2"])
    before = np.loadtxt(tmp_path / "losses.txt")
    assert "from step 2" in run(*["--images", images, *SMALL, "--depth", "2", "--epochs", "2", "--tp", "2"])
    after = np.loadtxt(tmp_path / "losses.txt")
    np.testing.assert_array_equal(after[: len(before)], before)
    assert len(after) > len(before) and after[len(before)] < 1.1 * before[0]


def test_what_is_done_to_images(program, images):
    path = next((images / "train").rglob("*.png"))
    dataset = program.Images([(path, 2)], 24, changes=2, seed=3)
    pixels, label = dataset[0]
    assert pixels.shape == (3, 24, 24) and pixels.dtype == np.float32 and label == 2
    np.testing.assert_array_equal(dataset[0][0], pixels)
    dataset.epoch = 1
    assert np.abs(dataset[0][0] - pixels).max() > 0.1
    plain = program.Images([(path, 2)], 40)[0][0]
    wanted = (np.asarray(Image.open(path), np.float32).transpose(2, 0, 1) / 255 - program.MEAN[:, None, None]) / (
        program.DEVIATION[:, None, None]
    )
    np.testing.assert_allclose(plain, wanted, atol=1e-6)
    with Image.open(path) as image:
        for change in program.CHANGES:
            for x in (-1, 0, 1):
                assert change(image, x).size == image.size


def test_the_curve_has_top_1(whole, tmp_path):
    picture = tmp_path / "curve.svg"
    subprocess.run([sys.executable, ROOT / "examples/curve.py", whole[0], picture], check=True)
    root = ElementTree.parse(picture).getroot()
    name = "{http://www.w3.org/2000/svg}"
    lines, points = root.findall(f"{name}polyline"), root.findall(f"{name}circle")
    assert [len(line.get("points").split()) for line in lines] == [8, 8, 4] and len(points) == 4
    assert any(text.text == "top-1" for text in root.findall(f"{name}text"))


def test_mixup_and_smoothing_are_those_of_the_formula(program):
    flow = program.flow
    flow.manual_seed(1)
    model = flow.nn.Sequential(flow.nn.Flatten(), flow.nn.Linear(12, 4))
    x, y = flow.randn(6, 3, 2, 2), flow.tensor([0, 1, 2, 3, 0, 1])
    found = program.loss_of(model, x, y, 0.1, 0.4, np.random.default_rng(2)).item()
    share = np.random.default_rng(2).beta(0.4, 0.4)
    mixed = x.numpy() * share + x.numpy()[::-1] * (1 - share)
    logits = model(flow.tensor(np.ascontiguousarray(mixed))).detach().numpy()
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    one = np.eye(4)[y.numpy()]
    target = (share * one + (1 - share) * one[::-1]) * 0.9 + 0.1 / 4
    np.testing.assert_allclose(found, -(target * logs).sum(1).mean(), rtol=1e-5)


def test_folders_that_are_refused(program, images, tmp_path):
    def refused(message, *more):
        with pytest.raises(SystemExit, match=message):
            program.main([str(tmp_path / "run"), "--images", str(folder), *SMALL, *more])
        assert not (tmp_path / "run" / "checkpoints").exists()

    folder = tmp_path / "nothing"
    refused("train is not there")
    (folder / "train").mkdir(parents=True)
    refused("has no folders of classes")
    (folder / "train" / "cat").mkdir()
    refused("the folder cat has no images")
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    refused("too few for --batch 100", "--batch", "100")
    refused("neither vit", "--model", "convnext")
    refused("--size 25 is not a multiple of the patches' 3", "--size", "25")
    shutil.move(folder / "val" / "circle", folder / "val" / "disc")
    refused("train alone has circle; val alone has disc")
    shutil.move(folder / "val" / "disc", folder / "val" / "circle")
    bad = next((folder / "train" / "square").glob("*.png"))
    bad.write_bytes(bad.read_bytes()[:200])
    (folder / "val" / "square" / "text.jpg").write_text("not an image")
    refused(r"2 images cannot be read.*\n.*png.*\n.*text.jpg")
    for name in ("circle", "square"):
        for part in ("train", "val"):
            shutil.rmtree(folder / part / name)
    refused("has one class, triangle")
