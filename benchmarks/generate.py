#!/usr/bin/env python3
"""Greedy generation by a model of GPT-2's smallest size (12 layers, width 768, float32): milliseconds per token behind
a prompt of 32 tokens, one row, with one thread and two.

Each side runs as a process of this script on the same checkpoint: ours, and --peer, generate() of transformers with its
cache, in the Python that $HOLON_BENCH_TORCH_PYTHON names. Both must give the same tokens. The sides take turns; what is
printed is the median of the steps of all turns. Without transformers the comparison is left out (ratio null).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

TURNS, NEW = 3, 65
CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "eos_token_id": None,
    "bos_token_id": None,
}


class Clock:
    """A streamer of both sides: when each token came."""

    def __init__(self):
        self.times = []

    def __call__(self, step, tokens):
        self.times.append(time.perf_counter())

    def put(self, tokens):
        self.times.append(time.perf_counter())

    def end(self):
        pass

    def steps(self):
        return [b - a for a, b in zip(self.times[-NEW:], self.times[-NEW + 1 :])]


def ours(folder):
    import holon as flow

    model = flow.models.from_pretrained(folder)
    clock, prompt = Clock(), flow.arange(32).reshape(1, 32)
    tokens = model.generate(prompt, max_new_tokens=NEW, streamer=clock)
    return tokens.tolist(), clock.steps()


def theirs(folder):
    import torch
    import transformers

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    clock, prompt = Clock(), torch.arange(32).reshape(1, 32)
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        streamer=clock,
    )
    return tokens.tolist(), clock.steps()


def measured(python, threads, *arguments):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = subprocess.run([python, __file__, *arguments], capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def save(folder):
    import holon as flow

    flow.manual_seed(0)
    flow.models.from_config(CONFIG).save_pretrained(folder)


def main():
    python = os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        for threads in (1, 2):
            our_steps, peer_steps = [], []
            for _ in range(TURNS):
                tokens, steps = measured(sys.executable, threads, "--worker", folder)
                our_steps += steps
                if python:
                    expected, steps = measured(python, threads, "--peer", folder)
                    peer_steps += steps
                    if tokens != expected:
                        raise SystemExit(f"the tokens differ: {tokens}, {expected}")
            value = statistics.median(our_steps)
            of_threads = "1 thread" if threads == 1 else f"{threads} threads"
            print(
                json.dumps(
                    {
                        "name": f"generate: GPT-2 small, greedy, {of_threads}, per token",
                        "value": round(value * 1e3, 3),
                        "unit": "ms",
                        "against": "transformers, PyTorch eager" if python else None,
                        "ratio": round(statistics.median(peer_steps) / value, 3) if python else None,
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(ours(sys.argv[2])))
    elif sys.argv[1:2] == ["--peer"]:
        print(json.dumps(theirs(sys.argv[2])))
    else:
        main()
