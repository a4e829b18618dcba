"""Models of transformers' checkpoints on any layout of ranks: `from_pretrained(DIR, dp=1, tp=2)`.

They are written in C++ (holon/models/); here they are modules as others, with the same tensors.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import _C
from .nn.cpp import CppModule
from .nn.module import Module
from .nn.parameter import Parameter


class Model(CppModule):
    """A model that from_pretrained() or from_config() made.

    Inputs are global tensors, or local ones that are alike on all ranks. attention_mask is 1 where a token is seen;
    position_ids that begin again, and document_ids, keep attention within documents. What a model does not take is an
    error (ValueError), as are rows that are longer than its positions; so are ids outside the vocabulary
    (IndexError).
    """

    def __init__(self, core: _C.Model) -> None:
        super().__init__(core.module)
        self.__dict__["_model"] = core

    def forward(
        self,
        input: _C.Tensor,
        attention_mask: _C.Tensor | None = None,
        position_ids: _C.Tensor | None = None,
        document_ids: _C.Tensor | None = None,
        token_type_ids: _C.Tensor | None = None,
        decoder_input_ids: _C.Tensor | None = None,
        decoder_attention_mask: _C.Tensor | None = None,
    ) -> _C.Tensor:
        """The logits, a global tensor on the last stage, of tokens [batch, length] or pixels [batch, channels, height,
        width]."""
        return self._model.forward(
            input,
            attention_mask,
            position_ids,
            document_ids,
            token_type_ids,
            decoder_input_ids,
            decoder_attention_mask,
        )

    def loss(
        self,
        input: _C.Tensor,
        labels: _C.Tensor,
        attention_mask: _C.Tensor | None = None,
        position_ids: _C.Tensor | None = None,
        document_ids: _C.Tensor | None = None,
        token_type_ids: _C.Tensor | None = None,
        decoder_input_ids: _C.Tensor | None = None,
        decoder_attention_mask: _C.Tensor | None = None,
    ) -> _C.Tensor:
        """The mean loss over the labels of the whole batch that are not -100; of a causal model they are the tokens."""
        return self._model.loss(
            input,
            labels,
            attention_mask,
            position_ids,
            document_ids,
            token_type_ids,
            decoder_input_ids,
            decoder_attention_mask,
        )

    def generate(
        self,
        input: _C.Tensor,
        attention_mask: _C.Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        repetition_penalty: float | None = None,
        no_repeat_ngram_size: int | None = None,
        min_new_tokens: int | None = None,
        min_length: int | None = None,
        bad_words_ids: Sequence[Sequence[int]] | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        stop_strings: str | Sequence[str] | None = None,
        tokenizer: Any = None,
        streamer: Callable[[int, list[int]], bool | None] | None = None,
        use_cache: bool | None = None,
        cache_implementation: str | None = None,
    ) -> _C.Tensor:
        """The prompts [batch, length] with the tokens that follow: int64 [batch, length + new tokens], local and alike
        on all ranks, padded behind the ends of rows; of T5 the decoder's tokens, behind its start token. Collective.
        The mode stays: call eval() first.

        An option that is None is what generation_config says, or else transformers' default: 20 new tokens, the most
        probable ones, and for samples a temperature of 1 and the 50 most probable tokens (top_k 0: all).

        Shorter prompts have padding on the left, where attention_mask is 0. max_length is how long rows become at most,
        with their prompts, without max_new_tokens. A row ends with any eos_token_id (by default that of
        generation_config.json, or of config.json) or where the text of its new tokens, by tokenizer.decode(tokens), has
        one of stop_strings. do_sample draws tokens by temperature, top_k and top_p, by the seed, the step and the row
        only, whatever the layout; without it the most probable token is next, or num_beams continuations are searched.
        repetition_penalty, no_repeat_ngram_size, min_new_tokens, min_length and bad_words_ids change the scores of
        tokens as in transformers. cache_implementation "static" compiles the steps of one token, which takes some time
        before the first. streamer(step, tokens) is called with the new token of each row, on all ranks; False
        ends the generation.

        Errors: as of transformers' options that are out of range, of prompts and new tokens longer than the model's
        positions, of models that are not causal, and of a generation_config that asks for what is not there
        (ValueError).
        """
        options: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "max_length": max_length,
            "do_sample": do_sample,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
            "repetition_penalty": repetition_penalty,
            "no_repeat_ngram_size": no_repeat_ngram_size,
            "min_new_tokens": min_new_tokens,
            "min_length": min_length,
            "bad_words_ids": bad_words_ids,
            "num_beams": num_beams,
            "length_penalty": length_penalty,
            "early_stopping": early_stopping,
            "eos_token_id": [eos_token_id] if isinstance(eos_token_id, int) else eos_token_id,
            "pad_token_id": pad_token_id,
            "stop_strings": [stop_strings] if isinstance(stop_strings, str) else stop_strings,
            "use_cache": use_cache,
            "cache_implementation": cache_implementation,
        }
        options = {name: value for name, value in options.items() if value is not None}
        if top_k is not None:
            options["top_k"] = top_k or None
        decode = None if tokenizer is None else tokenizer.decode
        stream = None
        if streamer is not None:

            def stream(step: int, tokens: Sequence[int]) -> bool:
                goes_on = streamer(step, list(tokens))
                return goes_on is None or bool(goes_on)

        return self._model.generate(input, attention_mask, options, decode, stream)

    @property
    def generation_config(self) -> dict[str, Any]:
        """What generate() goes by where an argument is left out: generation_config.json of the checkpoint; a copy.
        Assign another one to change it, alike on all ranks."""
        return json.loads(self._model.generation_config())

    @generation_config.setter
    def generation_config(self, config: Mapping[str, Any]) -> None:
        self._model.set_generation_config(json.dumps(dict(config)))

    def quantize(self, bits: int = 4, group_size: int = 32, lm_head: bool = False, *, format: str = "int") -> "Model":
        """Replaces the weights of the products of attention, of MLPs and of experts by integers of 4 or 8 bits, in
        place, with less memory; returns the model. Adjacent group_size inputs of an output have one
        scale, and a weight is off by at most half of it. format="mxfp4": by the floats of 4 bits of OCP's MXFP4, of
        which 32 have a power of two for a scale. Embeddings, norms, biases and routers stay, and the product that gives
        the logits unless lm_head. The weights are parameters of uint8 then, which are not learned, while
        add_lora() adds what is: state_dict() has them, and load_state_dict() reads them into a model that is quantised
        alike. Collective.

        Errors: ValueError for other bits or formats, a group_size that does not divide a layer's inputs or cuts groups
        of experts between ranks, and a model that is quantised already; afterwards, RuntimeError in save_pretrained()
        and, of quantised experts, NotImplementedError in backward().
        """
        self._model.quantize(bits, group_size, lm_head, format)
        self._follow()
        return self

    def add_lora(
        self,
        target_modules: str | Sequence[str] = "all-linear",
        *,
        r: int = 8,
        lora_alpha: float = 8,
        lora_dropout: float = 0.0,
        use_rslora: bool = False,
    ) -> "Model":
        """Freezes the parameters and puts low-rank adapters next to products with weights, which may be quantised;
        returns the model. A product with a weight W then adds lora_alpha / r (with use_rslora: / sqrt(r)) B A x. A and
        B are parameters, "PATH.lora_A.weight" and "PATH.lora_B.weight", which alone require grad; B begins as zeros.

        target_modules is as PEFT's: ends of the paths of modules, here or in transformers, such as ["q_proj",
        "v_proj"]; one text is a regular expression for whole paths, or one name; "all-linear" are all products but
        those that give the logits. Errors (ValueError), before anything is changed: a target that fits no module,
        which lists those that there are; options out of range; the model has adapters.
        """
        if isinstance(target_modules, str):
            targets = [target_modules]
            if target_modules != "all-linear":
                paths = self._model.lora_candidates()
                targets = [path for path in paths if re.fullmatch(target_modules, path)] or targets
        else:
            targets = list(target_modules)
        self._model.add_lora(targets, r, lora_alpha, lora_dropout, use_rslora)
        self._follow()
        return self

    def lora_parameters(self) -> list[Parameter]:
        """Those of the adapters; none without add_lora() or load_adapter()."""
        return [self.get_parameter(name) for name in self._model.lora_parameters()]

    def merge_lora(self) -> None:
        """Adds the adapters' products to the weights. Errors: RuntimeError if they are merged, or weights are
        quantised."""
        self._model.merge_lora()
        self._follow()

    def unmerge_lora(self) -> None:
        """Takes them out again by a subtraction, which is as exact as the weights' dtype."""
        self._model.unmerge_lora()
        self._follow()

    def remove_lora(self) -> None:
        """Takes the adapters out of the model; weights that they are merged into keep them. What add_lora() froze is
        learned again."""
        self._model.remove_lora()
        self._follow()

    def save_adapter(self, path: str | os.PathLike[str], base_model_name_or_path: str = "") -> None:
        """Writes adapter_config.json and adapter_model.safetensors into a folder, for load_adapter() here and for PEFT.
        base_model_name_or_path: what the former names as the model's checkpoint. Collective.

        Errors: RuntimeError without adapters, and for adapters of what is a part of a module in transformers, such as
        the q of GPT-2's c_attn.
        """
        self._model.save_adapter(os.fspath(path), os.fspath(base_model_name_or_path))

    def load_adapter(self, path: str | os.PathLike[str]) -> "Model":
        """Reads what save_adapter() or PEFT has written: adds adapters as there, or replaces the values of the same
        ones; returns the model. Collective.

        Errors: ValueError for files that ask for what is not there, such as DoRA, and for tensors that do not fit the
        model, all of which are listed; RuntimeError for what cannot be read.
        """
        self._model.load_adapter(os.fspath(path))
        self._follow()
        return self

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Writes config.json and the weights, for from_pretrained() here and in transformers. Collective."""
        self._model.save_pretrained(os.fspath(path))

    @property
    def config(self) -> dict[str, Any]:
        """What config.json says; a copy."""
        return json.loads(self._model.config)

    @property
    def placements(self) -> list[_C.placement]:
        """Those of the stages: grids of data parallel x tensor parallel ranks."""
        return self._model.placements()

    def stages(self) -> Iterator[tuple[Module, int, _C.placement]]:
        """Yields every part with its stage and that one's placement, for nn.graph.GraphModule.set_stage()."""
        placements = self.placements
        for path, stage in self._model.stages():
            yield self.get_submodule(path), stage, placements[stage]


def from_pretrained(
    path: str | os.PathLike[str],
    *,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    cp: int = 1,
    dtype: _C.dtype = _C.float32,
    device: str = "cpu",
    quantize: int | str | None = None,
) -> Model:
    """The model of a folder with config.json and weights, as save_pretrained() here or in transformers writes it, in
    evaluation mode. Each rank reads its own parts of the files. Collective.

    dp, tp, pp, ep: how many ranks share the rows of a batch, the heads and hidden units, the layers and the experts;
    their product is the number of ranks. cp is only 1 for now. dtype: of the parameters, whatever the files have.
    quantize: 4 or 8, the bits for Model.quantize() once the weights are read, or "mxfp4".

    Errors: ValueError for sizes that do not fit the world or the model, an unknown type of model, and files that do not
    fit the configuration, all of whose tensors are listed; RuntimeError for what cannot be read.
    """
    model = Model(_C.model_from_pretrained(os.fspath(path), dp, tp, pp, ep, cp, dtype, device))
    if quantize is None:
        return model
    return model.quantize(format=quantize) if isinstance(quantize, str) else model.quantize(quantize)


def from_config(
    config: Mapping[str, Any],
    *,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    cp: int = 1,
    dtype: _C.dtype = _C.float32,
    device: str = "cpu",
) -> Model:
    """A model of a configuration, a dict as config.json holds it, with drawn parameters and in training mode."""
    return Model(_C.model_from_config(json.dumps(dict(config)), dp, tp, pp, ep, cp, dtype, device))


def architectures() -> list[str]:
    """The classes of transformers whose checkpoints from_pretrained() reads."""
    return _C.model_architectures()
