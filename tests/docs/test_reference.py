"""The reference that `./dev docs` writes: every op and class has a section whose example ran,
and no page or link is dead."""

import re

import pytest
from harness import docs

import holon
from holon import nn, optim

SHOWN = [op for op in holon._C.op_table() if op["function"] or op["method"]]
# An op's words say of which shapes its tensors are: "x [m, k]", or in terms of axes and sizes.
SHAPE_WORDS = (
    r"\[[^\]]*\]|\bshapes?\b|\bsiz(e|es|ed)\b|\bax[ie]s\b|\bdims?\b|\blike x\b|\bmatrix\b|\bmatrices\b"
    r"|\belements?\b|\bvectors?\b|\bbroadcast"
)


def section(page, name):
    """The text below a heading of the second level."""
    found = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    return found.group(1) if found else ""


@pytest.fixture(scope="module")
def reference(written_reference):
    """{path: text} of a reference written anew, and what the generator complained of."""
    folder, done = written_reference
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.md")}, done


def page_of(pages, name):
    return next(text for path, text in pages.items() if path.startswith("ops/") and section(text, name))


def test_nothing_fails_or_lacks(reference):
    pages, done = reference
    assert done.returncode == 0, done.stderr
    assert {"README.md", "ops.md", "modules.md", "optim.md", "settings.md", "cpp/README.md", "cpp/nn.md"} <= set(pages)


def test_every_op_has_a_section(reference):
    pages, _ = reference
    rooms = "\n".join(text for path, text in pages.items() if path.startswith("ops/"))
    for op in SHOWN:
        text = section(rooms, op["public_name"])
        assert f"```\n{op['signature']}\n```" in text, op["name"]
        assert op["doc"] in text
    for name in {op["public_name"] for op in SHOWN}:
        text, forms = section(rooms, name), [op for op in SHOWN if op["public_name"] == name]
        assert text.count("```pycon\n>>> ") == len(forms), f"{name}: an example for each form"
        assert not re.search(r"^>>> .*\n```$", text, re.M), f"{name}: the example prints nothing"
        sbp = re.findall(r"^- \*\*sbp\*\*.*$", text, re.M)
        assert len(sbp) == len(forms) and all(re.search(r"` *·? *|: \w", line) for line in sbp), name
        assert len(re.findall(r"^- \*\*gradient\*\*: (yes|no)", text, re.M)) == len(forms), name
        assert re.search(r"^- \*\*devices\*\*: cpu", text, re.M), name
        assert f"[{name}](ops/" in pages["ops.md"]


def test_every_class_has_a_section(reference):
    pages, _ = reference
    for module, page in ((nn, "modules.md"), (optim, "optim.md")):
        for name in module.__all__:
            if isinstance(getattr(module, name), type):
                assert "```pycon\n>>> " in section(pages[page], name), name
    for name, value in vars(optim.lr_scheduler).items():
        if isinstance(value, type) and name[0] != "_" and name == value.__name__:
            assert "```pycon\n>>> " in section(pages["optim.md"], name), name


def test_known_facts(reference):
    pages, _ = reference
    linear = section(page_of(pages, "linear"), "linear")
    for signature in ("B, B -> B", "S(0), B -> S(0)", "B, S(0) -> S(1)", "S(1), S(1) -> P"):
        assert f"`{signature}`" in linear
    assert "Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});" in linear
    assert "x [2, 3], weight [4, 3] → [2, 4]" in linear
    matmul = section(page_of(pages, "matmul"), "matmul")
    assert "observed" in matmul and "`S(1), S(0) -> P`" in matmul and "`S(1), B ->" not in matmul
    assert "**gradient**: no" in section(page_of(pages, "eq"), "eq")
    assert "**dtypes** of indices: int32, int64" in section(page_of(pages, "embedding"), "embedding")
    assert "weight [4, 3], bias [4]" in section(pages["modules.md"], "Linear")


def test_pages_are_whole(reference):
    pages, _ = reference
    for path, text in pages.items():
        assert len(text) > 200, f"{path} is empty"
        assert text.startswith("# ")
        docs.blocks(text)  # raises where a fence is open
        assert "0x7" not in text, f"{path} shows an address, which changes from run to run"


def test_links_lead_somewhere(reference):
    pages, _ = reference
    for path, text in pages.items():
        plain = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", plain):
            file, _, anchor = target.partition("#")
            parts = [*path.split("/")[:-1], *file.split("/")] if file else path.split("/")
            while ".." in parts:
                at = parts.index("..")
                del parts[at - 1 : at + 1]
            assert "/".join(parts) in pages, f"{path}: {target}"
            if anchor:
                heads = {h.lower() for h in re.findall(r"^## (.+)$", pages["/".join(parts)], re.M)}
                assert anchor in heads, f"{path}: {target}"


@pytest.mark.parametrize("op", SHOWN, ids=lambda op: op["name"])
def test_words(op):
    assert op["example"], "an example: the second argument of .doc()"
    assert op["shapes"] or re.search(SHAPE_WORDS, op["doc"]), f"the words say nothing about shapes: {op['doc']}"


def test_signatures_of_call():
    x, w = holon.ones(2, 3), holon.ones(4, 3)
    signatures = holon._C.signatures_of_call
    assert "S(1), S(1) -> P" in signatures("linear", x, w)
    assert signatures("linear", x, w) == signatures("linear", x, weight=w)
    assert signatures("add", x, 1.5) == ["B -> B", "S(0) -> S(0)", "S(1) -> S(1)"]
    assert signatures("max", x, dim=1) == ["B -> B, B", "S(0) -> S(0), S(0)"]
    assert "S(0) -> S(0) (if the ranks divide 2)" in signatures("reshape", holon.ones(4, 3), 2, 6)
    assert signatures("zeros", 2, 3) == []
    assert "S(1), S(0) -> P" in signatures("matmul", x, w.t())
    # Vectors are a body of matmul's, matmul_with is nothing else.
    with pytest.raises(RuntimeError, match="composed of other ops"):
        signatures("matmul", x, holon.ones(3))
    with pytest.raises(RuntimeError, match="composed of other ops"):
        signatures("matmul_with", x, w, transpose_b=True)
    with pytest.raises(ValueError):
        signatures("linear", x, holon.ones(3, 4))
    with pytest.raises(TypeError, match="linear"):
        signatures("linear", x)
    with pytest.raises(AttributeError):
        signatures("no_such_op", x)
