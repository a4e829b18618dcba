"""examples/finetune: it learns by adapters and in full, continues after an interruption, on layouts alike."""

import importlib.util
import json

import numpy as np
import pytest
from harness.ranks import ROOT, run_example

pytest.importorskip("jinja2", reason="the package jinja2 is not installed")
pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")

SMALL = "--length 96 --rows 4 --batch 8 --steps 24 --evaluate-every 8 --save-every 5 --new-tokens 24 --lora 8".split()


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("finetune", ROOT / "examples/finetune/finetune.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def whole(program, tmp_path_factory):
    run = tmp_path_factory.mktemp("whole")
    return run, program.main([str(run), *SMALL, "--merge"])


def test_adapters_learn(program, whole):
    run, losses = whole
    assert len(losses) == 24 and np.mean(losses[-4:]) < 0.6 * losses[0]
    validation = np.loadtxt(run / "validation.txt")
    assert validation[:, 0].tolist() == [0, 8, 16, 24] and validation[-1, 1] < 0.8 * validation[0, 1]
    flow = program.flow
    config = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == 8 and config["lora_alpha"] == 16 and config["base_model_name_or_path"] == str(run / "base")
    ids = flow.arange(20).unsqueeze(0)
    adapted = flow.models.from_pretrained(run / "base").load_adapter(run / "adapter")
    merged = flow.models.from_pretrained(run / "model")
    np.testing.assert_allclose(adapted(ids).detach().numpy(), merged(ids).detach().numpy(), atol=1e-3)
    assert (run / "model" / "tokenizer_config.json").exists()
    # What checkpoints hold of the model is its adapters.
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    assert all(".lora_" in name for name in flow.load(newest)["model"])


def test_a_small_loss_is_of_the_assistants_words(program, whole):
    run, _ = whole
    rows = program.packed(
        program.read_conversations(run / "data.jsonl")[:8],
        program.ChatTemplate.from_pretrained(run / "base"),
        program.read_tokenizer(run / "base"),
        96,
        "test",
    )
    tokenizer = program.read_tokenizer(run / "base")
    text = tokenizer.decode(rows.labels[rows.labels >= 0].tolist(), skip_special_tokens=False)
    assert "The colour of a lemon is yellow.<|im_end|>" in text and "What colour" not in text


def test_an_interrupted_run_continues(program, whole, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    rate = program.learning_rate

    def until_the_eighteenth(step, steps, peak):
        if step == 17:
            raise Stop
        return rate(step, steps, peak)

    monkeypatch.setattr(program, "learning_rate", until_the_eighteenth)
    with pytest.raises(Stop):
        program.main([str(tmp_path), *SMALL])
    monkeypatch.setattr(program, "learning_rate", rate)
    assert program.main([str(tmp_path), *SMALL]) == whole[1]


@pytest.mark.parametrize("more", [["--lora", "0"], ["--quantize", "8"]], ids=["full", "quantised"])
def test_other_ways(program, whole, tmp_path, more):
    run, _ = whole
    given = ["--model", str(run / "base"), "--data", str(run / "data.jsonl"), "--lr", "3e-3"]
    losses = program.main([str(tmp_path), *given, *SMALL, *more])
    assert np.mean(losses[-4:]) < 0.8 * losses[0]
    assert (tmp_path / "model").exists() == ("--lora" in more) and (tmp_path / "adapter").exists() != ("--lora" in more)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [["--dp", "2"], ["--tp", "2"], ["--pp", "2"]], ids=["dp", "tp", "pp"])
def test_on_two_ranks(whole, tmp_path, layout):
    run, losses = whole
    # With tp of what is there; otherwise the ranks make it together.
    given = ["--model", run / "base", "--data", run / "data.jsonl", "--lr", "5e-3"] if "--tp" in layout else []
    run_example("finetune/finetune.py", 2, tmp_path, *given, *SMALL, *layout)
    found = np.loadtxt(tmp_path / "losses.txt")
    np.testing.assert_allclose(found[:3], losses[:3], rtol=1e-5)
    np.testing.assert_allclose(found, losses, rtol=5e-3)


@pytest.mark.slow
def test_on_another_layout(tmp_path):
    def run(*options):
        return run_example("finetune/finetune.py", 2, tmp_path, *options)

    run(*[*SMALL, "--steps", "5", "--dp", "2"])
    before = np.loadtxt(tmp_path / "losses.txt")
    assert "from step 5" in run(*[*SMALL, "--steps", "8", "--pp", "2"])
    after = np.loadtxt(tmp_path / "losses.txt")
    np.testing.assert_array_equal(after[: len(before)], before)
    assert len(after) > len(before) and after[len(before)] < 1.1 * before[0]


def test_what_is_refused(program, whole, tmp_path, capsys):
    base, data = whole[0] / "base", whole[0] / "data.jsonl"
    given = [str(tmp_path), "--model", str(base), "--data", str(data), *SMALL]
    with pytest.raises(ValueError, match=r"'q_projection' .* q_proj \(2\)"):
        program.main([*given, "--targets", "q_projection"])
    with pytest.raises(SystemExit):
        program.main([*given, "--lora", "0", "--quantize", "4"])
    with pytest.raises(SystemExit):
        program.main([*given, "--rows", "3"])
    (tmp_path / "bad.jsonl").write_text('{"messages": []}\n')
    with pytest.raises(ValueError, match="bad.jsonl, line 1 is a conversation without messages"):
        program.main([*given, "--data", str(tmp_path / "bad.jsonl")])
    (tmp_path / "one.jsonl").write_text(data.read_text().splitlines()[0] + "\n")
    with pytest.raises(SystemExit, match="has one conversation, which leaves none"):
        program.main([*given, "--data", str(tmp_path / "one.jsonl")])
    without = tmp_path / "without"
    without.mkdir()
    with pytest.raises(SystemExit, match="has no tokenizer.json"):
        program.main([*given, "--model", str(without)])
    (without / "tokenizer.json").write_text((base / "tokenizer.json").read_text())
    (without / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="has no chat_template"):
        program.main([*given, "--model", str(without)])
    capsys.readouterr()
    program.packed(
        [
            *program.read_conversations(data)[:4],
            [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "x"}],
        ],
        program.ChatTemplate.from_pretrained(base),
        program.read_tokenizer(base),
        96,
        "test",
    )
    assert "1 are longer than --length 96 and were cut, of which 1 have no label left" in capsys.readouterr().out
