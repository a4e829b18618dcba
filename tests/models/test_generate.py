"""Model.generate(): its tokens are those of transformers, greedy and by beams, on every layout of ranks; its names in
Python."""

import json

import numpy as np
import pytest
from harness import torch_generate
from harness.small_models import LLAMA
from harness.torch_generate import CASES, WAYS
from harness.torch_python import require_torch, run_torch

import holon as flow

LAYOUTS = [{}, {"dp": 2}, {"tp": 2}, {"pp": 3}, {"dp": 2, "tp": 2}, {"tp": 4}, {"dp": 3}, {"tp": 2, "pp": 2}]


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    require_torch()
    folder = tmp_path_factory.mktemp("generated")
    run_torch(torch_generate.__file__, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: "-".join(f"{k}{n}" for k, n in x.items()) or "one")
@pytest.mark.parametrize("name", CASES)
def test_as_transformers(references, name, layout):
    folder = references / name

    def generated(rank):
        model = flow.models.from_pretrained(folder, **layout)
        found = {}
        for way, (padded, options) in WAYS.items():
            with np.load(folder / f"{way}.npz") as saved:
                mask = flow.tensor(saved["mask"]) if padded else None
                ids = flow.tensor(saved["ids"])
                found[way] = model.generate(ids, mask, pad_token_id=3, **options).numpy()
                if not name.startswith("t5"):
                    compiled = model.generate(ids, mask, pad_token_id=3, cache_implementation="static", **options)
                    np.testing.assert_array_equal(compiled, found[way], err_msg=way)
        return found

    ranks = int(np.prod(list(layout.values()), dtype=int))
    for found in flow.run_ranks(ranks, generated):
        for way in WAYS:
            with np.load(folder / f"{way}.npz") as saved:
                np.testing.assert_array_equal(found[way], saved["tokens"], err_msg=way)


class Letters:
    """A tokenizer whose tokens are the letters of the alphabet."""

    def decode(self, tokens):
        return "".join(chr(ord("a") + t) for t in tokens)


IDS = [[1, 2, 3, 4], [0, 0, 5, 6]]
MASK = [[1, 1, 1, 1], [0, 0, 1, 1]]


def small_model(**layout):
    flow.manual_seed(3)
    return flow.models.from_config(LLAMA, **layout).eval()


def test_all_options_have_their_names():
    def run(rank):
        model = small_model(tp=2)
        ids, mask = flow.tensor(IDS), flow.tensor(MASK)
        rows = model.generate(ids, mask, max_new_tokens=9)
        assert rows.shape == (2, 13) and rows.dtype == flow.int64 and rows.is_local
        np.testing.assert_array_equal(model.generate(ids, attention_mask=mask, max_new_tokens=9, use_cache=False), rows)
        new = rows.numpy()[:, 4:]
        # One end as a number is a list of one.
        end = int(new[0, 2])
        one, several = (
            model.generate(ids, mask, max_new_tokens=9, eos_token_id=e, pad_token_id=22) for e in (end, [end])
        )
        np.testing.assert_array_equal(one, several)
        at = list(new[0]).index(end)
        assert (one.numpy()[0, 4 + at + 1 :] == 22).all() and one.numpy()[0, 4 + at] == end
        # Text that ends a row.
        stop = Letters().decode(new[0, 3:5])
        for stops in (stop, ["no", stop]):
            ended = model.generate(ids[:1], max_new_tokens=9, stop_strings=stops, tokenizer=Letters())
            text = Letters().decode(new[0])
            assert Letters().decode(ended.numpy()[0, 4:]) == text[: text.index(stop) + 2]
        # A streamer that returns nothing goes on.
        steps = []
        model.generate(ids, mask, max_new_tokens=9, streamer=lambda step, tokens: steps.append((step, *tokens)))
        assert steps == [(i, *new[:, i]) for i in range(9)]
        options = {"do_sample": True, "temperature": 1.5, "top_k": 0, "top_p": 0.9, "seed": 4}
        sampled = model.generate(ids, mask, max_new_tokens=9, **options)
        beams = {"num_beams": 3, "length_penalty": 0.5, "early_stopping": True, "eos_token_id": [2, 7]}
        return rows.numpy(), sampled.numpy(), model.generate(ids, mask, max_new_tokens=9, **beams).numpy()

    found = flow.run_ranks(2, run)
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (found[0][0] != found[0][1]).any()


def test_an_error_in_a_streamer_is_raised():
    def run(rank):
        def streamer(step, tokens):
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            small_model().generate(flow.tensor(IDS), streamer=streamer)

    flow.run_ranks(1, run)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 29}, "4 tokens and 29 new ones are longer than the 32 positions"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"eos_token_id": 23}, "eos_token_id 23 is not in the vocabulary"),
        ({"attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]]}, "row 1 ends with padding"),
        ({"num_beams": 2, "do_sample": True}, "num_beams is 2 with do_sample"),
        ({"stop_strings": "x"}, "tokenizer in Python"),
    ],
)
def test_options_that_are_wrong(options, message):
    mask = options.pop("attention_mask", None)
    with pytest.raises(ValueError, match=message):
        small_model().generate(flow.tensor(IDS), mask and flow.tensor(mask), **options)


def with_generation_config(folder, config):
    """The small model, read from a checkpoint that has this generation_config.json."""
    small_model().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(config))
    return flow.models.from_pretrained(folder)


def test_what_is_left_out_is_what_the_checkpoint_says(tmp_path):
    ids = flow.tensor(IDS)
    plain = small_model().generate(ids, max_new_tokens=9).numpy()
    end = int(plain[0, 6])
    for config, options in [
        ({"max_new_tokens": 5}, {"max_new_tokens": 5}),
        ({"max_length": 11}, {"max_new_tokens": 7}),
        ({"max_length": 11, "max_new_tokens": 3}, {"max_new_tokens": 3}),
        ({}, {"max_new_tokens": 20}),
        (
            {"eos_token_id": [end, 99], "pad_token_id": 22, "max_new_tokens": 9},
            {"eos_token_id": end, "pad_token_id": 22},
        ),
        ({"num_beams": 3, "length_penalty": 0.3, "early_stopping": True, "max_new_tokens": 9}, "same"),
        ({"repetition_penalty": 1.9, "max_new_tokens": 9}, "same"),
        ({"no_repeat_ngram_size": 1, "max_new_tokens": 9}, "same"),
        ({"bad_words_ids": [[end], [1, 2]], "max_new_tokens": 9}, "same"),
        ({"eos_token_id": end, "min_length": 12, "max_new_tokens": 9}, "same"),
        ({"eos_token_id": end, "min_new_tokens": 6, "max_new_tokens": 9}, "same"),
        # What asks for nothing, belongs to other programs, or has no meaning without samples.
        (
            {
                "max_new_tokens": 9,
                "temperature": 0.0,
                "bos_token_id": 1,
                "transformers_version": "4.40.0",
                "chat_format": "chatml",
                "num_beam_groups": 1,
                "typical_p": 1.0,
                "suppress_tokens": None,
                "remove_invalid_values": False,
            },
            {},
        ),
    ]:
        options = dict(config) if options == "same" else options
        model = with_generation_config(tmp_path, config)
        assert model.generation_config == config
        found = model.generate(ids).numpy()
        np.testing.assert_array_equal(
            found, small_model().generate(ids, **{"max_new_tokens": 9, **options}), str(config)
        )
        # Arguments come first.
        assert model.generate(ids, max_new_tokens=2).shape[1] <= 6
        # It is saved again.
        model.save_pretrained(tmp_path / "again")
        assert flow.models.from_pretrained(tmp_path / "again").generation_config == config


def test_samples_by_the_checkpoints_numbers(tmp_path):
    ids = flow.tensor(IDS)
    numbers = {"temperature": 1.7, "top_k": 6, "top_p": 0.8}
    model = with_generation_config(tmp_path, {"do_sample": True, **numbers})
    wanted = small_model().generate(ids, do_sample=True, seed=5, **numbers)
    np.testing.assert_array_equal(model.generate(ids, seed=5), wanted)
    assert (model.generate(ids, seed=5, top_k=0, top_p=1.0).numpy() != wanted.numpy()).any()
    np.testing.assert_array_equal(model.generate(ids, do_sample=False), small_model().generate(ids))


def test_what_is_not_there_is_an_error(tmp_path):
    ids = flow.tensor(IDS)
    for config, message in [
        ({"penalty_alpha": 0.6}, "generation_config.json asks for 'penalty_alpha', which is not there"),
        ({"num_beam_groups": 2}, "asks for 'num_beam_groups'"),
        ({"suppress_tokens": [3]}, "asks for 'suppress_tokens'"),
        ({"typical_p": 0.9}, "asks for 'typical_p'"),
        ({"guidance_scale": 1.5}, "asks for 'guidance_scale'"),
        ({"do_sample": "yes"}, "'do_sample' is of the type"),
        ({"bad_words_ids": [1, 2]}, "must be a list of lists of integers"),
        ({"early_stopping": "never"}, "'early_stopping' is of the type"),
        ({"max_length": 4}, "max_length is 4, and the prompts have 4 tokens already"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
    ]:
        model = with_generation_config(tmp_path, config)
        with pytest.raises(ValueError, match=message):
            model.generate(ids)
        model.generation_config = {"max_new_tokens": 1}
        assert model.generate(ids).shape == (2, 5)
    (tmp_path / "generation_config.json").write_text("[1")
    with pytest.raises(RuntimeError, match="generation_config.json is not a JSON object"):
        flow.models.from_pretrained(tmp_path)
    with pytest.raises(TypeError, match="max_new_tokens is of the type str"):
        small_model().generate(ids, max_new_tokens="many")
