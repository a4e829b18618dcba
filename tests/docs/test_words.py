"""The words that docs/glossary.md rules out do not come back: in messages and documents, and in names."""

import functools
import io
import re
import subprocess
import tokenize

import pytest
from harness.ranks import ROOT

# In string literals of the library and of the package, and in documents.
TEXT = {
    r"hand-?overs?": "transfer",
    r"givers?|takers?": "sender, receiver",
    r"meetings?|ha(s|ve) met|ranks meet": "collective, rendezvous; joined, connected",
    r"(the|a|an|its|no|of|each|short|long) forms?( of micro| for| has|$)": "kernel, overload, variant",
    r"(a|the|one|no) box|boxes|boxed": "boxing, region; redistributed",
    r"rooms?": "family, file, space",
    r"parcels?": "bucket",
    r"tak(en|es) (\w+ )?down": "recorded",
    r"(?<!there )(?<!here )is no(?! longer)|are no (multiple|tensors|members)": "is not a",
    r"(lies|lie) (on|in|at|within|beside)": "is on, is in",
    r"asked for": "requested",
    r"dear(er|est)?": "expensive",
    r"beside": "next to, compared with",
    r"without a word|said a word": "without a message",
    r"of (its|their) own": "separate, its own",
    r"(inside|outside) of(?! it\b)": "inside, outside",
    r"anew|but for": "again, except",
}
# In comments of the library and of the examples, too: where a word has one meaning, and that is the wrong one.
COMMENTS = {
    r"[Ll]ies?|as (it|they) lay": "is, is stored, is distributed",
    r"[Ss]tands?(?![-_])|stood": "is, represents",
    r"tak(en|es|e) (\w+ )?down": "recorded",
    r"but for|anew": "except, again",
    r"(?<![Tt]here )(?<![Hh]ere )(is|are) no(?! longer)": "is not a",
    r"beside": "next to, with, in addition to",
    r"asked for": "requested",
}
# In names: one that contains the word.
NAMES = {
    r"kBox(?!ing)|BoxCost|merge_boxes|is_single_box(?!ing)": "boxing",
    r"more_forms|join_forms|only_form": "variant",
    r"[Hh]and_?[Oo]ver|[gG]iver(?!s?_rank)|(?<!s)[tT]aker": "point-to-point transfer, sender, receiver",
    r"[mM]eeting|(?<![a-z])meets?(?![a-z])": "collective, rendezvous, sync",
    r"[bB]ounce|Patience|kPatience|Maker": "staging buffer, timeout, factory",
    r"copy_box|sum_box|box_input|box_async": "region, redistribute",
}
# Where other names or other people's words stand.
EXCEPT = ("docs/glossary.md", "python/holon/_C.pyi")

LITERAL = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*|\'(?:[^\'\\\n]|\\.)+\'')


@functools.cache
def tracked(*patterns):
    names = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [n for n in names.split() if not n.startswith(EXCEPT) and (ROOT / n).exists()]


@functools.cache
def texts(path):
    """[(line, text)] of what a user may read in a file."""
    return list(read(path))


@functools.cache
def comments(path):
    """[(line, text)] of the comments in a C++ file."""
    source = path.read_text()
    return [(source.count("\n", 0, m.start()) + 1, m[0]) for m in LITERAL.finditer(source) if m[0].startswith("//")]


def read(path):
    name, source = path.name, path.read_text()
    if name.endswith(".md"):
        prose = re.sub(r"^```.*?^```|`[^`\n]*`", lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.M | re.S)
        yield from enumerate(prose.split("\n"), 1)
    elif name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
                yield token.start[0], token.string
    else:
        for m in LITERAL.finditer(source):
            if m[0][0] == '"' and not source[: m.start()].endswith("#include "):
                yield source.count("\n", 0, m.start()) + 1, re.sub(r'"\s*"', "", m[0])


def found(lines, word):
    return [f"{n}: {text.strip()[:100]}" for n, text in lines if re.search(rf"\b({word})\b", text)]


@pytest.mark.parametrize("word", TEXT)
def test_texts(word):
    names = tracked("*.md", "holon/**/*.cpp", "holon/**/*.h", "python/src/*", "python/**/*.py")
    wrong = [f"{n}:{w}" for n in names for w in found(texts(ROOT / n), word)]
    assert not wrong, f"docs/glossary.md has another word: {TEXT[word]}"


@pytest.mark.parametrize("word", COMMENTS)
def test_comments(word):
    names = tracked("holon/*.h", "holon/*.cpp", "holon/*.cu", "python/src/*", "examples/*.cpp", "examples/*.h")
    wrong = [f"{n}:{w}" for n in names for w in found(comments(ROOT / n), word)]
    assert not wrong, f"write: {COMMENTS[word]}"


@pytest.mark.parametrize("word", NAMES)
def test_names(word):
    wrong = []
    for n in tracked("holon/*", "python/src/*", "tests/cpp/*"):
        text = re.sub(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"', "", (ROOT / n).read_text())
        wrong += [f"{n}: {m[0]}" for m in re.finditer(rf"\b\w*({word})\w*\b", text)]
    assert not wrong, f"docs/glossary.md has another word: {NAMES[word]}"


def test_the_words_are_found(tmp_path):
    path = tmp_path / "a.cpp"
    path.write_text('// a giver\nfail("the giver "\n     "lies on {}", x);  // it stands for "x"\n')
    assert found(texts(path), "givers?") == ['2: "the giver lies on {}"']
    assert found(texts(path), r"lies on") and not found(texts(path), "takers?")
    assert found(comments(path), "stands") and not found(comments(path), "lies")
    texts_of = {"there is no peer": False, "it is no peer": True, "understands": False, "a stand-in": False}
    for text, wrong in texts_of.items():
        assert wrong == any(found([(1, text)], word) for word in COMMENTS), text
