#!/usr/bin/env python3
"""Training steps of holon.models: forward, loss, backward and AdamW, at the sizes that people train, and of a tiny
model; and the peak memory of the process.

On one rank with two threads, against transformers in PyTorch on the same configuration: eager, and as torch.compile
makes it, of which the faster counts; ours eager and as an nn.Graph, likewise. On two and four ranks of one thread
against FSDP2 (data parallel; ours also with optimizer states in shards) and DTensor (tensor parallel). Each side runs
as processes of this script: ours, and --peer in the Python that $HOLON_BENCH_TORCH_PYTHON names. Without transformers
the comparison is left out (ratio null). Then a token of greedy decoding, one row, against transformers' generate(); and
with weights of 4 bits, against llama.cpp (decode.py). $HOLON_BENCH_MODELS names the rows to run, by a part of their
names.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

import decode

PEER = "--peer" in sys.argv
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def llama(layers, width, hidden, heads, kv_heads, vocabulary):
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }


RESNET50 = {
    "model_type": "resnet",
    "architectures": ["ResNetForImageClassification"],
    "num_channels": 3,
    "embedding_size": 64,
    "hidden_sizes": [256, 512, 1024, 2048],
    "depths": [3, 4, 6, 3],
    "layer_type": "bottleneck",
    "hidden_act": "relu",
    "downsample_in_first_stage": False,
    "id2label": {str(i): str(i) for i in range(1000)},
    "label2id": {str(i): i for i in range(1000)},
}
# Configuration; rows and tokens, or rows and pixels; steps that are timed; steps within one time.
MODELS = {
    "GPT-2 124M": (GPT2, (2, 256), 4, 1),
    "Llama 200M": (llama(12, 1024, 2816, 16, 8, 32000), (2, 256), 4, 1),
    "ResNet-50": (RESNET50, (4, 224), 4, 1),
    "tiny Llama": (llama(2, 64, 172, 4, 2, 256), (2, 32), 8, 20),
    "Llama 20M": (llama(6, 384, 1024, 6, 6, 8192), (4, 128), 5, 1),
}


def data(flow, name):
    flow.manual_seed(0)
    config, (rows, size), _, _ = MODELS[name]
    if config is RESNET50:
        return flow.rand(rows, 3, size, size), flow.randint(0, 1000, (rows,))
    ids = flow.randint(0, config["vocab_size"], (rows, size))
    return ids, ids


def median_seconds(step, name):
    _, _, repeats, inner = MODELS[name]
    step(), step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(inner):
            step()
        times.append((time.perf_counter() - start) / inner)
    return statistics.median(times)


def token_seconds(generate):
    """generate(n) makes n tokens: what those after the first few take."""
    few, many = 8, 40

    def seconds(n):
        start = time.perf_counter()
        generate(n)
        return time.perf_counter() - start

    seconds(few)
    return statistics.median(seconds(many) - seconds(few) for _ in range(5)) / (many - few)


def ours(name, mode, half, layout):
    import holon as flow

    model = flow.models.from_config(MODELS[name][0], **layout)
    if mode in ("dynamic", "static"):
        prompt = data(flow, name)[0][:1, :16]
        options = {"eos_token_id": [], "cache_implementation": mode}
        return token_seconds(lambda n: model.eval().generate(prompt, max_new_tokens=n, **options))
    model.train()
    optimizer = flow.optim.AdamW(model.parameters(), lr=1e-4)
    x, labels = data(flow, name)
    if WORLD > 1:
        everywhere = (flow.sbp.broadcast,) * 2
        rows = (flow.sbp.split(0), flow.sbp.broadcast) if "dp" in layout else everywhere
        # All ranks drew the same batch.
        x, labels = (t.to_global(model.placements[0], everywhere).to_global(sbp=rows) for t in (x, labels))

    def loss_of(x, labels):
        with flow.autocast(dtype=flow.bfloat16, enabled=half):
            return model.loss(x, labels)

    class Step(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            self.config.enable_zero(mode == "zero", stage=1)

        def build(self, x, labels):
            loss = loss_of(x, labels)
            loss.backward()
            return loss

    def eager():
        optimizer.zero_grad()
        loss_of(x, labels).backward()
        optimizer.step()

    if mode == "eager":
        return median_seconds(eager, name)
    graph = Step()
    return median_seconds(lambda: graph(x, labels), name)


def theirs(name, mode, half, layout):
    import torch
    import transformers

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    given = dict(MODELS[name][0])
    if MODELS[name][0] is RESNET50:
        given["id2label"] = {int(k): v for k, v in given["id2label"].items()}
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    images = MODELS[name][0] is RESNET50
    kind = transformers.AutoModelForImageClassification if images else transformers.AutoModelForCausalLM
    model = kind.from_config(config).train()
    x, labels = data(torch_names(torch), name)
    if mode == "decode":
        model.eval()
        with torch.no_grad():
            return token_seconds(
                lambda n: model.generate(
                    x[:1, :16], max_new_tokens=n, min_new_tokens=n, do_sample=False, pad_token_id=0
                )
            )
    if WORLD > 1:
        model, x, labels = spread(torch, model, x, labels, layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss_of(x, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            return model(x, labels=labels).loss if images else model(input_ids=x, labels=labels, use_cache=False).loss

    if mode == "compile":
        loss_of = torch.compile(loss_of)

    def step():
        optimizer.zero_grad()
        loss_of(x, labels).backward()
        optimizer.step()

    return median_seconds(step, name)


def torch_names(torch):
    class Names:
        manual_seed, rand, randint = torch.manual_seed, torch.rand, torch.randint

    return Names


def spread(torch, model, x, labels, layout):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (WORLD,))
    if "tp" in layout:
        plan = {f"self_attn.{n}_proj": ColwiseParallel() for n in "qkv"} | {"self_attn.o_proj": RowwiseParallel()}
        plan |= {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel()}
        plan |= {"mlp.down_proj": RowwiseParallel()}
        for block in model.model.layers:
            parallelize_module(block, mesh, plan)
        return model, x, labels
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    n = x.shape[0] // WORLD
    return model, x[RANK * n : (RANK + 1) * n], labels[RANK * n : (RANK + 1) * n]


def worker(text):
    name, mode, half, layout = json.loads(text)
    if PEER and WORLD > 1:
        import torch

        torch.distributed.init_process_group("gloo")
    seconds = (theirs if PEER else ours)(name, mode, half, layout)
    if RANK == 0:
        print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]), flush=True)
    if PEER and WORLD > 1:
        torch.distributed.destroy_process_group()


def measured(python, launcher, task, ranks, threads, *flags):
    """Seconds of a step and MiB; nothing where it fails, which is said."""
    start = [python] if ranks == 1 else [python, "-m", launcher, "--nproc_per_node", str(ranks)]
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    command = [*start, __file__, "--worker", json.dumps(task), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        print(f"{task} {' '.join(flags)}: {done.stderr[-2000:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def emit(name, value, unit, against, ratio):
    line = {
        "name": name,
        "value": round(value, 6),
        "unit": unit,
        "against": against,
        "ratio": ratio and round(ratio, 3),
    }
    print(json.dumps(line), flush=True)


def row(name, text, half, layout, our_modes, peer_modes, peer, what="step"):
    wanted = os.environ.get("HOLON_BENCH_MODELS", "")
    title = f"models: {name}, {text}"
    if wanted not in title:
        return
    ranks = 1
    for n in layout.values():
        ranks *= n
    threads = 2 if ranks == 1 else 1
    python = os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    found = [
        measured(sys.executable, "holon.distributed.launch", [name, mode, half, layout], ranks, threads)
        for mode in our_modes
    ]
    best = min(f for f in found if f)
    theirs = []
    if python:
        for mode in peer_modes:
            task = [name, mode, half, layout]
            theirs.append(measured(python, "torch.distributed.run", task, ranks, threads, "--peer"))
    theirs = [t for t in theirs if t]
    fastest = min(theirs) if theirs else None
    emit(f"{title}, {what}", best[0] * 1e3, "ms", peer if fastest else None, fastest and fastest[0] / best[0])
    least = min(f[1] for f in found if f)
    smallest = min((t[1] for t in theirs), default=None)
    emit(f"{title}, peak memory of a rank", least, "MiB", peer if theirs else None, smallest and smallest / least)


def main():
    one = "transformers, the faster of PyTorch eager and compile"
    for name in ("GPT-2 124M", "Llama 200M", "ResNet-50", "tiny Llama"):
        for half in (False, True):
            text = "bfloat16 autocast" if half else "float32"
            row(name, text, half, {}, ["eager", "graph"], ["eager", "compile"], one)
    for ranks in (2, 4):
        ours = ["eager", "graph", "zero"]
        row("Llama 20M", f"dp {ranks}", False, {"dp": ranks}, ours, ["eager"], "PyTorch FSDP2, gloo")
        if ranks == 2:
            row("Llama 20M", "tp 2", False, {"tp": 2}, ["eager", "graph"], ["eager"], "PyTorch DTensor, gloo")
    for name in ("GPT-2 124M", "Llama 200M"):
        row(
            name,
            "decoding",
            False,
            {},
            ["dynamic", "static"],
            ["decode"],
            "transformers' generate(), PyTorch",
            "a token",
        )
    if os.environ.get("HOLON_BENCH_MODELS", "") in "models: Llama 1.1B, decoding":
        decode.rows(emit)


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker(sys.argv[sys.argv.index("--worker") + 1])
    else:
        main()
