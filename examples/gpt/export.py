#!/usr/bin/env python3
"""Writes a checkpoint of train.py as a model of Hugging Face's libraries: a GPT-2 whose tokens are bytes.

  python examples/gpt/export.py RUN FOLDER --heads 4

RUN is what train.py got as --checkpoints, on however many ranks. transformers then reads FOLDER:

  GPT2LMHeadModel.from_pretrained("FOLDER")
"""

import argparse
import json
from pathlib import Path

import holon as flow
from holon.checkpoint import Checkpointer


def qkv_by_kind(t, heads):
    """From q, k and v of one head after the other, as the model has them, to all of q, all of k, all of v."""
    return t.reshape(heads, 3, -1, *t.shape[1:]).transpose(0, 1).reshape(*t.shape)


def names():
    """Which of our tensors are which of GPT-2's, whose weights of layers are [in, out]."""
    block, theirs = "blocks.{i}.", "transformer.h.{i}."
    rules = [
        ("transformer.wte.weight", "tokens.weight"),
        ("transformer.wpe.weight", "positions"),
        ("transformer.ln_f.{of*}", "norm.{of*}"),
        ("lm_head.weight", "head.weight"),
        (theirs + "ln_1.{of*}", block + "norm1.{of*}"),
        (theirs + "ln_2.{of*}", block + "norm2.{of*}"),
    ]
    for their, our in {
        "attn.c_attn": "attention.qkv",
        "attn.c_proj": "attention.out",
        "mlp.c_fc": "up",
        "mlp.c_proj": "down",
    }.items():
        rules.append((f"{theirs}{their}.weight", f"{block}{our}.weight", {"kind": "transpose"}))
        rules.append((f"{theirs}{their}.bias", f"{block}{our}.bias"))
    return flow.KeyMap(rules)


def export(run, folder, heads):
    checkpoints = Checkpointer(run)
    step = checkpoints.latest()
    if step is None:
        raise SystemExit(f"{run} has no checkpoint. Train first: train.py --checkpoints {run}")
    path = checkpoints.path(step)
    # train.py saves its graph, or its model.
    for prefix in ("graph.model.", "model."):
        model = flow.load(path, map_location="cpu", prefix=prefix, strict=False)
        if model:
            break
    for name, tensor in model.items():
        if ".qkv." in name:
            model[name] = qkv_by_kind(tensor, heads)
    model = names().apply(model)
    flow.save(model, folder, format="hf")
    positions, width = model["transformer.wpe.weight"].shape
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": sum(name.endswith("ln_1.weight") for name in model),
        "n_head": heads,
        "n_embd": width,
        "n_positions": positions,
        "vocab_size": len(model["transformer.wte.weight"]),
        "activation_function": "gelu_new",
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    Path(folder, "config.json").write_text(json.dumps(config, indent=2))
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the folder of checkpoints")
    parser.add_argument("folder", help="the folder that is written")
    parser.add_argument("--heads", type=int, default=4, help="of the model that was trained")
    options = parser.parse_args()
    step = export(options.run, options.folder, options.heads)
    print(f"step {step} of {options.run} is in {options.folder}")


if __name__ == "__main__":
    main()
