"""Part D: a GPT that is trained on the device in several ways, which lose the same.

  python -m check_device.curves [--small] --folder FOLDER MODE
      writes FOLDER/curve-MODE.json, and compares it with that of the mode "recorded", which comes first

A graph's recordings run the same kernels as without: the same bits. Eager mode does not fuse a product's epilogue, so
that it rounds to bfloat16 once more, and AdamW makes updates of full size from gradients that are rounding errors:
losses drift apart. They are compared in the first STEPS_ALIKE steps, and both curves have to fall."""

import argparse
import json
import math
import sys
import time
from pathlib import Path

# {mode: the environment}
MODES = {
    "recorded": {},
    "launched": {"HOLON_CUDA_GRAPHS": "0"},
    "eager": {},
}
STEPS_ALIKE = 8
EAGER_BOUND = 2.0**-6  # relative; single numbers are rounded by up to 2^-9


def path_of(folder, mode):
    return folder / f"curve-{mode}.json"


def train(mode, small):
    """Losses of a GPT on text whose next token follows from the last two, so that there is something to learn."""
    import holon as flow

    from .benchmark import benchmark

    layers, width, heads, vocabulary, batch, length = (1, 64, 2, 32, 4, 16) if small else (4, 256, 4, 512, 16, 256)
    flow.manual_seed(5)
    model = benchmark().Gpt2(flow, layers, width, heads, vocabulary, batch, length)
    place = flow.arange(length).reshape(1, length)
    step = model.step(compiled=mode != "eager", lr=1e-2 if small else 1e-3)
    losses = []
    for _ in range(12 if small else 300):
        start = flow.randint(0, vocabulary, (batch, 1))
        text = (start + place * (1 + start % 7)) % vocabulary  # a walk whose stride the first token determines
        losses.append(step(text.to("cuda"), ((text + 1 + start % 7) % vocabulary).to("cuda")))
    return [x.item() for x in losses]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("mode", choices=MODES)
    args = parser.parse_args()
    begin = time.perf_counter()
    losses = train(args.mode, args.small)
    seconds = round(time.perf_counter() - begin, 2)
    print(json.dumps({"mode": args.mode, "first": losses[0], "last": losses[-1], "seconds": seconds}), flush=True)
    if not all(map(math.isfinite, losses)) or not losses[-1] < losses[0]:
        sys.exit(f"{args.mode}: the loss goes from {losses[0]} to {losses[-1]}")
    path_of(args.folder, args.mode).write_text(json.dumps(losses))
    if args.mode != "recorded":
        first = path_of(args.folder, "recorded")
        if not first.exists():
            sys.exit("there is nothing to compare with: the recorded training did not run to its end")
        if error := difference(args.mode, json.loads(first.read_text()), losses):
            sys.exit(error)


def difference(mode, recorded, losses):
    """What is wrong with the losses of this mode; empty if nothing is."""
    bound, steps = (0.0, len(recorded)) if mode == "launched" else (EAGER_BOUND, min(STEPS_ALIKE, len(recorded)))
    for i in range(steps):
        # Written so that NaN fails.
        if not abs(losses[i] - recorded[i]) <= bound * abs(recorded[i]):
            allowed = f"more than {bound:.3g} apart" if bound else "which must have the same bits"
            return f"step {i}: {losses[i]} {mode} and {recorded[i]} recorded, {allowed}"
    return "" if len(losses) == len(recorded) else f"{len(losses)} steps {mode} and {len(recorded)} recorded"


if __name__ == "__main__":
    main()
