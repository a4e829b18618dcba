"""Calls of ops: arguments from the schema, methods, in-place forms, documentation."""

import functools
import inspect
import pickle
import sys

import numpy as np
import pytest

from holon import _C

ops, tensor, Tensor = _C.ops, _C.tensor, _C.Tensor


def refused(call, kind=TypeError):
    with pytest.raises(kind) as e:
        call()
    return str(e.value)


def test_an_op_is_a_function_and_a_method():
    x, y = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    assert ops["add"](x, y).tolist() == x.add(y).tolist() == Tensor.add(x, y).tolist() == [4, 6]
    bound = x.add
    assert bound(y).tolist() == [4, 6] and list(map(x.add, [y]))[0].tolist() == [4, 6]
    assert functools.partial(ops["add"], x)(other=y).tolist() == [4, 6]
    assert not hasattr(x, "add_scalar") and "add_scalar" not in ops and _C.call("add_scalar", x, 1).tolist() == [2, 3]


def test_keywords_and_their_other_spellings():
    x = tensor([[1.0, 2.0], [3.0, 4.0]])
    assert (
        ops["sum"](x, dim=0).tolist() == ops["sum"](x, axis=0).tolist() == ops["sum"](input=x, dim=0).tolist() == [4, 6]
    )
    assert ops["sum"](x=x, dim=[0, 1]).item() == 10 and x.sum(dim=1, keepdims=True).shape == (2, 1)
    assert ops["add"](x, other=x).tolist() == [[2, 4], [6, 8]]


def test_numbers_take_the_place_of_tensors():
    x = tensor([1.0, 2.0])
    add, sub, pow = ops["add"], ops["sub"], ops["pow"]
    assert (
        add(x, 2).tolist() == add(2, x).tolist() == [3, 4]
        and sub(5, x).tolist() == [4, 3]
        and pow(2, x).tolist() == [2, 4]
    )
    assert (
        add(x, np.float32(2)).tolist() == [3, 4]
        and add(x, True).tolist() == [2, 3]
        and x.sub(other=1).tolist() == [0, 1]
    )
    assert add(x, other=2).tolist() == [3, 4]
    assert (tensor([1, 2]) + 1.5).dtype == _C.float32 and (tensor([1, 2]) + 1).dtype == _C.int64


def test_lists_of_ints():
    x = ops["zeros"](2, 3)
    assert (
        x.shape
        == ops["zeros"]((2, 3)).shape
        == ops["zeros"]([2, 3]).shape
        == ops["zeros"](size=(2, 3)).shape
        == ops["zeros"](x.shape).shape
    )
    assert ops["zeros"](np.int64(2), 3).shape == (2, 3) and ops["zeros"](4).shape == (4,)
    assert x.reshape(3, 2).shape == x.reshape((3, 2)).shape == x.reshape([3, -1]).shape == x.view(-1, 2).shape == (3, 2)
    assert x.permute(1, 0).shape == x.permute((1, 0)).shape == (3, 2)
    assert x.sum(0).shape == (3,) and x.sum((0, 1)).shape == () and x.sum([0]).shape == (3,)


def test_options():
    z = ops["zeros"](2, dtype=_C.int64)
    assert (
        z.dtype == _C.int64
        and ops["zeros"](2, dtype="float64").dtype == _C.float64
        and ops["zeros"](2, dtype=np.int32).dtype == _C.int32
    )
    assert ops["ones"](2, requires_grad=True).requires_grad and ops["ones"](2, device="cpu").device == "cpu"
    assert ops["ones"](2, device=_C.device("cpu"), dtype=None).dtype == _C.float32


def test_several_outputs_are_a_tuple():
    parts = tensor([1, 2, 3, 4]).chunk(2)
    assert isinstance(parts, tuple) and [p.tolist() for p in parts] == [[1, 2], [3, 4]]
    a, b = ops["split"](tensor([1, 2, 3]), [1, 2])
    assert a.tolist() == [1] and b.tolist() == [2, 3]


def test_lists_of_tensors():
    a, b = tensor([[1]]), tensor([[2]])
    assert ops["cat"]([a, b]).tolist() == [[1], [2]] and ops["cat"]((a, b), dim=1).tolist() == [[1, 2]]
    assert refused(lambda: ops["cat"]([a, 3])).startswith(
        "cat: argument tensors[1] must be Tensor, got int 3. Signature: cat(Tensor[] tensors"
    )
    assert "argument tensors must be a list of Tensor, got Tensor [1, 1]" in refused(lambda: ops["cat"](a))
    assert "at least one" in refused(lambda: ops["cat"]([]), ValueError)


def test_an_op_that_returns_its_input_returns_the_same_object():
    g = tensor([1.0, 2.0], placement=_C.placement("cpu", [0]), sbp=_C.sbp.broadcast)
    assert g.to_global(g.placement, g.sbp) is g and g.to_global(sbp=_C.sbp.broadcast) is g and ops["to_global"](g) is g


ADD = "Signature: add(Tensor x, Tensor other) -> Tensor"


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda x: ops["add"](x), f"add: argument other is missing. {ADD}"),
        (lambda x: ops["add"](), f"add: argument x is missing. {ADD}"),
        (lambda x: ops["add"](x, "a"), f"add: argument other must be Tensor or a number, got str 'a'. {ADD}"),
        (lambda x: ops["add"](x, None), f"add: argument other must be Tensor or a number, got None. {ADD}"),
        (lambda x: ops["add"](1, 2), f"add: argument x must be Tensor or a number, got int 1. {ADD}"),
        (
            lambda x: ops["add"](x, [1, 2]),
            f"add: argument other must be Tensor or a number, got list of 2 (first: int). {ADD}",
        ),
        (lambda x: ops["add"](x, x, x), f"add: takes at most 2 positional arguments, got 3. {ADD}"),
        (lambda x: ops["add"](x, x, out=x), f"add: there is no argument 'out'. {ADD}"),
        (lambda x: ops["add"](x, x, other=x), f"add: argument other was given twice. {ADD}"),
        (lambda x: ops["add"](x, x=x), f"add: argument x was given twice. {ADD}"),
        (
            lambda x: ops["relu"](2.0),
            "relu: argument x must be Tensor, got float 2.0. Signature: relu(Tensor x) -> Tensor",
        ),
        (lambda x: ops["softmax"](x, 1.5), "softmax: argument dim must be int, got float 1.5."),
        (lambda x: ops["sum"](x, keepdim=1), "sum: argument keepdim must be bool, got int 1."),
        (lambda x: ops["sum"](x, dim="0"), "sum: argument dim must be a list of int or None, got str '0'."),
        (lambda x: ops["zeros"]("a"), "zeros: argument size must be int, or a list of them, got str 'a'."),
        (lambda x: ops["zeros"](2, "a"), "zeros: argument size must be int, or a list of them, got str 'a'."),
        (
            lambda x: ops["zeros"](2, dtype=3),
            "zeros: argument dtype must be a dtype such as holon.float32 or None, got int 3.",
        ),
        (
            lambda x: ops["zeros"](2, sbp="S"),
            "zeros: argument sbp must be an sbp, or a list of them or None, got str 'S'.",
        ),
        (lambda x: ops["gelu"](x, approximate=1), "gelu: argument approximate must be str, got int 1."),
        (lambda x: ops["gelu"](x, "tanh"), "gelu: takes at most 1 positional arguments, got 2."),
        (lambda x: x.reshape(), "reshape: argument shape is missing."),
        (lambda x: x.add_(), "add: argument other is missing."),
        (lambda x: ops["add_"](2, x), "add_: the first argument must be Tensor: it is written to."),
    ],
)
def test_wrong_arguments_are_named(call, text):
    assert refused(lambda: call(tensor([1.0, 2.0]))).startswith(text)


def test_a_method_without_its_tensor():
    assert refused(lambda: Tensor.relu()).startswith("relu: argument x is missing.")
    assert refused(lambda: Tensor.relu("a")).startswith("relu: argument x must be Tensor, got str 'a'.")


def test_core_errors_have_their_kinds():
    x = tensor([1.0, 2.0])
    assert "do" in refused(lambda: x + tensor([1.0, 2.0, 3.0]), ValueError)
    refused(lambda: x.softmax(3), IndexError)
    refused(lambda: tensor([1, 2]).mean(), RuntimeError)
    refused(lambda: _C.call("no_such_op"), AttributeError)
    refused(lambda: x.no_such_method, AttributeError)
    refused(lambda: ops["zeros"](2, device="tpu"), (RuntimeError, ValueError))
    refused(lambda: ops["zeros"](1, 1, 1, 1, 1, 1, 1, 1, 1), (ValueError, RuntimeError))


def test_documentation():
    add = ops["add"]
    assert (
        add.__name__ == "add"
        and "Signature: add(Tensor x, Tensor other) -> Tensor" in add.__doc__
        and "Example: holon.add(" in add.__doc__
    )
    assert str(inspect.signature(add)) == "(x, other)" and "keepdim=False" in str(inspect.signature(ops["sum"]))
    assert repr(add) == "<op add: add(Tensor x, Tensor other) -> Tensor>" and ops["add_"].__name__ == "add_"
    assert "In place" in ops["add_"].__doc__
    assert pickle.loads(pickle.dumps(add))(tensor([1]), tensor([2])).item() == 3


def test_the_op_table():
    table = {row["name"]: row for row in _C.op_table()}
    assert set(r["public_name"] for r in table.values() if r["function"]) <= set(ops)
    add = table["add"]
    assert (
        add["has_grad"]
        and add["in_place"]
        and add["linear"]
        and add["rule"] == "elementwise"
        and add["scalar_overload"] == "add_scalar"
    )
    assert [a["name"] for a in table["sum"]["args"]] == ["x", "dim", "keepdim", "dtype"] and table["sum"]["args"][2][
        "default"
    ] == "False"
    assert table["clamp"]["aliases"] == ["clip"] and "clip" in ops
    for row in table.values():
        assert row["schema"].startswith(row["name"] + "(")
        if row["function"]:
            inspect.signature(ops[row["public_name"]])


def test_every_example_runs():
    dtypes = ("float32", "float64", "int64", "int32", "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
    names = {
        **{n: getattr(_C, n) for n in (*dtypes, "placement", "sbp", "tensor")},
        **ops,
    }
    bad = []
    for row in _C.op_table():
        if row["function"] and row["example"]:
            try:
                eval(row["example"], names)
            except Exception as e:  # noqa: BLE001 - all failures are listed
                if row["name"] == "pin_memory" and not _C.cuda_device_count():
                    assert "pinned memory was requested" in str(e)  # it needs a device
                    continue
                bad.append(f"{row['example']}: {type(e).__name__}: {e}")
    assert not bad, "\n".join(bad)


def test_references_are_balanced():
    x, y = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    words = ["other", (2, 3), 1.5]
    add = ops["add"]

    def calls():
        (
            x + y,
            x + 1,
            1 - x,
            add(x, y),
            add(x, other=y),
            add(x, 1.5),
            x.relu(),
            x.sum(dim=0),
            x.reshape((2, 1)),
            x == y,
            x[0],
            x.shape,
            x.dtype,
        )
        x.add_(0.0)
        for bad in (lambda: add(x), lambda: add(x, "a"), lambda: add(x, y, out=x)):
            try:
                bad()
            except TypeError:
                pass

    for _ in range(20):
        calls()
    before = [sys.getrefcount(o) for o in (x, y, add, None, Tensor, type(add), *words)]
    for _ in range(200):
        calls()
    after = [sys.getrefcount(o) for o in (x, y, add, None, Tensor, type(add), *words)]
    assert all(abs(a - b) < 20 for a, b in zip(after, before)), (before, after)


def test_one_name_for_several_ops():
    x = tensor([[1.0, 5.0], [4.0, 2.0]])
    assert ops["max"](x).item() == x.max().item() == 5
    assert x.max(tensor([3.0, 3.0])).tolist() == ops["max"](x, other=tensor(3.0)).tolist() == [[3, 5], [4, 3]]
    r = x.max(1)
    assert r.values.tolist() == [5, 4] and r.indices.tolist() == [1, 0] and r[0] is r.values and len(r) == 2
    values, indices = ops["max"](input=x, axis=0, keepdims=True)
    assert values.tolist() == [[4, 5]] and indices.tolist() == [[1, 0]]
    assert "max_dim" not in ops and not hasattr(x, "max_dim")
    assert pickle.loads(pickle.dumps(ops["max"]))(x, 0).values.tolist() == [4, 5]
    assert ops["max"].__doc__.count("Signature: max(") == 3 and "3 overloads" in repr(ops["max"])
    text = refused(lambda: x.max("a", keepdim=3))
    assert (
        "max: no overload accepts (Tensor [2, 2], str 'a', keepdim=int 3)" in text
        and "max(Tensor x, int dim, bool keepdim=False)" in text
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x == 2**32,
        lambda x: x < 2**31,
        lambda x: x + 2**32,
        lambda x: 2**40 - x,
        lambda x: x.clamp(0, 2**40),
        lambda x: x.to(_C.int8) * 200,
        lambda x: x.to(_C.uint8) + 256,
    ],
)
def test_a_number_that_the_integers_cannot_hold(call):
    with pytest.raises(ValueError, match=r"the number \d+ does not fit u?int(8|32).*to\(int64\)"):
        call(tensor([0, 1], dtype=_C.int32))


def test_numbers_at_the_ends_of_integers():
    x = tensor([0, -1], dtype=_C.int32)
    assert (x + (2**31 - 1)).tolist() == [2**31 - 1, 2**31 - 2] and (x >= -(2**31)).tolist() == [True, True]
    assert (x.to(_C.int64) == 2**32).tolist() == [False, False] and (tensor([1], dtype=_C.uint8) + -1).tolist() == [0]
