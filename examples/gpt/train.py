"""Trains a small GPT to write Python, on any number of ranks:

    python examples/gpt/train.py
    python -m holon.distributed.launch --nproc_per_node 4 examples/gpt/train.py --dp 2 --tp 2
    python -m holon.distributed.launch --nproc_per_node 4 examples/gpt/train.py --tp 2 --pipeline 2
    python -m holon.distributed.launch --nproc_per_node 2 examples/gpt/train.py --device cuda --graph --amp

--graph compiles the step, which a pipeline needs anyway; the numbers stay those of the eager step. The text is the
standard library's own source. At the end it prints the loss on files that were not trained on, the loss of the best
guess from one byte before, and a sample. The layout changes the speed, not the numbers. With --checkpoints a run that
was interrupted continues where it was saved last, also on other ranks with another layout.
"""

import argparse
import json
import math
import sys
import time

import data
import numpy as np
from model import GPT, Layout, everywhere

import holon as flow
from holon import nn, optim
from holon.checkpoint import Checkpointer


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dp", type=int, help="groups that share the rows of a batch (default: what the others leave)")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share the heads and hidden units of a block")
    parser.add_argument(
        "--pipeline",
        type=int,
        default=1,
        metavar="STAGES",
        help="stages that share the blocks; more than one implies --graph",
    )
    parser.add_argument(
        "--micro-batches", type=int, help="parts of a batch, one after another (default: twice the stages; 1 without)"
    )
    parser.add_argument("--graph", action="store_true", help="compile the training step")
    parser.add_argument(
        "--device",
        default="cpu",
        help="where the ranks keep their parts; cuda: a device for each rank",
    )
    parser.add_argument("--amp", action="store_true", help="products in bfloat16, parameters and sums in float32")
    parser.add_argument("--steps", type=int, help="steps to train (default: as many as --seconds allow)")
    parser.add_argument("--seconds", type=float, default=75)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=128, help="bytes that the model sees at once")
    parser.add_argument("--batch", type=int, default=16, help="rows of a batch, over all ranks")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", nargs="+", metavar="FILE", help="files to learn from instead")
    parser.add_argument("--curve", metavar="FILE", help="write the loss of every step to a file")
    parser.add_argument("--checkpoints", metavar="FOLDER", help="save the training there, and continue what is there")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS", help="steps between checkpoints")
    parser.add_argument("--sample", type=int, default=400, help="bytes to write at the end")
    options = parser.parse_args(argv)
    world = flow.env.get_world_size()
    options.dp = options.dp or max(1, world // max(1, options.tp * options.pipeline))
    options.micro_batches = options.micro_batches or (2 * options.pipeline if options.pipeline > 1 else 1)
    options.graph |= options.pipeline > 1 or options.micro_batches > 1
    for name in ("dp", "tp", "pipeline", "micro_batches", "save_every"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)} is less than one")
    ranks = options.dp * options.tp * options.pipeline
    if ranks != world:
        parser.error(
            f"--dp {options.dp} x --tp {options.tp} x --pipeline {options.pipeline} are {ranks} ranks; "
            f"{world} are running"
        )
    if options.layers < options.pipeline:
        parser.error(
            f"--layers {options.layers} are fewer than --pipeline {options.pipeline}: a stage has a block at least"
        )
    if options.batch % options.micro_batches:
        parser.error(f"--batch {options.batch} is not a multiple of --micro-batches {options.micro_batches}")
    if options.heads % options.tp:
        parser.error(f"--heads {options.heads} do not divide among --tp {options.tp}")
    return options


def learning_rate(step, total, peak, warmup=40):
    """Rises over the warm-up, then falls to a tenth along half a cosine."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return peak * (0.55 + 0.45 * math.cos(math.pi * done))


class Step(nn.Graph):
    """The eager step of train(), compiled, with the parts of the model as stages of a pipeline."""

    def __init__(self, model, optimizer, micro_batches, amp):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.set_gradient_accumulation_steps(micro_batches)
        self.config.enable_amp(amp, dtype=flow.bfloat16)
        if len(model.layouts) > 1:
            for part, stage in model.stages():
                part.to(nn.graph.GraphModule).set_stage(stage, model.layouts[stage].placement)

    def build(self, seen, following):
        loss = self.model.loss(seen, following)
        loss.backward()
        return loss


class Clock:
    """How many steps the time allows. The ranks' clocks differ, so they take the mean of what each has measured."""

    def __init__(self, seconds):
        self.seconds, self.placement, self.begin = seconds, flow.placement.all("cpu"), time.monotonic()

    def total_steps(self, step, done):
        """done: steps of this run, which others may have begun."""
        elapsed = (
            flow.tensor([time.monotonic() - self.begin]).to_global(self.placement, flow.sbp.partial_sum).sum().item()
        )
        elapsed /= flow.env.get_world_size()
        return step + max(0, round((self.seconds - elapsed) * done / elapsed)) if done else sys.maxsize


class Progress:
    """A bar in a terminal, otherwise a line now and then; on the first rank only."""

    def __init__(self, options, first):
        self.on, self.first = flow.env.get_rank() == 0, first
        self.options, self.begin, self.shown, self.bar = options, time.monotonic(), 0.0, None
        if self.on and sys.stdout.isatty():
            try:
                from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
            except ImportError:
                return
            self.bar = Progress(
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
            )
            self.task = self.bar.add_task("")
            self.bar.start()

    def update(self, step, total, losses):
        if not self.on:
            return
        seconds = time.monotonic() - self.begin
        loss = np.mean(losses[-20:])
        done = step - self.first
        rate = done * self.options.batch * self.options.length / seconds
        text = f"loss {loss:.3f}  {rate:,.0f} bytes/s"
        if self.bar:
            self.bar.update(self.task, completed=step, total=total if total < sys.maxsize else None, description=text)
        elif seconds - self.shown >= 5 or step in (self.first + 1, total):
            self.shown = seconds
            left = f"{(total - step) * seconds / done:.0f} s left" if total < sys.maxsize else ""
            print(f"step {step:5d}  {text}  {left}", flush=True)

    def close(self):
        if self.bar:
            self.bar.stop()


class Saved:
    """What a run has besides its model and optimizer: the loss of every step, and what it draws batches with."""

    def __init__(self, seed):
        self.rng, self.losses = np.random.default_rng(seed), []

    def state_dict(self):
        return {"losses": self.losses, "rng": json.dumps(self.rng.bit_generator.state)}

    def load_state_dict(self, state):
        self.losses, self.rng.bit_generator.state = list(state["losses"]), json.loads(state["rng"])


def train(options, text):
    """Returns the trained model and the loss of every step."""
    flow.manual_seed(options.seed)
    model = GPT(
        options.layers,
        options.width,
        options.heads,
        options.length,
        Layout.over(options.dp, options.tp, options.pipeline, options.device),
    )
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    common = {"clip_grad_max_norm": 1.0, "clip_grad_norm_type": 2.0}
    optimizer = optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1, **common}, {"params": others, "weight_decay": 0.0, **common}],
        betas=(0.9, 0.95),
    )
    graph = Step(model, optimizer, options.micro_batches, options.amp) if options.graph else None
    run, checkpoints, first = Saved(options.seed), None, 0
    if options.checkpoints:
        parts = {"graph": graph} if graph else {"model": model, "optimizer": optimizer}
        checkpoints = Checkpointer(options.checkpoints, asynchronous=True, run=run, **parts)
        if found := checkpoints.restore():
            first = found.step
    clock, progress = Clock(options.seconds), Progress(options, first)
    step, total = first, options.steps or sys.maxsize
    while step < total:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, total, options.lr)
        pair = model.pair(*data.batch(text, run.rng, options.batch, options.length))
        if graph:
            loss = graph(*pair).mean()  # over the micro-batches
        else:
            optimizer.zero_grad()
            with flow.autocast(options.device, flow.bfloat16, enabled=options.amp):
                loss = model.loss(*pair)
            loss.backward()
            optimizer.clip_grad()
            optimizer.step()
        run.losses.append(everywhere(loss).item())
        step += 1
        if not options.steps and step % 20 == 0:
            total = clock.total_steps(step, step - first)
        if checkpoints and (step % options.save_every == 0 or step >= total):
            checkpoints.save(step)
        progress.update(step, total, run.losses)
    progress.close()
    if checkpoints:
        checkpoints.wait()
    return model, run.losses


def main():
    options = arguments()
    text, held_out = data.load(options.data)
    first = flow.env.get_rank() == 0
    if first:
        print(
            f"{len(text):,} bytes to train on, {len(held_out):,} to validate with; {options.dp} x {options.tp} x "
            f"{options.pipeline} ranks (data x tensor x pipeline parallel), {'compiled' if options.graph else 'eager'}",
            flush=True,
        )
    model, losses = train(options, text)
    pairs = list(data.windows(held_out, options.batch, options.length, 24))
    with flow.no_grad():
        loss = np.mean([everywhere(model.loss(*model.pair(*pair))).item() for pair in pairs])
        sample = model.write(b"def ", options.sample, options.seed)
    if first:
        print(f"after {len(losses)} steps, nats per byte on files that were not trained on:")
        print(f"validation loss {loss:.3f}")
        print(f"bigram loss     {data.bigram_loss(text, pairs):.3f}")
        print("a sample:\n" + sample.decode("utf-8", "replace"), flush=True)
        if options.curve:
            np.savetxt(options.curve, losses, fmt="%.6f")


if __name__ == "__main__":
    main()
