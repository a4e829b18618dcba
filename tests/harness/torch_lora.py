"""What transformers' models compute with adapters, read by the rules that PEFT documents: `python torch_lora.py OUT
CASE...`, by a Python that has torch and transformers.

OUT/CASE has base.txt, the folder of the checkpoint, adapter, and inputs.npz; it gets logits.npy.
"""

import json
import sys
from pathlib import Path

import numpy as np


def merge(model, folder, torch):
    """Adds each adapter to its weight. Errors: target_modules names other modules than have tensors; shapes; names."""
    from safetensors.torch import load_file
    from transformers.pytorch_utils import Conv1D

    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    targets, scale = config["target_modules"], config["lora_alpha"] / config["r"]
    named = {
        path
        for path, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D))
        and (path in targets or any(path.endswith(f".{target}") for target in targets))
    }
    given = {
        name.removeprefix("base_model.model.").removesuffix(".lora_A.weight") for name in tensors if "lora_A" in name
    }
    assert named == given and len(tensors) == 2 * len(named), (folder, named ^ given)
    with torch.no_grad():
        for path in named:
            module = model.get_submodule(path)
            a, b = (tensors.pop(f"base_model.model.{path}.lora_{f}.weight") for f in "AB")
            assert a.shape[0] == b.shape[1] == config["r"] and config["fan_in_fan_out"] == isinstance(module, Conv1D)
            module.weight += (b @ a).T * scale if config["fan_in_fan_out"] else b @ a * scale


def main():
    import torch
    import transformers

    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        folder = Path(sys.argv[1]) / name
        base = Path((folder / "base.txt").read_text())
        architecture = json.loads((base / "config.json").read_text())["architectures"][0]
        model = getattr(transformers, architecture).from_pretrained(base).eval()
        merge(model, folder / "adapter", torch)
        given = {k: torch.tensor(v) for k, v in np.load(folder / "inputs.npz").items()}
        given[model.main_input_name] = given.pop("input")
        with torch.no_grad():
            np.save(folder / "logits.npy", model(**given).logits.numpy())


if __name__ == "__main__":
    main()
