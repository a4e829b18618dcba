"""Tensor objects: making them, properties, conversions, numbers, text."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

from holon import _C

ops, tensor, Tensor = _C.ops, _C.tensor, _C.Tensor


def test_data_from_python_has_the_right_dtype():
    assert tensor([1, 2]).dtype == _C.int64
    assert tensor([1.0, 2]).dtype == _C.float32
    assert tensor([True, False]).dtype == _C.bool
    assert tensor(3).shape == ()
    assert tensor([]).dtype == _C.float32 and tensor([]).shape == (0,)
    assert tensor([[1, 2, 3], [4, 5, 6]]).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert tensor(range(3)).tolist() == [0, 1, 2]
    assert tensor([1, 2], dtype=_C.float64).tolist() == [1.0, 2.0]
    assert tensor([1.9, -1.9], dtype=_C.int32).tolist() == [1, -1]
    assert tensor(2**40).item() == 2**40


@pytest.mark.parametrize("name", ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"])
def test_numpy_dtypes_round_trip(name):
    a = np.array([[0, 1], [1, 0]]).astype(name)
    t = tensor(a)
    assert t.dtype == getattr(_C, name if name != "bool" else "bool")
    assert t.numpy().dtype == a.dtype and (t.numpy() == a).all()
    assert (_C.from_numpy(a).numpy() == a).all()


def test_data_from_arrays_numbers_of_numpy_and_tensors():
    assert tensor(np.float64(1.5)).dtype == _C.float64
    assert tensor(np.array([1.5])).dtype == _C.float64
    assert tensor([np.float32(1), np.float32(2)]).dtype == _C.float32
    assert tensor([tensor([1, 2]), tensor([3, 4])]).tolist() == [[1, 2], [3, 4]]
    assert tensor(np.arange(6).reshape(2, 3)[:, ::-1]).tolist() == [[2, 1, 0], [5, 4, 3]]
    t = tensor([1.0])
    u = tensor(t)
    u[0] = 5.0
    assert t.item() == 1.0


@pytest.mark.parametrize(
    "data, kind, text",
    [
        (
            [[1, 2], [3]],
            ValueError,
            "the lists are ragged: a list of 1 is at depth 1 where others have a list of 2",
        ),
        ([1, [2]], ValueError, "ragged"),
        ([[1], 2], ValueError, "ragged"),
        ("abc", TypeError, "tensor: takes numbers, (nested) lists of them, arrays or tensors; got str 'abc'"),
        (None, TypeError, "got None"),
        (object(), TypeError, "got object"),
        (np.array([1], dtype=np.uint16), TypeError, "numpy's uint16 has no tensor type"),
        (np.array(["a"]), TypeError, "has no tensor type"),
        (np.array([1j]), TypeError, "complex128"),
        (2**80, ValueError, "does not fit in 64 bits"),
    ],
)
def test_data_that_is_refused(data, kind, text):
    with pytest.raises(kind) as e:
        tensor(data)
    assert text in str(e.value)


def test_properties():
    t = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert t.shape == (2, 3) and isinstance(t.shape, _C.Size) and repr(t.shape) == "holon.Size([2, 3])"
    assert repr(t.shape[1:]) == "holon.Size([3])" and t.shape.numel() == 6
    assert t.size() == (2, 3) and t.size(-1) == 3 and t.dim() == t.ndim == 2 and t.numel() == 6 and len(t) == 2
    assert t.stride() == (3, 1) and t.stride(0) == 3 and t.is_contiguous() and t.element_size() == 4 and t.nbytes == 24
    assert t.T.tolist() == [[1, 4], [2, 5], [3, 6]] and not t.T.is_contiguous()
    assert t.device == "cpu" and t.device.type == "cpu" and repr(t.device) == "device(type='cpu')"
    assert t.is_local and not t.is_global and not t.is_cuda and t.is_leaf and t.grad_fn is None and t.grad is None
    assert t.is_floating_point() and not tensor([1]).is_floating_point()
    assert t.data_ptr() == t.detach().data_ptr() != tensor([1]).data_ptr()


def test_dtype_objects():
    assert (
        repr(_C.float32) == "holon.float32" and _C.float is _C.float32 and _C.long is _C.int64 and _C.half is _C.float16
    )
    assert _C.float32.is_floating_point and not _C.int64.is_floating_point and _C.float64.itemsize == 8
    assert (
        _C.float32 == np.float32
        and _C.parse_dtype("bfloat16") is _C.bfloat16
        and _C.parse_dtype(np.dtype("int8")) is _C.int8
    )
    assert len({_C.float32, _C.float, _C.int32}) == 2 and _C.float32 != "nonsense" and _C.float32 is not None
    assert _C.promote_types(_C.int64, _C.float16) is _C.float16
    assert pickle.loads(pickle.dumps(_C.bfloat16)) == _C.bfloat16


def test_numbers():
    t = tensor([2.5])
    assert t.item() == 2.5 and float(t) == 2.5 and int(t) == 2 and bool(t) and not bool(tensor(0))
    assert [10, 20, 30][tensor(1)] == 20 and f"{tensor(1.23456):.2f}" == "1.23"
    assert type(tensor(True).item()) is bool and type(tensor(1).item()) is int
    for bad in (lambda: bool(tensor([1, 2])), lambda: bool(tensor([]))):
        with pytest.raises(RuntimeError, match="only one element has a truth value"):
            bad()
    with pytest.raises(ValueError, match="only a tensor of one element is a number"):
        tensor([1, 2]).item()
    with pytest.raises(TypeError, match="only an integer tensor"):
        [1, 2][tensor(1.0)]
    with pytest.raises(TypeError, match=r"len\(\) of a tensor without axes"):
        len(tensor(1))


def test_operators():
    x, y = tensor([1.0, 2.0, 4.0]), tensor([4.0, 2.0, 1.0])
    for mine, theirs in [
        (x + y, [5, 4, 5]),
        (x - y, [-3, 0, 3]),
        (x * y, [4, 4, 4]),
        (x / y, [0.25, 1, 4]),
        (x**y, [1, 4, 4]),
        (x // 2, [0, 1, 2]),
        (x % 2, [1, 0, 0]),
        (2 + x, [3, 4, 6]),
        (2 - x, [1, 0, -2]),
        (2 / x, [2, 1, 0.5]),
        (2**x, [2, 4, 16]),
        (-x, [-1, -2, -4]),
        (abs(-x), [1, 2, 4]),
        (+x, [1, 2, 4]),
        (8 // x, [8, 4, 2]),
        (7 % x, [0, 1, 3]),
    ]:
        assert mine.tolist() == theirs
    assert (x < y).tolist() == [True, False, False] and (x <= 2).tolist() == [True, True, False]
    assert (
        (2 < x).tolist() == [False, False, True]
        and (x == y).tolist() == [False, True, False]
        and (x != 2).tolist() == [True, False, True]
    )
    m = tensor([True, False])
    assert (m & tensor([True, True])).tolist() == [True, False] and (m | True).tolist() == [True, True]
    assert (m ^ tensor([True, True])).tolist() == [False, True] and (~m).tolist() == [False, True]
    assert (tensor([[1.0, 2.0]]) @ tensor([[3.0], [4.0]])).tolist() == [[11.0]]
    assert (x == None) is False and (x != None) is True  # noqa: E711
    assert (np.float32(2) * x).tolist() == [2, 4, 8] and (x + np.int64(1)).tolist() == [2, 3, 5]
    assert 2.0 in x and 3.0 not in x
    with pytest.raises(TypeError):
        x + "a"


def test_operators_in_place_keep_the_object():
    x = tensor([1.0, 2.0])
    same, at = x, x.data_ptr()
    x += 1
    x *= tensor([2.0, 3.0])
    x -= 1
    x /= 2
    x **= 2
    assert x is same and x.data_ptr() == at and x.tolist() == [2.25, 16.0]
    assert x.add_(1) is x and x.tolist() == [3.25, 17.0]
    assert x.zero_() is x and x.tolist() == [0, 0] and x.fill_(3).tolist() == [3, 3]
    assert x.fill_(tensor(5.5)).tolist() == tensor([5.5, 5.5]).to(x.dtype).tolist()
    assert x.copy_(tensor([7, 8])) is x and x.tolist() == [7, 8]


def test_conversions_return_the_same_object_where_nothing_changes():
    x = tensor([1.5, 2.5])
    assert (
        x.to(_C.float32) is x
        and x.float() is x
        and x.cpu() is x
        and x.to("cpu") is x
        and x.to(x) is x
        and x.type_as(x) is x
    )
    assert x.to(_C.float64).dtype == _C.float64 and x.double().dtype == _C.float64 and x.long().tolist() == [1, 2]
    assert (
        x.to("cpu", _C.int32).dtype == _C.int32
        and x.to(dtype=_C.float16).dtype == _C.float16
        and x.to(tensor([1])).dtype == _C.int64
    )
    assert (
        x.to(_C.float32, copy=True) is not x
        and x.type() == "holon.FloatTensor"
        and x.type(_C.int64).type() == "holon.LongTensor"
    )
    assert x.bool().tolist() == [True, True] and x.bfloat16().numpy().dtype == np.float32
    assert (
        x.new_zeros(2, 3).shape == (2, 3)
        and x.new_ones((2,), dtype=_C.int64).tolist() == [1, 1]
        and x.new_full((2,), 7).tolist() == [7, 7]
    )
    assert x.new_tensor([1, 2]).dtype == _C.float32
    with pytest.raises(TypeError, match="to: takes a dtype, a device, a tensor, or a placement and an sbp; got int 3"):
        x.to(3)
    with pytest.raises(ValueError, match="both placement and sbp; only placement"):
        x.to(placement=_C.placement("cpu", [0]))


def test_memory_is_shared_with_numpy_and_dlpack():
    a = np.zeros((2, 3), np.float32)
    t = _C.from_numpy(a)
    a[1, 2] = 5
    assert t[1, 2].item() == 5
    t[0, 0] = 7
    assert a[0, 0] == 7
    n = t.numpy()
    assert n.ctypes.data == a.ctypes.data
    column = t.T.numpy()
    assert column.shape == (3, 2) and column.ctypes.data == a.ctypes.data
    del a, t
    gc.collect()
    assert n[1, 2] == 5  # the array keeps the memory alive
    d = np.from_dlpack(_C.tensor([1.0, 2.0]))
    assert d.tolist() == [1.0, 2.0]
    back = _C.from_dlpack(np.arange(4))
    assert back.tolist() == [0, 1, 2, 3]
    assert (
        np.asarray(tensor([1, 2])).tolist() == [1, 2] and np.array(tensor([1.5]), dtype=np.float64).dtype == np.float64
    )
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        _C.from_numpy(frozen)
    with pytest.raises(ValueError, match="negative strides"):
        _C.from_numpy(np.arange(3)[::-1])
    with pytest.raises(TypeError, match="from_numpy: takes a numpy array, got list of 1"):
        _C.from_numpy([1])
    assert _C.tensor(frozen).tolist() == [0, 0]


def test_numpy_of_a_tensor_that_requires_grad_is_allowed():
    x = tensor([1.0, 2.0], requires_grad=True)
    assert (x * 2).numpy().tolist() == [2.0, 4.0]


def test_memory_is_given_back():
    gc.collect()
    before = _C.memory_stats()["in_use_bytes"]
    t = ops["zeros"](1 << 20)
    n = t.numpy()
    del t
    assert _C.memory_stats()["in_use_bytes"] >= before + (4 << 20)
    del n
    gc.collect()
    assert _C.memory_stats()["in_use_bytes"] <= before + 4096


def test_objects_are_freed_and_weakly_referenced():
    t = tensor([1.0])
    w = weakref.ref(t)
    assert w() is t
    del t
    assert w() is None

    class Sub(Tensor):
        pass

    s = Sub(tensor([1.0, 2.0]))
    s.self_reference = s
    w = weakref.ref(s)
    del s
    gc.collect()
    assert w() is None


def test_subclasses_share_the_value():
    class Parameter(Tensor):
        def __new__(cls, data, requires_grad=True):
            self = Tensor.__new__(cls, data)
            self.requires_grad = requires_grad
            return self

        def __init__(self, data, requires_grad=True):
            super().__init__()

    t = tensor([1.0, 2.0])
    p = Parameter(t)
    assert isinstance(p, Tensor) and type(p) is Parameter and p.data_ptr() == t.data_ptr() and p.requires_grad
    p.name = "weight"
    (p * 2).sum().backward()
    assert p.grad.tolist() == [2, 2] and type(p + 1) is Tensor
    c = copy.deepcopy(p)
    assert (
        type(c) is Parameter
        and c.name == "weight"
        and c.data_ptr() != p.data_ptr()
        and c.tolist() == [1, 2]
        and c.requires_grad
    )
    assert Tensor([1, 2]).dtype == _C.float32 and Tensor(2, 3).shape == (2, 3)
    with pytest.raises(TypeError, match="takes no keyword arguments"):
        Tensor([1], dtype=_C.int64)


def test_copies_and_pickles():
    t = tensor([1.0, 2.0], requires_grad=True)
    for c in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert c.tolist() == [1, 2] and c.requires_grad and c.data_ptr() != t.data_ptr()
    assert copy.copy(t).data_ptr() == t.data_ptr()
    assert pickle.loads(pickle.dumps(tensor([1.5], dtype=_C.bfloat16))).dtype == _C.bfloat16


def test_hash_is_by_object_and_rows_can_be_walked():
    x, y = tensor([1, 2]), tensor([1, 2])
    assert len({x, y, x}) == 2 and {x: "x"}[x] == "x"
    assert [r.tolist() for r in tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    a, b = tensor([5, 6])
    assert int(a) == 5 and int(b) == 6
    with pytest.raises(TypeError):
        iter(tensor(1))


def test_text():
    assert repr(tensor([1.0, 2.0])) == "tensor([1., 2.], dtype=holon.float32)"
    assert str(tensor([1, 2])) == "tensor([1, 2], dtype=holon.int64)"
    assert repr(tensor([1.0], requires_grad=True)) == "tensor([1.], dtype=holon.float32, requires_grad=True)"
    assert repr(tensor([1.0], requires_grad=True) * 2).endswith("grad_fn=<mul_scalar_backward>)")
    before = _C.get_printoptions()
    try:
        _C.set_printoptions(prefix="flow", precision=2)
        assert repr(tensor([1.256])) == "tensor([1.26], dtype=flow.float32)" and repr(_C.float32) == "flow.float32"
        assert repr(_C.sbp.split(1)) == "flow.sbp.split(dim=1)"
    finally:
        _C.set_printoptions(**before)
    with pytest.raises(ValueError, match="precision must be an int of at least 0, got int -1"):
        _C.set_printoptions(precision=-1)


def test_data_and_grad_are_settable():
    x = tensor([1.0, 2.0], requires_grad=True)
    x.grad = tensor([3.0, 4.0])
    assert x.grad.tolist() == [3, 4]
    x.grad = None
    assert x.grad is None
    x.data = tensor([5.0, 6.0])
    assert x.tolist() == [5, 6] and x.requires_grad
    x.data.add_(1)
    assert x.tolist() == [6, 7]
    x.requires_grad = False
    assert not x.requires_grad and x.requires_grad_() is x and x.requires_grad
    with pytest.raises(ValueError, match="must have the same shape"):
        x.grad = tensor([1.0])
    with pytest.raises(TypeError, match="requires_grad must be bool, got int 1"):
        x.requires_grad = 1
    with pytest.raises(RuntimeError, match="only floating point tensors have gradients"):
        tensor([1], requires_grad=True)


def test_wrong_accessors():
    with pytest.raises(RuntimeError, match="Only global tensors have 'placement'"):
        tensor([1]).placement
    with pytest.raises(RuntimeError, match="Local tensor has no sbp property"):
        tensor([1]).sbp
    with pytest.raises(IndexError):
        tensor([1]).size(1)


def test_windows_along_an_axis():
    x = tensor(np.arange(10.0).reshape(2, 5), requires_grad=True)
    y = x.unfold(1, 3, 2)
    assert y.tolist() == np.lib.stride_tricks.sliding_window_view(x.detach().numpy(), 3, 1)[:, ::2].tolist()
    y.sum().backward()
    assert x.grad.tolist() == [[1, 1, 2, 1, 1]] * 2
    assert tensor(3.0).unfold(0, 1, 1).tolist() == [3]
    with pytest.raises(ValueError, match="size 6 is not in"):
        x.unfold(1, 6, 1)
    assert x.mT.shape == (5, 2) and tensor(np.zeros((4, 2, 3))).mT.shape == (4, 3, 2)
    with pytest.raises(ValueError, match="not a matrix"):
        tensor([1.0]).mT


@pytest.mark.parametrize("name", ["float64", "float32", "float16"])
def test_limits_are_numpys(name):
    import holon

    ours, theirs = holon.finfo(getattr(holon, name)), np.finfo(name)
    for field in ("bits", "eps", "max", "min", "tiny", "smallest_subnormal", "resolution"):
        assert theirs.dtype.type(getattr(ours, field)) == getattr(theirs, field), field
    for integer in ("int64", "int32", "int8", "uint8"):
        assert (holon.iinfo(getattr(holon, integer)).min, holon.iinfo(getattr(holon, integer)).max) == (
            np.iinfo(integer).min,
            np.iinfo(integer).max,
        )
    assert (
        holon.finfo(holon.bfloat16).eps == 2**-7
        and holon.finfo(holon.bfloat16).max == holon.tensor(3.3895313892515355e38).to(holon.bfloat16).item()
    )
    for wrong in (
        lambda: holon.finfo(holon.int64),
        lambda: holon.iinfo(holon.float32),
        lambda: holon.iinfo(holon.bool),
    ):
        with pytest.raises(TypeError, match="is no"):
            wrong()


def test_a_value_that_fills_has_the_sum_as_its_gradient():
    for dtype in (_C.float32, _C.float64):
        v, x = tensor(2.0, requires_grad=True), _C.ops["ones"](2, 3, dtype=dtype).requires_grad_()
        y = x * 2
        y.fill_(v)
        assert y.tolist() == [[2.0] * 3] * 2 and y.dtype == dtype
        (y * 3).sum().backward()
        assert v.grad.item() == 18 and v.grad.dtype == v.dtype and x.grad.tolist() == [[0.0] * 3] * 2
    v.grad = None
    _C.ops["fill"](_C.ops["zeros"](4), v).sum().backward()
    assert v.grad.item() == 4
    with pytest.raises(ValueError, match="a tensor without axes"):
        _C.ops["zeros"](4).fill_(_C.ops["ones"](4))


def test_a_size_and_nothing_make_tensors():
    Size = _C.Size
    assert Tensor(Size((2, 3, 4, 5))).shape == (2, 3, 4, 5) and Tensor(_C.ops["ones"](2, 3).shape).shape == (2, 3)
    assert Tensor().shape == (0,) and Tensor([2, 3]).tolist() == [2, 3] and Tensor(2, 3).shape == (2, 3)


def test_a_gradient_is_one_object():
    x = tensor([1.0, 2.0], requires_grad=True)
    (x * 3).sum().backward()
    assert x.grad is x.grad
    kept = x.grad
    (x * 3).sum().backward()
    assert x.grad is kept and kept.tolist() == [6, 6]
    x.grad = None
    assert x.grad is None and kept.tolist() == [6, 6]
    x.grad = kept
    assert x.grad is kept
    gone = weakref.ref(kept)
    del kept
    assert gone() is None and x.grad.tolist() == [6, 6]
    y = tensor([1.0], requires_grad=True)
    y.grad = x.grad[:1]
    assert y.grad is y.grad and y.grad is not x.grad


def test_flatten_of_what_is_flat_is_the_tensor_itself():
    x, y = tensor([1.0, 2.0]), _C.ops["ones"](2, 3)
    assert x.flatten() is x and y.flatten(1) is y and y.flatten().shape == (6,)
    assert tensor(1.0).flatten().shape == (1,)


def test_view_is_no_copy():
    x = _C.ops["arange"](6).reshape(2, 3)
    assert x.view(3, 2).tolist() == [[0, 1], [2, 3], [4, 5]] and x.t().view(3, 2).shape == (3, 2)
    for y in (x.t(), x.T, x.transpose(0, 1), x[:, :2], x.permute(1, 0), x.reshape(2, 1, 3).expand(2, 4, 3), x[:, ::2]):
        with pytest.raises(RuntimeError, match="without a copy. Use reshape"):
            y.view(-1)
        assert y.reshape(-1).shape == (y.numel(),) and y.contiguous().view(-1).shape == (y.numel(),)
    x[0].view(3)[1] = 9
    assert x[0, 1].item() == 9 and x[:1].view(-1).tolist() == [0, 9, 2] and x[1:].view(3).tolist() == [3, 4, 5]
    # Layouts that are the library's own choice are no matter of the program's.
    image = _C.ops["conv2d"](_C.ops["ones"](2, 3, 5, 5), _C.ops["ones"](4, 3, 3, 3))
    assert image.view(2, -1).shape == (2, 36) and image[0].view(-1).shape == (36,)
    assert image.relu().view(2, 4, 9).view(2, -1).shape == (2, 36)


def test_deepcopy_of_a_result_is_a_leaf():
    x = tensor([1.0, 2.0], requires_grad=True)
    y = copy.deepcopy(x * 2)
    assert y.is_leaf and y.requires_grad and y.tolist() == [2, 4] and y.grad is None
    y.sum().backward()
    assert x.grad is None and y.grad.tolist() == [1, 1]
