"""What transformers generates: `python torch_generate.py FOLDER`, by a Python that has torch and transformers.

FOLDER/CASE gets a checkpoint of a small model with drawn parameters and, for each of WAYS, WAY.npz with prompts, mask
and the tokens.
"""

import sys
from pathlib import Path

import numpy as np

LENGTH = 6
CASES = (
    "gpt2",
    "llama",
    "llama3",
    "mistral",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "deepseek",
    "t5",
    "t5-gated",
)
PENALTIES = {
    "repetition_penalty": 1.4,
    "no_repeat_ngram_size": 3,
    "min_new_tokens": 5,
    "bad_words_ids": [[9], [2], [11, 12], [20, 21, 22]],
    "eos_token_id": [2, 5, 7],
}
# Name: whether prompts are padded, and the options of generate().
WAYS = {
    "greedy": (False, {"max_new_tokens": 20}),
    "greedy-padded": (True, {"max_new_tokens": 20}),
    "greedy-several-ends": (True, {"max_new_tokens": 20, "eos_token_id": [2, 5, 7, 30]}),
    "greedy-penalties": (True, {"max_new_tokens": 20, **PENALTIES}),
    "greedy-ngrams": (False, {"max_length": 20, "no_repeat_ngram_size": 1, "min_length": 9, "eos_token_id": [5, 7]}),
    "beams-penalties": (True, {"max_new_tokens": 12, "num_beams": 3, **PENALTIES}),
    "beams": (False, {"max_new_tokens": 12, "num_beams": 3}),
    "beams-padded": (True, {"max_new_tokens": 12, "num_beams": 4, "length_penalty": 2.0, "eos_token_id": [2, 5, 7]}),
    "beams-early": (
        False,
        {"max_new_tokens": 12, "num_beams": 2, "early_stopping": True, "eos_token_id": [2, 5, 7, 30]},
    ),
    "beams-short": (True, {"max_new_tokens": 12, "num_beams": 3, "length_penalty": -1.0, "eos_token_id": [2, 5]}),
}


def prompts_of(way, seed):
    from torch_models import VOCABULARY

    rng = np.random.default_rng(seed)
    ids, mask = rng.integers(8, 30, (5, LENGTH)), np.ones((5, LENGTH), int)
    if WAYS[way][0]:
        mask[0, :3], mask[2, :1], mask[3, :5] = 0, 0, 0
    assert ids.max() < VOCABULARY
    return np.where(mask == 1, ids, 0), mask


def main():
    import torch
    import transformers
    from torch_models import CASES as MODELS
    from torch_models import draw

    torch.set_num_threads(1)
    for name in CASES:
        class_name, config, _ = MODELS[name]
        if name == "gpt2":
            config = {**config, "n_positions": 32}
        model_class = getattr(transformers, class_name)
        model = model_class(model_class.config_class(**config)).eval()
        draw(model, torch)
        folder = Path(sys.argv[1]) / name
        model.save_pretrained(folder)
        for number, (way, (_, options)) in enumerate(WAYS.items()):
            ids, mask = prompts_of(way, number)
            tokens = model.generate(
                torch.tensor(ids), attention_mask=torch.tensor(mask), do_sample=False, pad_token_id=3, **options
            )
            np.savez(folder / f"{way}.npz", ids=ids, mask=mask, tokens=tokens.numpy())


if __name__ == "__main__":
    main()
