#!/usr/bin/env python3
"""Greedy generation by a model of GPT-2's smallest size (12 layers, width 768, float32): milliseconds per token behind
a prompt of 32 tokens, one row, with one thread and two.

Each side runs as a process of this script on the same checkpoint: ours, and --peer, generate() of transformers with its
cache, in the Python that $HOLON_BENCH_TORCH_PYTHON names. Both must give the same tokens. The sides take turns; what is
printed is the median of the steps of all turns. Without transformers the comparison is left out (ratio null).

Then our own ways, in one process for each number of threads: compiled steps against steps op by op, of that model and
of a tiny one, where dispatch takes the time; and a Llama of 300 million parameters whose weights are float32, bfloat16,
of 8 and of 4 bits, with the bytes of its state.
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


TINY = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
}
# Name: dtype of the parameters, bits.
WEIGHTS = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "8 bits": ("bfloat16", 8),
    "4 bits": ("bfloat16", 4),
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

    def steps(self, new=NEW):
        return [b - a for a, b in zip(self.times[-new:], self.times[-new + 1 :])]


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


def steps_of(ways, new):
    """The median time of a step of each way, a model with options of generate(); the ways take turns."""
    import holon as flow

    prompt, steps = flow.arange(32).reshape(1, 32), {}
    for _ in range(TURNS):
        for name, (model, options) in ways.items():
            clock = Clock()
            model.generate(prompt, max_new_tokens=new, eos_token_id=[], streamer=clock, **options)
            steps.setdefault(name, []).extend(clock.steps(new)[1:])  # the first compiles
    return {name: statistics.median(times) * 1e3 for name, times in steps.items()}


def ways_worker():
    """Rows for one number of threads: (name, value, unit, against, ratio)."""
    import holon as flow

    flow.manual_seed(0)
    rows = []
    for name, config in (("tiny Llama", TINY), ("GPT-2 small", CONFIG)):
        model = flow.models.from_config(config).eval()
        found = steps_of({c: (model, {"cache_implementation": c}) for c in ("dynamic", "static")}, 33)
        ratio = found["dynamic"] / found["static"]
        rows.append((f"{name}, compiled steps", found["static"], "ms", "op by op", ratio))
    models, sizes = {}, {}
    for name, (dtype, bits) in WEIGHTS.items():
        model = flow.models.from_config(LLAMA, dtype=getattr(flow, dtype)).eval()
        models[name] = model if bits is None else model.quantize(bits)
        sizes[name] = sum(t.numel() * t.element_size() for t in model.state_dict().values()) / 1e6
    found = steps_of({n: (m, {"cache_implementation": "static"}) for n, m in models.items()}, 9)
    for name, value in found.items():
        rows.append((f"Llama, 300M, weights {name}", value, "ms", "bfloat16", found["bfloat16"] / value))
        rows.append(
            (f"Llama, 300M, weights {name}, state", sizes[name], "MB", "bfloat16", sizes[name] / sizes["bfloat16"])
        )
    return rows


def measured(python, threads, *arguments):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = subprocess.run([python, __file__, *arguments], capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def threads_text(threads):
    return "1 thread" if threads == 1 else f"{threads} threads"


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
            of_threads = threads_text(threads)
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
    for threads in (1, 2):
        for name, value, unit, against, ratio in measured(sys.executable, threads, "--ways"):
            if unit == "MB" and threads != 1:
                continue
            per = "" if unit == "MB" else f", {threads_text(threads)}, per token"
            row = {"name": f"generate: {name}{per}", "value": round(value, 3), "unit": unit}
            print(json.dumps({**row, "against": against, "ratio": round(ratio, 3)}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(ours(sys.argv[2])))
    elif sys.argv[1:2] == ["--ways"]:
        print(json.dumps(ways_worker()))
    elif sys.argv[1:2] == ["--peer"]:
        print(json.dumps(theirs(sys.argv[2])))
    else:
        main()
