"""Part B: what runs under compute-sanitizer, whose memcheck and racecheck fail on a finding. Values are tested
elsewhere.

compute-sanitizer --tool racecheck python -m check_device.sanitized [--small] CHECK"""

import argparse

import holon as flow


def forward_and_backward(function, *inputs):
    y = function(*inputs)
    flow.autograd.grad([y], [x for x in inputs if x.requires_grad], [flow.ones_like(y)])
    flow.cuda.synchronize()


def draw(*shape, dtype=flow.bfloat16):
    return flow.randn(*shape, device="cuda").to(dtype).requires_grad_()


def attention(small):
    """Enough heads and rows for both kernels of the forward pass (attention_forward.h takes the larger tile from one
    block a multiprocessor on), lengths that do not fill the last tile, grouped queries."""
    functional = flow.nn.functional
    for b, h, kv, t, d in (
        [(1, 2, 2, 70, 64)] if small else [(2, 2, 2, 200, 64), (6, 12, 4, 264, 64), (1, 4, 2, 200, 128)]
    ):
        for causal in (True, False):
            forward_and_backward(
                lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
                draw(b, h, t, d),
                draw(b, kv, t, d),
                draw(b, kv, t, d),
            )


def rows(small):
    """Kernels with a block for each row, and sums of columns: the width of one warp's row, and of a block's."""
    functional = flow.nn.functional
    for n, width in [(5, 72)] if small else [(200, 72), (33, 768), (9, 50304)]:
        for dtype in (flow.float32, flow.bfloat16):
            x = draw(n, width, dtype=dtype)
            scale, shift = (draw(width, dtype=dtype) for _ in range(2))
            labels = flow.arange(n, device="cuda") % width
            forward_and_backward(lambda x: flow.softmax(x, -1), x)
            forward_and_backward(lambda x: functional.log_softmax(x, -1), x)
            forward_and_backward(lambda x, *w: functional.layer_norm(x, [width], *w), x, scale, shift)
            forward_and_backward(lambda x, w: functional.rms_norm(x, [width], w), x, scale)
            forward_and_backward(lambda x: functional.cross_entropy(x, labels), x)
            for axis in (0, 1, None):
                forward_and_backward(lambda x: x.sum() if axis is None else x.sum(axis), x)


def ordered(small):
    """Sorting and selection, whose blocks pass sums on to each other."""
    n = 300 if small else 70_000
    x = flow.randn(n, device="cuda")
    for work in (lambda: x.sort(), lambda: flow.nonzero(x > 0), lambda: x.cumsum(0), lambda: flow.topk(x, 5)):
        work()
        flow.cuda.synchronize()


CHECKS = {"attention": attention, "rows": rows, "ordered": ordered}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("check", choices=CHECKS)
    args = parser.parse_args()
    CHECKS[args.check](args.small)


if __name__ == "__main__":
    main()
