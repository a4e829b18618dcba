"""Part B: kernels at the sizes of real models, against torch.  python -m check_device.real_sizes [--small] CHECK

Each is compared with a reference in float32 or float64 by the bound of against_torch.compare(), and gives the same bits
in a second call. --small is for the emulator: the same lines at sizes of a second."""

import argparse
import contextlib

BFLOAT16, FLOAT32 = 2.0**-9, 2.0**-24  # unit roundoffs


def attention(shape, kv_heads, causal):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from .against_torch import compare, draw, flow, generator, to_holon, to_torch, twice

    functional = torch.nn.functional
    b, h, t, d = shape
    g = generator(7)
    q, dy = (draw(g, b, h, t, d) for _ in range(2))
    k, v = (draw(g, b, kv_heads, t, d) for _ in range(2))
    options = {"is_causal": causal, "enable_gqa": kv_heads != h}

    def ours():
        inputs = [to_holon(x).requires_grad_() for x in (q, k, v)]
        y = flow.nn.functional.scaled_dot_product_attention(*inputs, **options)
        return [to_torch(x) for x in (y, *flow.autograd.grad([y], inputs, [to_holon(dy)]))]

    def with_torch(dtype):
        """bfloat16 by the kernel that torch chooses; float32 by plain products, which TF32 has no part in unless a
        program asks for it."""
        exact = dtype == torch.float32
        parts = []
        for i in range(b):  # plain products need t x t of memory for each head
            inputs = [x[i : i + 1].to(dtype).requires_grad_() for x in (q, k, v)]
            with sdpa_kernel(SDPBackend.MATH) if exact else contextlib.nullcontext():
                y = functional.scaled_dot_product_attention(*inputs, **options)
            parts.append([y.detach(), *torch.autograd.grad(y, inputs, dy[i : i + 1].to(dtype))])
        return [torch.cat(x) for x in zip(*parts)]

    found = twice("attention", ours)
    for name, *values in zip(("y", "dq", "dk", "dv"), found, with_torch(torch.bfloat16), with_torch(torch.float32)):
        compare(f"attention {name}", *values, BFLOAT16)


def by_own_kernels(run):
    """Where cuDNN would do it."""
    from .against_torch import flow

    flow.backends.cudnn.enabled = False
    run()


def product(rows, inner, columns):
    """x w^T + bias and its gradients, as a linear layer has them: one product makes those of weight and bias."""
    import torch

    from .against_torch import compare, draw, flow, generator, to_holon, to_torch, twice

    g = generator(11)
    x, w, dy = draw(g, rows, inner), draw(g, columns, inner, scale=0.02), draw(g, rows, columns)
    bias = draw(g, columns)

    def ours():
        inputs = [to_holon(a).requires_grad_() for a in (x, w, bias)]
        y = flow.nn.functional.linear(*inputs)
        return [to_torch(a) for a in (y, *flow.autograd.grad([y], inputs, [to_holon(dy)]))]

    def with_torch(dtype):
        a, b, c = x.to(dtype), w.to(dtype), dy.to(dtype)
        return [torch.nn.functional.linear(a, b, bias.to(dtype)), c @ b, c.T @ a, c.sum(0)]

    found = twice("linear", ours)
    for name, *values in zip(("y", "dx", "dw", "dbias"), found, with_torch(torch.bfloat16), with_torch(torch.float32)):
        compare(f"linear {name}", *values, BFLOAT16)


def cross_entropy(rows, classes, dtype):
    import torch

    from .against_torch import DEVICE, compare, draw, flow, generator, to_holon, to_torch, twice

    g = generator(13)
    logits = draw(g, rows, classes, dtype=getattr(torch, dtype), scale=3.0)
    labels = torch.randint(0, classes, (rows,), device=DEVICE, generator=g)
    labels[rows // 3] = -100  # ignored

    def ours():
        x = to_holon(logits).requires_grad_()
        loss = flow.nn.functional.cross_entropy(x, to_holon(labels))
        return [to_torch(a) for a in (loss, *flow.autograd.grad([loss], [x]))]

    def with_torch(dtype, rows_at_once):
        """In parts, so that float64 fits the memory."""
        loss, gradients, counted = 0, [], int((labels != -100).sum())
        for i in range(0, rows, rows_at_once):
            x = logits[i : i + rows_at_once].to(dtype).requires_grad_()
            part = torch.nn.functional.cross_entropy(x, labels[i : i + rows_at_once], reduction="sum") / counted
            gradients += torch.autograd.grad(part, [x])
            loss = loss + part.detach()
        return [loss, torch.cat(gradients)]

    # exp and log of float32 are off by two units in the last place each, and the loss is a sum of sums.
    unit = BFLOAT16 if dtype == "bfloat16" else 16 * FLOAT32
    found = twice("cross_entropy", ours)
    wanted = with_torch(torch.float64, 1024)
    for name, *values in zip(("loss", "gradient"), found, with_torch(logits.dtype, rows), wanted):
        compare(f"cross_entropy {name}", *values, unit)


def long_elementwise(elements):
    """A long grid: what is at the end is there, and was computed once."""
    import torch

    from .against_torch import DEVICE, flow, same_bits, to_holon, to_torch

    x = (torch.arange(elements, device=DEVICE) % 251).to(torch.uint8)
    y = to_torch(to_holon(x) + 1)
    assert same_bits(y, x + 1), "x + 1"
    y = to_torch(to_holon(x).to(flow.bfloat16))
    assert same_bits(y, x.to(torch.bfloat16)), "a cast"
    y = to_torch(flow.where(to_holon(x) > 100, to_holon(x), flow.zeros(1, dtype=flow.uint8, device="cuda")))
    assert same_bits(y, torch.where(x > 100, x, torch.zeros_like(x))), "where"


def long_reduce(elements):
    import torch

    from .against_torch import DEVICE, flow, to_holon

    x = torch.zeros(elements, dtype=torch.int8, device=DEVICE)
    places = torch.tensor([0, elements // 2, elements - 1], device=DEVICE)
    x[places] = torch.tensor([3, 5, 7], dtype=torch.int8, device=DEVICE)
    ours = to_holon(x)
    assert ours.sum(dtype=flow.int64).item() == 15, "sum"
    assert ours.max().item() == 7 and ours.argmax().item() == elements - 1, "max, argmax"
    assert flow.nonzero(ours).reshape(-1).tolist() == places.tolist(), "nonzero"


def long_rows(rows, columns):
    """More than 2^31 elements as rows: forward and backward of what has a block for each row, and sums of columns."""
    import torch

    from .against_torch import compare, draw, flow, generator, to_holon, to_torch

    x = draw(generator(17), 1, columns).expand(rows, columns).contiguous()
    x[-1] = -x[-1]
    ours = to_holon(x).requires_grad_()
    y = flow.softmax(ours, -1)
    for row in (0, rows // 2, rows - 1):
        want = torch.softmax(x[row].double(), -1)
        compare(f"softmax, row {row}", to_torch(y[row]), torch.softmax(x[row], -1), want, BFLOAT16)
    del y
    y = flow.nn.functional.layer_norm(ours, [columns])
    (dx,) = flow.autograd.grad([y], [ours], [y.detach()])
    for row in (0, rows - 1):
        z = x[row].double().requires_grad_()
        want = torch.nn.functional.layer_norm(z, [columns])
        (gradient,) = torch.autograd.grad(want, [z], want.detach())
        # dy = y makes dx nearly cancel: bounded by the size of its terms, not of their sum.
        assert float((to_torch(dx[row]).double() - gradient).abs().max()) < 16 * BFLOAT16, f"layer_norm's dx, row {row}"
        compare(
            f"layer_norm, row {row}",
            to_torch(y[row]),
            torch.nn.functional.layer_norm(x[row], [columns]),
            want.detach(),
            BFLOAT16,
        )
    del y, dx
    total = to_torch(ours.detach().sum(0))
    compare("sums of columns", total, x.sum(0), x[0].double() * (rows - 2), BFLOAT16)


def long_copies(rows, columns):
    """Strides and offsets that pass 2^31: transposed, sliced, joined, gathered and scattered."""
    import torch

    from .against_torch import DEVICE, flow, same_bits, to_holon, to_torch

    x = (torch.arange(rows * columns, device=DEVICE) % 127).to(torch.int8).reshape(rows, columns)
    ours = to_holon(x)
    assert same_bits(to_torch(ours.t().contiguous()), x.t().contiguous()), "a transposed copy"
    assert same_bits(to_torch(ours[rows - 3 :, 1::2].contiguous()), x[rows - 3 :, 1::2].contiguous()), (
        "a slice at the end"
    )
    index = torch.tensor([rows - 1, 0, rows // 2], device=DEVICE)
    assert same_bits(to_torch(flow.index_select(ours, 0, to_holon(index))), x[index]), "index_select"
    assert same_bits(to_torch(flow.cat([ours[: rows // 2], ours[rows // 2 :]])), x), "cat"
    ours = ours.clone()  # torch has the other's memory
    ours[rows - 1] = 1
    x[rows - 1] = 1
    assert same_bits(to_torch(ours), x), "a row is set"


def checks(small):
    """{name: function}, the most valuable first."""
    # GPT-2's products at 16 x 1,024 tokens; the vocabulary is padded to a multiple of 128.
    tokens, width, vocabulary = (96, 64, 200) if small else (16 * 1024, 768, 50304)
    gpt2, grouped = ((1, 2, 96, 64), (1, 4, 160, 128)) if small else ((16, 12, 1024, 64), (4, 16, 4096, 128))
    elements = 4099 if small else 2**31 + 4099
    table = (37, 130) if small else (2**15 + 8, 2**16 + 2)
    rows = (37, 130) if small else (2**19 + 8, 2**12 + 2)
    return {
        "attention 16x12x1024x64": lambda: attention(gpt2, gpt2[1], True),
        "attention 4x16x4096x128, 4 heads of keys": lambda: attention(grouped, grouped[1] // 4, True),
        "attention 16x12x1024x64, own kernels": lambda: by_own_kernels(lambda: attention(gpt2, gpt2[1], True)),
        "attention 4x16x4096x128, own kernels": lambda: by_own_kernels(
            lambda: attention(grouped, grouped[1] // 4, True)
        ),
        "product qkv": lambda: product(tokens, width, 3 * width),
        "product up": lambda: product(tokens, width, 4 * width),
        "product down": lambda: product(tokens, 4 * width, width),
        "product head": lambda: product(tokens, width, vocabulary),
        "cross_entropy bfloat16": lambda: cross_entropy(tokens, vocabulary, "bfloat16"),
        "cross_entropy float32": lambda: cross_entropy(tokens, vocabulary, "float32"),
        "2^31 elements, element-wise": lambda: long_elementwise(elements),
        "2^31 elements, reductions": lambda: long_reduce(elements),
        "2^31 elements, copies": lambda: long_copies(*table),
        "2^31 elements, rows": lambda: long_rows(*rows),
        "attention 16x12x1024x64, not causal": lambda: attention(gpt2, gpt2[1], False),
        "product attention's output": lambda: product(tokens, width, width),
    }


CHECKS = list(checks(True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("check", choices=CHECKS)
    args = parser.parse_args()
    checks(args.small)[args.check]()


if __name__ == "__main__":
    main()
