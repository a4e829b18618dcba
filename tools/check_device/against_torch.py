"""Comparisons with torch in one process: tensors pass by DLPack, without a copy where torch has the device, else (the
emulator, and torch for the CPU) by host memory."""

import json
import sys

import torch

import holon as flow

ON_DEVICE = torch.cuda.is_available() and flow.cuda.get_device_name(0) != "emulated device"
DEVICE = "cuda" if ON_DEVICE else "cpu"


def to_holon(x):
    """The same memory on a device, a copy on the emulator."""
    return flow.from_dlpack(x) if ON_DEVICE else flow.from_dlpack(x).to("cuda")


def to_torch(x):
    return torch.from_dlpack(x.detach() if ON_DEVICE else x.detach().cpu())


def draw(generator, *shape, dtype=torch.bfloat16, scale=1.0):
    return (torch.randn(*shape, device=DEVICE, generator=generator) * scale).to(dtype)


def generator(seed):
    return torch.Generator(DEVICE).manual_seed(seed)


def same_bits(a, b):
    """As integers of the same size: NaNs are equal if their bits are."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


def distance(x, reference, rows=1 << 24):
    """(the norm of the difference / the reference's norm, the largest difference / the largest absolute value), in
    float64, a part at a time."""
    x, reference = x.reshape(-1), reference.reshape(-1)
    square, norm, most, largest = 0.0, 0.0, 0.0, 0.0
    for i in range(0, x.numel(), rows):
        a, b = x[i : i + rows].double(), reference[i : i + rows].double()
        square, norm = square + float(((a - b) ** 2).sum()), norm + float((b**2).sum())
        most, largest = max(most, float((a - b).abs().max())), max(largest, float(b.abs().max()))
    return (square / norm) ** 0.5 if norm else square, most / largest if largest else most


def compare(name, ours, theirs, reference, unit):
    """Ours against a reference of higher precision. The bound is what torch's kernel of the same dtype is off by: twice
    that, since both round in other orders, and a quarter of the dtype's unit roundoff `unit` in the norm (two of them
    in the largest difference), since torch may happen to be exact. Prints both distances."""
    assert tuple(ours.shape) == tuple(reference.shape), (
        f"{name}: shape {tuple(ours.shape)}, not {tuple(reference.shape)}"
    )
    (norm, most), (their_norm, their_most) = distance(ours, reference), distance(theirs, reference)
    print(
        json.dumps({"value": name, "norm": norm, "most": most, "torch_norm": their_norm, "torch_most": their_most}),
        flush=True,
    )
    # Written so that NaN fails.
    if not (norm <= 2 * their_norm + unit / 4 and most <= 2 * their_most + 2 * unit):
        sys.exit(
            f"{name} is off by {norm:.3g} in the norm and by {most:.3g} at most; "
            f"torch by {their_norm:.3g} and {their_most:.3g}"
        )


def twice(name, work):
    """The values that work() returns as torch's tensors; an error if a second call returns other bits."""
    first, second = work(), work()
    for i, (a, b) in enumerate(zip(first, second)):
        if not same_bits(a, b):
            count = int((a != b).sum())
            sys.exit(f"{name}: result {i} has other bits in a second call ({count} of {a.numel()} elements differ)")
    return first
