"""What the example's training saves on four ranks is a GPT-2 to other programs."""

import json
import subprocess
import sys

import numpy as np
import pytest
from harness.ranks import ROOT, environment, launch
from harness.text import write_text

sys.path.insert(0, str(ROOT / "examples/gpt"))
import holon as flow  # noqa: E402

HEADS, LENGTH = 4, 32
SMALL = f"--layers 2 --width 32 --heads {HEADS} --length {LENGTH} --batch 8 --steps 6 --save-every 3 --sample 1".split()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    text = write_text(folder)
    train = ["--data", text, *SMALL, "--checkpoints", folder / "run"]
    for layout in (["--dp", 2, "--tp", 2, "--graph"], ["--dp", 4, "--graph", "--steps", 9]):
        done = launch(ROOT / "examples/gpt/train.py", 4, arguments=[*train, *layout], timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
    command = [sys.executable, ROOT / "examples/gpt/export.py", folder / "run", folder / "gpt2", "--heads", HEADS]
    done = subprocess.run([str(c) for c in command], env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "step 9" in done.stdout, done.stdout + done.stderr
    return folder


def our_logits(folder, tokens):
    """Of the model that was trained, on this one rank."""
    from model import GPT, Layout

    from holon.checkpoint import Checkpointer

    model = GPT(2, 32, HEADS, LENGTH, Layout.over(1, 1))
    checkpoints = Checkpointer(folder / "run")
    state = flow.load(
        checkpoints.path(checkpoints.latest()), map_location=model.tokens.weight.placement, prefix="graph.model."
    )
    model.load_state_dict(state)
    return model(model.place(tokens, sbp=model.layouts[0].whole)).numpy()


def gpt2_logits(folder, tokens):
    """GPT-2's formulas (https://github.com/openai/gpt-2, src/model.py) on the tensors of the file."""
    config = json.loads((folder / "gpt2/config.json").read_text())
    w = {name: t.numpy().astype("f8") for name, t in flow.load(folder / "gpt2").items()}

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def conv(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(config["n_layer"]):
        layer = f"transformer.h.{i}"
        qkv = conv(norm(x, f"{layer}.ln_1"), f"{layer}.attn.c_attn")
        q, k, v = (
            part.reshape(*tokens.shape, config["n_head"], -1).swapaxes(1, 2) for part in np.split(qkv, 3, axis=-1)
        )
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(tokens.shape[1], dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(x.shape)
        x = x + conv(mixed, f"{layer}.attn.c_proj")
        h = conv(norm(x, f"{layer}.ln_2"), f"{layer}.mlp.c_fc")
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + conv(h, f"{layer}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["lm_head.weight"].T


TOKENS = np.random.default_rng(0).integers(0, 256, (2, LENGTH))


@pytest.mark.slow
def test_the_same_logits(exported):
    ours = our_logits(exported, TOKENS)
    np.testing.assert_allclose(ours, gpt2_logits(exported, TOKENS), rtol=1e-4, atol=1e-5 * np.abs(ours).max())


@pytest.mark.slow
def test_transformers_reads_it(exported):
    transformers = pytest.importorskip("transformers", reason="the package transformers is not installed")
    import torch

    model, found = transformers.GPT2LMHeadModel.from_pretrained(exported / "gpt2", output_loading_info=True)
    assert not any(found.values())
    with torch.no_grad():
        theirs = model.eval()(torch.tensor(TOKENS)).logits.numpy()
    ours = our_logits(exported, TOKENS)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * np.abs(ours).max())
