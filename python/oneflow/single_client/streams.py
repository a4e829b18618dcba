"""Blobs in parts: unpack makes a stream of a blob, pack a blob of a stream.
With scopes on several devices the parts run as a pipeline."""

from holon import _C

from .blob import Blob
from .record import Meta, overrides, record

__all__ = ["acc", "cast_to_current_logical_view", "pack", "repeat", "unpack"]


def _number(what, n):
    assert isinstance(n, int) and not isinstance(n, bool) and n > 0, (
        f"{what}: the number is {n!r}; it must be an int from 1 on."
    )


def unpack(input, unpack_num, name=None):
    """A stream of unpack_num parts of input, cut along the first axis, in order."""
    _number("unpack", unpack_num)
    if input._parts:
        raise ValueError(f"unpack: {input!r} is a stream already.")
    if not input.shape or input.shape[0] % unpack_num:
        raise ValueError(f"unpack: {input!r} cannot be cut along its first axis into {unpack_num} equal parts.")

    def cut(x):
        parts = _C.ops["chunk"](x, unpack_num)
        # Each part is distributed as the whole was: a split batch stays split.
        return [p.to_global(p.placement, x.sbp) for p in parts] if x.is_global else list(parts)

    return record(
        cut,
        (input,),
        {},
        "unpack",
        name,
        spread=False,
        parts=unpack_num,
        metas=Meta((input.shape[0] // unpack_num, *input.shape[1:]), input.dtype),
    )


def pack(input, pack_num, name=None):
    """The stream's pack_num parts as one blob, one after the other along the first axis."""
    _number("pack", pack_num)
    parts = input._parts or 1
    if parts != pack_num:
        raise ValueError(f"pack: {input!r} has {parts} part(s); pack_num is {pack_num} and must be the same.")

    def join(x):
        return _C.ops["cat"](x) if isinstance(x, list) else x

    return record(
        join,
        (input,),
        {},
        "pack",
        name,
        spread=False,
        metas=Meta((input.shape[0] * pack_num, *input.shape[1:]), input.dtype),
    )


def repeat(input, repeat_num, name=None):
    """A stream of repeat_num times the same blob."""
    _number("repeat", repeat_num)
    if input._parts:
        raise ValueError(f"repeat: {input!r} is a stream already.")
    return record(
        lambda x: [x] * repeat_num,
        (input,),
        {},
        "repeat",
        name,
        spread=False,
        parts=repeat_num,
        metas=Meta(input.shape, input.dtype),
    )


def acc(one, max_acc_num, name=None):
    """Sums of max_acc_num parts of the stream each."""
    _number("acc", max_acc_num)
    parts = one._parts or 1
    if parts % max_acc_num:
        raise ValueError(f"acc: {one!r} has {parts} part(s), which cannot be summed by {max_acc_num}.")
    left = parts // max_acc_num

    def sums(x):
        x = x if isinstance(x, list) else [x]
        found = []
        for i in range(left):
            total = x[i * max_acc_num]
            for other in x[i * max_acc_num + 1 : (i + 1) * max_acc_num]:
                total = total + other
            found.append(total)
        return found if left > 1 else found[0]

    return record(
        sums, (one,), {}, "acc", name, spread=False, parts=left if left > 1 else None, metas=Meta(one.shape, one.dtype)
    )


def cast_to_current_logical_view(x):
    """x itself: a job function has one view."""
    assert isinstance(x, Blob), f"cast_to_current_logical_view: takes a blob, got {type(x).__name__}."
    return x


overrides["repeat"] = repeat  # of holon's, which repeats along axes
