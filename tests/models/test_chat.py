"""examples/chat: what it says, on one rank and on several."""

import subprocess
import sys

import pytest
from harness.ranks import ROOT, environment

import holon as flow

CHAT = ROOT / "examples/chat/chat.py"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.3,
}


def talk(words, *arguments, ranks=1, **extra):
    launcher = ["-m", "holon.distributed.launch", "--nproc_per_node", ranks]
    command = [sys.executable, *map(str, launcher if ranks > 1 else []), CHAT, *map(str, arguments)]
    return subprocess.run(
        command, input=words, env=environment(**extra), capture_output=True, text=True, timeout=120, encoding="utf-8"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    folder = tmp_path_factory.mktemp("chat")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([CHAT.read_text()], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    flow.manual_seed(2)
    flow.models.from_config(LLAMA).save_pretrained(folder)
    return folder, tokenizer


@pytest.mark.parametrize("ranks, layout", [(1, ()), (2, ("--tp", 2))])
def test_what_it_says_is_what_the_model_generates(folder, ranks, layout):
    folder, tokenizer = folder
    options = ("--max-new-tokens", 24, "--temperature", 0)
    done = talk("hello\nand then?\n\n", folder, *options, *layout, ranks=ranks)
    assert done.returncode == 0, done.stderr
    model = flow.models.from_pretrained(folder)
    said, expected = "", ""
    for words in ("hello", "and then?"):
        said += f"User: {words}\nAssistant:"
        prompt = tokenizer.encode(said).ids[24 - 96 :]
        rows = model.generate(flow.tensor([prompt]), max_new_tokens=24, stop_strings="\nUser:", tokenizer=tokenizer)
        answer = tokenizer.decode(rows.numpy()[0, len(prompt) :]).split("\nUser:")[0]
        said += answer + "\n"
        expected += f"User: Assistant:{answer}\n"
    assert done.stdout == expected + "User: "


def test_samples_depend_on_the_seed(folder):
    folder, _ = folder
    a, b, again = (talk("hello\n\n", folder, "--max-new-tokens", 24, "--seed", s).stdout for s in (1, 2, 1))
    assert a == again != b


def test_what_is_missing_is_named(tmp_path):
    (tmp_path / "tokenizers.py").write_text("raise ImportError")
    done = talk("", tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT / 'python'}")
    assert done.returncode == 1 and "pip install tokenizers" in done.stderr
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    done = talk("", tmp_path)
    assert done.returncode == 1 and "tokenizer.json is not there" in done.stderr
