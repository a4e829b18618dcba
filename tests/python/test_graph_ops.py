"""Every op in a graph: the example of its declaration gives what it gives in eager mode,
or says that it needs a value."""

import numpy as np
import pytest

import holon
from holon import nn

NAMES = {name: getattr(holon, name) for name in dir(holon) if not name.startswith("_")} | dict(holon._C.ops)
EXAMPLES = {op["name"]: op["example"] for op in holon._C.op_table() if op["example"]}

# Their results have shapes that values decide, are numbers of Python's, or take some argument's values as numbers.
NEED_VALUES = {
    "allclose",
    "argwhere",
    "equal",
    "histc",
    "masked_select",
    "nanquantile_list",
    "nonzero",
    "nonzero_tuple",
    "quantile_list",
    "unique",
    "where_condition",
}


def value_of(x):
    if isinstance(x, holon.Tensor):
        return x.detach().double().numpy() if x.is_floating_point() else x.detach().numpy()
    if isinstance(x, (tuple, list)):
        return [value_of(item) for item in x]
    return x


def same(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
    return a == b


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name):
    example = EXAMPLES[name]
    if name == "pin_memory" and not holon.cuda.is_available():
        with pytest.raises(RuntimeError, match="pinned memory was requested .* there is none"):
            eval(example, dict(NAMES))
        return

    class G(nn.Graph):
        def build(self):
            return eval(example, dict(NAMES))

    holon.manual_seed(3)
    want = value_of(eval(example, dict(NAMES)))
    holon.manual_seed(3)
    try:
        found = value_of(G()())
    except RuntimeError as error:
        assert "is part of a graph that is being captured and has no value yet" in str(error)
        assert name in NEED_VALUES, error
        return
    assert name not in NEED_VALUES
    assert same(want, found), f"{example}: {want} eager, {found} in a graph"
