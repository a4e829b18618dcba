"""Wrong calls of the older API's ops: what is raised, and that it says what was asked and found."""

import oneflow as flow
import pytest
from oneflow.single_client import arrays, losses, math, nn, random, windows

X, V, Im, W = flow.ones(4, 6), flow.ones(2, 3, 4), flow.ones(1, 2, 5, 5), flow.ones(3, 2, 3, 3)
K = flow.tensor([1, 0], dtype=flow.int32)

CALLS = [
    (arrays.reshape, (X, [-1, -1]), ValueError, r"\[-1, -1\]; sizes must be at least 0, and one of them may be -1"),
    (arrays.reshape, (X, [5, 5]), ValueError, "reshape"),
    (arrays.flatten, (V, 2, 1), ValueError, "start_dim 2 is after end_dim 1"),
    (arrays.flatten, (V, 0, 3), ValueError, "axis 3 is out of range for 3 axes. Give one of -3 to 2"),
    (arrays.transpose, (X, [0, 0]), ValueError, r"perm is \[0, 0\]; it must name each of the 2 axes"),
    (arrays.transpose, (X, [1, 0], True), NotImplementedError, "conjugate"),
    (arrays.squeeze, (X, [0]), ValueError, "axis 0 of .* has 4 elements; only axes of size 1 can go"),
    (arrays.expand_dims, (X, 4), ValueError, "axis 4 is out of range for 3 axes"),
    (arrays.expand_dims, (X, "0"), TypeError, "axis is '0'; it must be an int"),
    (arrays.concat, ([],), ValueError, "there is no blob to join"),
    (arrays.concat, ([X, X], 2), ValueError, "axis 2 is out of range"),
    (arrays.concat, ([X, V],), ValueError, "."),
    (arrays.stack, ([],), ValueError, "there is no blob to join"),
    (arrays.reverse, (X, [0, 0]), ValueError, "names an axis twice"),
    (arrays.pad, (X, [(1, 1)]), ValueError, "two counts of at least 0 for each of the 2 axes"),
    (arrays.pad, (X, [(1, 1), (-1, 0)]), ValueError, "two counts of at least 0"),
    (arrays.slice, (X, [0], [1]), ValueError, "one number for each of the 2 axes"),
    (arrays.slice, (X, [0, 0], [5, 1]), ValueError, r"axis 0 of \[4, 6\] has no 5 elements from 0 on"),
    (arrays.slice, (X, [4, 0], [-1, 1]), ValueError, "axis 0"),
    (arrays.slice_v2, (X, [(0, 1)]), ValueError, r"takes \(start, stop, step\)"),
    (arrays.slice_v2, (X, [(0, 1, 0)]), ValueError, "a step is 0"),
    (arrays.slice_update, (X, X, [(None, None, -1)]), ValueError, "steps must be positive"),
    (arrays.gather, (V, K, None, 3), ValueError, "axis 3 is out of range"),
    (arrays.gather, (V, K, None, 0, 1), ValueError, "axis 0 is one of the 1 axes of batch_dims"),
    (arrays.gather, (X, K, None, 1, 1), ValueError, "the first 1 axes of params"),
    (arrays.gather, (V, K, None, 1, 2), ValueError, "batch_dims is 2|axis 1 is one of"),
    (arrays.where, (X, X), ValueError, "give both x and y, or neither"),
    (arrays.sort, (X, -1, "UP"), ValueError, "direction is 'UP'; it must be 'ASCENDING' or 'DESCENDING'"),
    (arrays.one_hot, (K, 3, 1, 0, 5), ValueError, "axis 5 is out of range"),
    (arrays.constant, ("1",), TypeError, "value is '1'; it must be a number"),
    (arrays.constant, (1, None, 3), TypeError, "shape is 3; it must be a list or a tuple"),
    (arrays.range, (3, 5, 0), ValueError, "delta is 0"),
    (arrays.matmul, (X, flow.ones(6)), ValueError, "two axes or more"),
    (arrays.matmul, (X, X), ValueError, "."),
    (arrays.argwhere, (X,), NotImplementedError, "known only when the job runs"),
    (arrays.where, (X,), NotImplementedError, "known only when the job runs"),
    (arrays.sync_dynamic_resize, (X, 3), NotImplementedError, "known only when the job runs"),
    (math.add_n, ([],), ValueError, "there is no blob to add"),
    (math.add_n, ([X, flow.ones(4, 1)],), ValueError, "shapes and dtypes must be equal"),
    (math.clip_by_value, (X,), ValueError, "Give one of them, or both"),
    (math.clip_by_value, (X, 2, 1), ValueError, "min_value 2 is more than max_value 1"),
    (math.polyval, (3, X), ValueError, "coeffs must be a list"),
    (math.reduce_sum, (X, 2), ValueError, "reduce_sum: axis 2 is out of range for 2 axes"),
    (math.reduce_max, (X, [0, -2]), ValueError, "names an axis twice"),
    (math.argmax, (X, 2), ValueError, "argmax: axis 2"),
    (math.top_k, (X, -1, 7), ValueError, "k is 7; the axis has 6 elements"),
    (math.tril, (flow.ones(3),), ValueError, "two axes or more"),
    (math.l2_normalize, (X, 5), ValueError, "axis 5"),
    (math.unsorted_segment_sum, (X, K, 3), ValueError, "must have that shape from axis 0 on"),
    (nn.softmax, (X, 2), ValueError, "softmax: axis 2"),
    (nn.bias_add, (X, flow.ones(4)), ValueError, r"the bias \[4\] does not fit axis 1 of \[4, 6\]"),
    (nn.bias_add, (Im, flow.ones(2), "CHW"), ValueError, "data_format is 'CHW'"),
    (nn.moments, (X, [3]), ValueError, "moments: axis 3"),
    (nn.batch_normalization, (Im, flow.ones(3), flow.ones(3)), ValueError, r"found \[3\] for axis 1"),
    (nn.layer_norm, (V, flow.ones(3)), ValueError, r"gamma is \[3\]; it must be \[4\]"),
    (nn.upsample, (X,), ValueError, "must have 4 axes"),
    (nn.upsample, (Im, 2, "NCHW", "cubic"), ValueError, "interpolation is 'cubic'"),
    (nn.upsample, (Im, 0), ValueError, "size is 0"),
    (nn.dropout, (X, 0.5, [2, 6]), ValueError, "noise_shape"),
    (nn.random_mask_like, (X, 1.5), AssertionError, "rate is 1.5"),
    (random.coin_flip, (0,), ValueError, "batch_size is 0"),
    (random.coin_flip, (3, None, 2), ValueError, "be between 0 and 1"),
    (losses.sparse_softmax_cross_entropy_with_logits, (flow.zeros(3, dtype=flow.int32), X), ValueError,
     r"labels \[3\] do not fit the scores \[4, 6\]"),
    (losses.sparse_softmax_cross_entropy_with_logits, (flow.zeros(4), X), TypeError,
     "labels are .*float32; they must be classes"),
    (losses.sparse_cross_entropy, (flow.zeros(4, 2, dtype=flow.int32), X), ValueError, "do not fit"),
    (losses.softmax_cross_entropy_with_logits, (V, X), ValueError, "Their shapes must be equal"),
    (losses.MSELoss, (X, X, "average"), ValueError, "reduction is 'average'; it must be 'none', 'mean' or 'sum'"),
    (losses.L1Loss, (X, flow.ones(6)), ValueError, "input is .*, target"),
    (losses.TripletMarginLoss, (X, X, V), ValueError, "anchor is .*, negative"),
    (windows.conv2d, (X, W, 1, "SAME"), ValueError, "conv2d: the input is .*; it must have 4 axes, NCHW"),
    (windows.conv2d, (Im, X, 1, "SAME"), ValueError, "filters are"),
    (windows.conv2d, (Im, W, 1, "FULL"), ValueError, "padding is 'FULL'; it must be 'SAME'"),
    (windows.conv2d, (Im, W, 1, [1, 1]), ValueError, "one or two for each of the blob's 4 axes"),
    (windows.conv2d, (Im, W, 1, [1, 0, 0, 0]), ValueError, "the axes of samples and channels cannot be padded"),
    (windows.conv2d, (Im, W, 1, [0, 0, -1, 0]), ValueError, "each axis takes a count of at least 0"),
    (windows.conv2d, (Im, W, [1, 2, 3], "SAME"), ValueError, r"conv2d: strides is \[1, 2, 3\]"),
    (windows.conv2d, (Im, W, 1, "SAME", "NHCW"), ValueError, "data_format is 'NHCW'; it must be 'NCHW' or 'NHWC'"),
    (windows.conv2d, (Im, flow.ones(3, 4, 3, 3), 1, "SAME"), ValueError, "do not fit the 2 channels"),
    (windows.conv2d, (Im, W, 1, "SAME", "NCHW", None, 2), ValueError, "in 2 groups do not fit"),
    (windows.conv2d, (flow.ones(1, 5, 5, 2), flow.ones(2, 3, 3, 1), 1, "SAME", "NHWC", None, 2), ValueError,
     "2 groups need the channels in front"),
    (windows.conv2d_transpose, (Im, flow.ones(2, 3, 3, 3)), ValueError, "strides must be given"),
    (windows.conv2d_transpose, (Im, flow.ones(3, 2, 3, 3), None, 1), ValueError, "does not fit the 2 channels"),
    (windows.conv2d_transpose, (Im, flow.ones(2, 3, 3, 3), [1, 3, 20, 20], 2), ValueError, "cannot come of"),
    (windows.conv2d_transpose, (Im, flow.ones(2, 3, 3, 3), [20, 20], 2), ValueError, "it must have 4 sizes"),
    (windows.conv2d_transpose, (Im, flow.ones(2, 3, 3, 3), None, 2, "FULL"), ValueError, "padding is 'FULL'"),
    (windows.max_pool2d, (Im, 9, 1, "VALID"), ValueError, r"a window of \[9, 9\] does not fit into the input"),
    (windows.max_pool2d, (Im, 2, 1, [0, 0, 2, 2]), ValueError, "without an element of the image"),
    (windows.avg_pool2d, (Im, 0, 1, "VALID"), ValueError, "must be 1 or more"),
    (windows.same_padding, (Im, "SAME_LOWER", "NCHW", (3, 3, 3), 1, 1), ValueError, "kernel_size"),
]  # fmt: skip


@pytest.mark.parametrize(
    "function, args, error, says", CALLS, ids=[f"{c[0].__name__}-{n}" for n, c in enumerate(CALLS)]
)
def test_bad_calls(function, args, error, says):
    with pytest.raises(error, match=says):
        function.fn(*args)


def test_not_implemented():
    for pool in (windows.max_pool1d, windows.avg_pool1d):
        with pytest.raises(NotImplementedError, match="Use .*_pool2d"):
            pool(X, 2, 2, "VALID")
    with pytest.raises(AssertionError, match="rate is 1; it must be a number of at least 0 and less than 1"):
        nn.dropout(X, rate=1)
    with pytest.raises(AssertionError, match="a seed needs a name"):
        nn.dropout(X, rate=0.5, seed=3)
