"""Ops from outside of the tree: compiled and loaded at run time."""

import re
from pathlib import Path

import numpy as np
import pytest
from holon.utils import cpp_extension

import holon as flow

SOURCE = Path(__file__).parent / "library/soft_cap.cpp"
HEAD = "#include <holon/dispatch/dispatch.h>\nusing namespace holon;\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    names = cpp_extension.load("soft_cap", SOURCE, build_directory=folder)
    assert sorted(names) == ["row_dot", "soft_cap", "twice_capped"]
    assert (
        cpp_extension.load("soft_cap", [SOURCE], build_directory=folder) == names
    )  # nothing is compiled, nothing declared twice
    assert len(list(folder.glob("*.so"))) == 1
    return names


def test_the_ops_are_like_those_of_holon(library):
    x = flow.tensor(np.linspace(-50, 50, 12).reshape(3, 4), dtype=flow.float64, requires_grad=True)
    y = flow.soft_cap(x, cap=10)
    t = np.tanh(x.detach().numpy() / 10)
    np.testing.assert_allclose(y.detach().numpy(), 10 * t)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1 - t * t, atol=1e-12)
    assert x.soft_cap().shape == (3, 4) and flow.twice_capped(x).requires_grad
    assert "soft_cap" in flow.ops() and "cap * tanh" in flow.soft_cap.__doc__
    with pytest.raises(ValueError, match=r"soft_cap: cap is not positive: x is \[3, 4\]"):
        flow.soft_cap(x, cap=-1.0)
    with pytest.raises(TypeError, match="soft_cap: takes floating point"):
        flow.soft_cap(flow.ones(2, dtype=flow.int64))
    with pytest.raises(ValueError, match="row_dot: x and y are not two matrices"):
        flow.row_dot(flow.ones(2, 3), flow.ones(3, 2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_dtype_that_is_let_through_is_computed(library, dtype):
    dtype = getattr(flow, dtype)
    values = np.linspace(-50, 50, 40)
    for _ in range(3):  # whatever lies in the memory that the result gets
        flow.full((40,), 7.0, dtype=dtype)
        y = flow.soft_cap(flow.tensor(values, dtype=dtype), cap=10)
        assert y.dtype == dtype
        np.testing.assert_allclose(y.double().numpy(), 10 * np.tanh(values / 10), atol=0.1)
    with pytest.raises(TypeError, match="row_dot: takes float32 only"):
        flow.row_dot(flow.ones(2, 2, dtype=flow.bfloat16), flow.ones(2, 2, dtype=flow.bfloat16))


def test_what_else_they_declare_holds_for_them_too(library):
    rows = {row["name"]: row for row in flow._C.op_table()}
    assert (rows["soft_cap"]["autocast"], rows["soft_cap"]["flops"]) == ("float32", True)
    assert rows["row_dot"]["autocast"] == "promote" and rows["twice_capped"]["composed"]
    x = flow.ones(2, 3)
    with flow.autocast("cpu", dtype=flow.bfloat16):
        product = flow.matmul(x, flow.ones(3, 4))
        assert product.dtype == flow.bfloat16 and flow.soft_cap(product).dtype == flow.float32
        assert flow.row_dot(x, x.bfloat16()).dtype == flow.float32


def test_they_are_divided_by_their_rules(library):
    def run(rank):
        place = flow.placement("cpu", [0, 1])
        whole = flow.sbp.broadcast
        a = flow.tensor(np.arange(15.0).reshape(5, 3)).float().to_global(place, whole)
        b = flow.ones(5, 3, placement=place, sbp=whole)
        x = a.to_global(place, flow.sbp.split(0))
        y = flow.row_dot(x, b.to_global(place, flow.sbp.split(0)))
        z = flow.row_dot(a.to_global(place, flow.sbp.split(1)), b.to_global(place, flow.sbp.split(1)))
        return str(y.sbp), str(z.sbp), str(flow.soft_cap(x).sbp), z.numpy().tolist()

    for y, z, cap, values in flow.run_ranks(2, run):
        assert "split(dim=0)" in y and "partial_sum" in z and "split(dim=0)" in cap
        assert values == [3.0, 12.0, 21.0, 30.0, 39.0]


@pytest.mark.parametrize(
    "text, says",
    [
        ('HOLON_OP(add, "add(Tensor x) -> Tensor");', "an op named add exists already"),
        ('HOLON_OP(mine_a, "mine_a(Tensor x -> Tensor");', r"schema \"mine_a.*expected '\)'"),
        ('HOLON_OP(mine_b, "mine_b(Tensor x) -> Tensor").infer_like();', r"declaration of op mine_b lacks .kernel\(\)"),
        (
            'HOLON_OP(mine_c, "mine_c(Tensor x) -> Tensor").infer_like().kernel([](KernelCall&) {});',
            r"op mine_c lacks .rule\(\)",
        ),
        ('static auto d = define_op("mine_d(Tensor x) -> Tensor", 0);', "compiled against version 0"),
        (
            'HOLON_OP(mine_e, "mine_e(Tensor x, float cap) -> Tensor").infer_like().rule_elementwise()'
            '.kernel([](KernelCall& c) { c.f("cpa"_attr); });',
            "reads an attribute cpa, which no op has",
        ),
        ("int nothing;", "declares no ops"),
        ("this is not C++", "does not compile.*error"),
    ],
)
def test_a_wrong_library_is_refused(tmp_path, text, says):
    source = tmp_path / "wrong.cpp"
    source.write_text(HEAD + text)
    with pytest.raises(RuntimeError) as raised:
        cpp_extension.load("wrong", source, extra_cflags=["-O0"], build_directory=tmp_path)
    assert re.search(says, str(raised.value), re.S), raised.value
    assert not any(name.startswith("mine_") for name in flow.ops())


def test_what_does_not_link_says_why(tmp_path):
    source = tmp_path / "unlinked.cpp"
    source.write_text("int nothing;")
    with pytest.raises(RuntimeError, match="does not compile.*no_such_library_here"):
        cpp_extension.load("unlinked", source, extra_ldflags=["-lno_such_library_here"], build_directory=tmp_path)


def test_a_file_that_is_no_library(tmp_path):
    with pytest.raises(RuntimeError, match="there is no file"):
        flow.load_library(tmp_path / "missing.so")
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        flow.load_library(tmp_path / "text.so")
