"""holon.data's conversations: templates, which tokens are the assistant's, rows of several conversations."""

import json
import sys

import numpy as np
import pytest
from harness import torch_chat
from harness.torch_python import require_torch, run_torch

from holon.data import ChatTemplate, pack_conversations, read_conversations

pytest.importorskip("jinja2", reason="the package jinja2 is not installed")

TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "and?"},
    {"role": "assistant", "content": "Nothing."},
]
PLAIN = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = PLAIN.replace(
    "<{{ m['role'] }}>{{ m['content'] | trim }}</s>",
    "<{{ m['role'] }}>{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}</s>{% endgeneration %}"
    "{% else %}{{ m['content'] }}</s>{% endif %}",
)
# As Qwen3's: what an answer looks like depends on whether it is the last one.
CHANGING = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['role'] == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def words(template, messages):
    text, spans = ChatTemplate(template, {"bos_token": "<s>"}).spans(messages)
    return text, [text[a:b] for a, b in spans]


def test_the_assistants_words():
    text = "<s><system>Be short.</s><user>hi</s><assistant>Hello!</s><user>and?</s><assistant>Nothing.</s>"
    assert words(PLAIN, TALK) == (text, ["Hello!</s>", "Nothing.</s>"])
    assert words(MARKED, TALK) == (text, ["Hello!</s>", "Nothing.</s>"])
    assert words(MARKED, TALK[:2]) == ("<s><system>Be short.</s><user>hi</s>", [])
    assert (
        ChatTemplate(MARKED, {"bos_token": "<s>"}).render(TALK[:2], add_generation_prompt=True).endswith("<assistant>")
    )


def test_a_template_that_changes_what_was_said_needs_marks():
    assert words(CHANGING, TALK[:3])[1] == ["<think></think>Hello!"]
    with pytest.raises(ValueError, match=r"answer 1 .* cannot be told.*Put \{% generation %\}"):
        words(CHANGING, TALK)
    marked = CHANGING.replace("{{ m['content'] }}", "{% generation %}{{ m['content'] }}{% endgeneration %}")
    assert words(marked, TALK[1:3])[1] == ["hi", "Hello!"]


def test_marks_whose_text_is_changed_afterwards():
    loop = "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}"
    template = "{% filter upper %}" + loop + "{% endfilter %}"
    with pytest.raises(ValueError, match="is changed afterwards"):
        words(template, TALK)


def test_the_sandbox_and_its_functions():
    template = ChatTemplate(
        "{{ messages | tojson }}{{ strftime_now('%Y') | length }}{% for m in messages %}{% break %}{% endfor %}"
    )
    assert template.render([{"role": "user", "content": "é"}]) == '[{"role": "user", "content": "é"}]4'
    for source, text in (
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "__class__|unsafe|__mro__"),
    ):
        with pytest.raises(ValueError, match=text):
            ChatTemplate(source).render(TALK)
    with pytest.raises(ValueError, match="the template, line 2: "):
        ChatTemplate("a\n{% for %}")


def test_texts_and_spans_are_those_of_transformers(tmp_path):
    require_torch()
    jumps = (
        "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}\n   {{ m | tojson(2) }}\n{% endfor %}"
    )
    odd = [{"role": "user", "content": " x \n\n{{y}} <é> '\" "}, {"role": "assistant", "content": "  ü {% raw %} \n"}]
    cases = [
        [template, messages, prompt]
        for template in (PLAIN, MARKED, CHANGING, jumps)
        for messages in (TALK, TALK + odd, TALK[:1])
        for prompt in (False, True)
    ]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    run_torch(torch_chat.__file__, tmp_path / "cases.json", tmp_path / "out.json")
    for (source, messages, prompt), (text, spans) in zip(cases, json.loads((tmp_path / "out.json").read_text())):
        template = ChatTemplate(source, {"bos_token": "<s>"})
        assert template.render(messages, prompt) == text
        if source == MARKED and not prompt:
            assert [list(span) for span in template.spans(messages)[1]] == spans and spans or messages == TALK[:1]


def test_from_a_tokenizers_folder(tmp_path):
    path = tmp_path / "tokenizer_config.json"
    with pytest.raises(FileNotFoundError):
        ChatTemplate.from_pretrained(tmp_path)
    path.write_text(json.dumps({"eos_token": "</s>"}))
    with pytest.raises(ValueError, match="has no chat_template"):
        ChatTemplate.from_pretrained(tmp_path)
    path.write_text(json.dumps({"bos_token": {"content": "<s>"}, "unk_token": None, "chat_template": PLAIN}))
    assert ChatTemplate.from_pretrained(tmp_path).render(TALK[:1]) == "<s><system>Be short.</s>"
    named = [{"name": "default", "template": "a"}, {"name": "tools", "template": "b"}]
    path.write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.from_pretrained(tmp_path, "tools").render(TALK) == "b"
    with pytest.raises(ValueError, match="no chat_template 'rag', but default, tools"):
        ChatTemplate.from_pretrained(tmp_path, "rag")
    (tmp_path / "chat_template.jinja").write_text("of a file")
    assert ChatTemplate.from_pretrained(tmp_path).render(TALK) == "of a file"


def test_without_jinja2(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match="pip install jinja2"):
        ChatTemplate("")


def test_labels_are_the_assistants_tokens():
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["hello hello there there"], trainer)
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "there é 文"}]
    for template in (PLAIN, MARKED):
        ids, labels = ChatTemplate(template, {"bos_token": ""}).tokenize(tokenizer, talk)
        assert tokenizer.decode(ids, skip_special_tokens=False) == "<user>hello</s><assistant>there é 文</s>"
        learned = [i for i in labels if i >= 0]
        assert tokenizer.decode(learned, skip_special_tokens=False) == "there é 文</s>"
        assert all(label in (-100, token) for token, label in zip(ids, labels))


def test_rows_of_several_conversations():
    def talk(n, first):
        return list(range(first, first + n)), [-100, -100, *range(first + 2, first + n)]

    packed = pack_conversations([talk(3, 10), talk(5, 20), talk(9, 30), talk(3, 40)], 8, pad=99)
    assert (packed.cut, packed.dropped) == (1, 0)
    assert packed.ids.tolist() == [
        [30, 31, 32, 33, 34, 35, 36, 37],
        [20, 21, 22, 23, 24, 10, 11, 12],
        [40, 41, 42, 99, 99, 99, 99, 99],
    ]
    assert packed.documents.tolist() == [[0] * 8, [0] * 5 + [1] * 3, [0] * 3 + [1] * 5]
    assert packed.labels[1].tolist() == [-100, -100, 22, 23, 24, -100, -100, 12]
    assert packed.labels[2].tolist() == [-100, -100, 42] + [-100] * 5
    # The first token of a conversation would be predicted from another one.
    packed = pack_conversations([([1, 2], [1, 2]), ([3, 4], [3, 4])], 4)
    assert packed.labels.tolist() == [[-100, 2, -100, 4]]
    # A conversation whose answer is beyond the row's end.
    long = (list(range(9)), [-100] * 8 + [8])
    packed = pack_conversations([long, ([1, 2], [1, 2])], 4)
    assert (packed.cut, packed.dropped, packed.ids.shape) == (1, 1, (1, 4))
    with pytest.raises(ValueError, match="none of 1 conversations has a label among its first 4"):
        pack_conversations([long], 4)
    with pytest.raises(ValueError, match="length is 2 or more"):
        pack_conversations([long], 1)


def test_every_token_is_in_one_row():
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 40, 200)
    talks = [([i + 1] * n, [i + 1] * n) for i, n in enumerate(lengths)]
    packed = pack_conversations(talks, 64)
    counts = np.bincount(packed.ids.ravel(), minlength=201)[1:]
    assert counts.tolist() == lengths.tolist()
    assert len(packed.ids) <= 1.05 * lengths.sum() / 64 + 1
    for ids, documents in zip(packed.ids, packed.documents):
        for d in range(documents.max() + 1):
            assert len(set(ids[documents == d])) == 1


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "line 2 is not JSON"),
        ('{"text": "a"}', 'line 2 has no list "messages"'),
        ("[]", 'line 2 has no list "messages"'),
        ('{"messages": []}', "line 2 is a conversation without messages"),
        ('{"messages": [{"content": "a"}]}', 'line 2 has a message without "role"'),
        ('{"messages": [{"role": "user", "content": "a"}]}', "line 2 has no message of the assistant"),
    ],
)
def test_lines_that_are_wrong(tmp_path, line, message):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"messages": TALK}) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=message):
        read_conversations(path)
    path.write_text("\n" + json.dumps({"messages": TALK}) + "\n\n")
    assert read_conversations(path) == [TALK]
    path.write_text("\n")
    with pytest.raises(ValueError, match="has no conversations"):
        read_conversations(path)
