"""Conversations as rows of tokens for training: the tokenizer's chat template, labels for the assistant's words alone,
and several conversations in a row."""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

IGNORED = -100  # the label of a token that does not count, as in transformers


def _environment():
    """Jinja as transformers has it for chat templates: a sandbox in which values cannot be changed."""
    try:
        from jinja2 import nodes
        from jinja2.exceptions import TemplateError
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ImportError("chat templates need the package jinja2: pip install jinja2") from None

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}: what the assistant writes. Its text is put between marks."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller):
            begin, end = self.environment.marks
            return begin + caller() + end

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.marks = ("", "")  # type: ignore[attr-defined]
    return environment


def _token(value):
    """A special token of tokenizer_config.json: text, or an object that has it as "content"."""
    return value.get("content") if isinstance(value, Mapping) else value


class ChatTemplate:
    """A template in Jinja's language that makes one text of a conversation, which is a list of messages such as
    {"role": "user", "content": "Hello"}. It is run in a sandbox, as in transformers.

    Errors: ImportError without PyPI's jinja2; ValueError for a template that Jinja cannot read.
    """

    def __init__(self, template: str, special_tokens: Mapping[str, str] | None = None, source: str = "the template"):
        self._environment = _environment()
        from jinja2.exceptions import TemplateSyntaxError

        self.source, self.special_tokens = source, dict(special_tokens or {})
        try:
            self._template = self._environment.from_string(template)
        except TemplateSyntaxError as error:
            raise ValueError(f"ChatTemplate: {source}, line {error.lineno}: {error.message}.") from None
        self.has_marks = "endgeneration" in template

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], name: str = "default") -> "ChatTemplate":
        """That of a tokenizer's folder: chat_template.jinja, or the member chat_template of tokenizer_config.json,
        which may be a list of templates with names.

        Errors: FileNotFoundError for a folder without tokenizer_config.json; ValueError where it has no template.
        """
        path, alone = Path(folder) / "tokenizer_config.json", Path(folder) / "chat_template.jinja"
        config = json.loads(path.read_text(encoding="utf-8"))
        template, source = config.get("chat_template"), f"the chat_template of {path}"
        if alone.exists():
            template, source = alone.read_text(encoding="utf-8"), str(alone)
        if isinstance(template, list):
            named = {entry["name"]: entry["template"] for entry in template}
            if name not in named:
                raise ValueError(f"ChatTemplate: {path} has no chat_template '{name}', but {', '.join(named)}.")
            template = named[name]
        if not template:
            raise ValueError(
                f"ChatTemplate: {path} has no chat_template. Add that of the model's card: a model that was not "
                "trained on conversations has none."
            )
        tokens = {key: _token(value) for key, value in config.items() if key.endswith("_token")}
        return cls(template, {key: value for key, value in tokens.items() if isinstance(value, str)}, source)

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False, **more: Any) -> str:
        """The text of a conversation; with add_generation_prompt, and what is before the assistant's next words.

        Errors: ValueError where the template refuses these messages, with its reason.
        """
        from jinja2.exceptions import TemplateError

        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **{**self.special_tokens, **more}
            )
        except TemplateError as error:
            raise ValueError(f"ChatTemplate: {self.source}: {error}.") from None

    def spans(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> tuple[str, list[tuple[int, int]]]:
        """The text of a conversation, and from where to where in it are the assistant's words.

        They are between {% generation %} and {% endgeneration %}. A template without these is rendered up to each
        answer and with it: the answer is what is added. Errors: ValueError also where that does not work, as the
        template writes earlier messages in another way once there are later ones.
        """
        text = self.render(messages, **more)
        return text, self._marked_spans(messages, text, more) if self.has_marks else self._added(messages, text, more)

    def _marked_spans(self, messages, text, more):
        begin, end = (f"\0{secrets.token_hex(8)}{kind}\0" for kind in "be")
        self._environment.marks = begin, end
        try:
            marked = self.render(messages, **more)
        finally:
            self._environment.marks = "", ""
        spans, plain = [], ""
        for piece in marked.split(begin):
            answer, found, rest = piece.partition(end)
            if found:
                spans.append((len(plain), len(plain) + len(answer)))
            plain += answer + rest
        if plain != text or marked.count(begin) != len(spans):
            raise ValueError(
                f"ChatTemplate: {self.source}: what is between {{% generation %}} and {{% endgeneration %}} is changed "
                "afterwards. Put the marks where the text is final."
            )
        return spans

    def _added(self, messages, text, more):
        spans = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.render(messages[:i], True, **more)
            after = self.render(messages[: i + 1], **more)
            if not (after.startswith(before) and text.startswith(after)):
                raise ValueError(
                    f"ChatTemplate: {self.source}: where answer {len(spans) + 1} is in the text cannot be told, as the "
                    "template writes a message in another way once others follow. Put {% generation %} and "
                    "{% endgeneration %} around the assistant's words in the template."
                )
            spans.append((len(before), len(after)))
        return spans

    def tokenize(self, tokenizer: Any, messages: Sequence[Mapping[str, Any]], **more: Any) -> tuple[list, list]:
        """Tokens of a conversation by a tokenizer of PyPI's tokenizers, and their labels: those of the assistant's
        words themselves, -100 elsewhere."""
        text, spans = self.spans(messages, **more)
        encoded = tokenizer.encode(text, add_special_tokens=False)  # the template has them
        labels, at = [], 0
        for token, (begin, end) in zip(encoded.ids, encoded.offsets):
            while at < len(spans) and spans[at][1] <= begin:
                at += 1
            counts = at < len(spans) and spans[at][0] <= begin < spans[at][1] and end > begin
            labels.append(token if counts else IGNORED)
        return encoded.ids, labels


def read_conversations(path: str | os.PathLike[str]) -> list[list[dict[str, Any]]]:
    """The conversations of a file of JSON lines, each of which has them as "messages", a list of {"role", "content"}.

    Errors: ValueError, naming the line: it is not JSON, or not of this form; the conversation has no message, or none
    of the assistant; a file without lines.
    """
    found = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"read_conversations: {os.fspath(path)}, line {number}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{where} is not JSON: {error}") from None
            messages = record.get("messages") if isinstance(record, dict) else None
            if not isinstance(messages, list):
                raise ValueError(
                    f'{where} has no list "messages". A line is {{"messages": [{{"role": "user", ...}}]}}.'
                )
            if not messages:
                raise ValueError(f"{where} is a conversation without messages. Leave it out.")
            for message in messages:
                if (
                    not isinstance(message, dict)
                    or not isinstance(message.get("role"), str)
                    or "content" not in message
                ):
                    raise ValueError(f'{where} has a message without "role" and "content": {message!r:.80}.')
            if all(message["role"] != "assistant" for message in messages):
                raise ValueError(f"{where} has no message of the assistant: there is nothing to learn from it.")
            found.append(messages)
    if not found:
        raise ValueError(f"read_conversations: {os.fspath(path)} has no conversations.")
    return found


class PackedRows(NamedTuple):
    """Rows of a length. documents: which of its row's conversations a token is of; padding is one more."""

    ids: np.ndarray
    labels: np.ndarray
    documents: np.ndarray
    cut: int  # conversations that were longer than a row, and lost their end
    dropped: int  # of these, those of which no label is left; they are in no row


def pack_conversations(
    conversations: Sequence[tuple[Sequence[int], Sequence[int]]], length: int, pad: int = 0
) -> PackedRows:
    """Puts conversations (tokens, labels) into as few rows as is easy: longest first, each into the fullest row that
    has space left. The first token of each has no label, since the one before it is another conversation's.

    Errors: ValueError for a length below 2, and where no conversation has a label left.
    """
    if length < 2:
        raise ValueError(f"pack_conversations: rows of {length} tokens predict nothing; length is 2 or more.")
    cut = dropped = 0
    rows: list[list[int]] = []
    space: list[list[int]] = [[] for _ in range(length + 1)]  # the rows that have so much left
    order = sorted(range(len(conversations)), key=lambda i: (-len(conversations[i][0]), i))
    for i in order:
        tokens, labels = conversations[i]
        n = min(len(tokens), length)
        cut += len(tokens) > length
        if all(label == IGNORED for label in labels[1:n]):
            dropped += 1
            continue
        free = next((free for free in range(n, length + 1) if space[free]), None)
        if free is None:
            row, free = len(rows), length
            rows.append([])
        else:
            row = space[free].pop()
        rows[row].append(i)
        space[free - n].append(row)
    if not rows:
        raise ValueError(
            f"pack_conversations: none of {len(conversations)} conversations has a label among its first {length} "
            "tokens. Choose a greater length, or check the template."
        )
    shape = len(rows), length
    ids, marked = np.full(shape, pad, np.int64), np.full(shape, IGNORED, np.int64)
    documents = np.zeros(shape, np.int64)
    for row, members in enumerate(rows):
        at = 0
        for document, i in enumerate(members):
            tokens, labels = conversations[i]
            n = min(len(tokens), length)
            ids[row, at : at + n], marked[row, at + 1 : at + n] = tokens[:n], labels[1:n]
            documents[row, at : at + n] = document
            at += n
        documents[row, at:] = len(members)
    return PackedRows(ids, marked, documents, cut, dropped)
