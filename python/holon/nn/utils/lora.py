"""Adapters of low rank (LoRA) next to the Linear layers of modules that are written in Python."""

import math
import re
from collections.abc import Sequence

from ... import _C
from ...autograd import no_grad
from .. import functional as F
from .. import init
from ..attention import MultiheadAttention
from ..linear import Linear
from ..module import Module
from ..parameter import Parameter


def _follows(weight, of, axis):
    """Where, and under which sbp, a factor is: split along its axis where the weight is along `of`, else broadcast."""
    if not weight.is_global:
        return {"device": weight.device}
    split = [s == _C.sbp.split(of) for s in weight.sbp]
    return {
        "placement": weight.placement,
        "sbp": tuple(_C.sbp.split(axis) if s else _C.sbp.broadcast for s in split),
    }


def _partial(x):
    return x.is_global and any(s == _C.sbp.partial_sum for s in x.sbp)


class _Added:
    """The hook that adds an adapter's product to the result of its layer."""

    def __init__(self, a, b, scale, dropout):
        self.a, self.b, self.scale, self.dropout = a, b, scale, dropout

    def __call__(self, module, args, kwargs, result):
        x = args[0] if args else kwargs["x"]
        x = x.to(self.a.weight.dtype)
        if self.dropout > 0:
            x = F.dropout(x, self.dropout, self.a.training)
        h = self.a(x) * self.scale
        if _partial(h) and not _partial(result):
            h = h.to_global(h.placement, tuple(_C.sbp.broadcast if s == _C.sbp.partial_sum else s for s in h.sbp))
        return result + self.b(h).to(result.dtype)


class Lora:
    """Freezes a module's parameters and puts adapters of low rank next to its Linear layers: W x becomes
    W x + lora_alpha / r (with use_rslora: / sqrt(r)) B A x.

    A and B are layers "lora_A" and "lora_B" of the layer, whose weights are drawn and zeros; they belong to the
    module's parameters and state. target_modules is as PEFT's: ends of the paths of layers; one text is a regular
    expression for whole paths, or one name; "all-linear" are all of them. Models of holon.models have add_lora().

    Errors (ValueError), before anything is changed: a target that fits no Linear layer, which lists those that there
    are; options out of range; a layer that has an adapter.
    """

    def __init__(
        self,
        module: Module,
        target_modules: str | Sequence[str] = "all-linear",
        *,
        r: int = 8,
        lora_alpha: float = 8,
        lora_dropout: float = 0.0,
        use_rslora: bool = False,
    ) -> None:
        if r < 1:
            raise ValueError(f"Lora: r is {r}; a rank is 1 or more.")
        if not math.isfinite(lora_alpha):
            raise ValueError(f"Lora: lora_alpha is {lora_alpha}; it must be a finite number.")
        if not 0 <= lora_dropout <= 1:
            raise ValueError(f"Lora: lora_dropout is {lora_dropout}; a probability must be from 0 to 1.")
        modules = dict(module.named_modules())
        # Attention multiplies by the weight of its out_proj itself.
        of_attention = {id(m.out_proj) for m in modules.values() if isinstance(m, MultiheadAttention)}
        layers = {p: m for p, m in modules.items() if isinstance(m, Linear) and id(m) not in of_attention}
        layers = {p: m for p, m in layers.items() if p.rpartition(".")[2] not in ("lora_A", "lora_B")}
        targets = [target_modules] if isinstance(target_modules, str) else list(target_modules)

        def fits(target, path):
            if target == "all-linear" or path == target or (target and path.endswith(f".{target}")):
                return True
            return isinstance(target_modules, str) and re.fullmatch(target, path) is not None

        for target in targets or [""]:
            if not any(fits(target, path) for path in layers):
                raise ValueError(
                    f"Lora: target_modules: '{target}' is not the end of the path of a Linear layer. Those that there "
                    f'are: {", ".join(layers) or "none (models of holon.models have add_lora())"}; or "all-linear".'
                )
        chosen = {path: layer for path, layer in layers.items() if any(fits(target, path) for target in targets)}
        for path, layer in chosen.items():
            if "lora_A" in layer._modules:
                raise ValueError(f"Lora: '{path}' has an adapter already. Remove that first, or train it on.")
        self._frozen = [p for p in module.parameters() if p.requires_grad]
        for p in self._frozen:
            p.requires_grad = False
        self._layers, self._merged = chosen, False
        self._hooks: dict[str, tuple] = {}
        scale = lora_alpha / (math.sqrt(r) if use_rslora else r)
        for path, layer in chosen.items():
            weight = layer.weight
            dtype = weight.dtype if weight.dtype in (_C.float32, _C.float64) else _C.float32
            a = Linear(layer.in_features, r, bias=False, dtype=dtype, **_follows(weight, 1, 1))
            b = Linear(r, layer.out_features, bias=False, dtype=dtype, **_follows(weight, 0, 0))
            init.zeros_(b.weight)
            layer.lora_A, layer.lora_B = a.train(layer.training), b.train(layer.training)
            self._add_hook(path, _Added(a, b, scale, lora_dropout))

    def _add_hook(self, path, added):
        self._hooks[path] = added, self._layers[path].register_forward_hook(added, with_kwargs=True)

    def parameters(self) -> list[Parameter]:
        """The weights of the adapters, which alone require grad."""
        return [p for added, _ in self._hooks.values() for p in (added.a.weight, added.b.weight)]

    @property
    def is_merged(self) -> bool:
        """Whether the adapters are a part of the weights."""
        return self._merged

    def _add_to_weights(self, sign):
        with no_grad():
            for path, (added, handle) in self._hooks.items():
                weight = self._layers[path].weight
                product = (added.b.weight @ added.a.weight) * (sign * added.scale)
                if weight.is_global:
                    product = product.to_global(weight.placement, weight.sbp)
                weight.copy_((weight.to(product.dtype) + product).to(weight.dtype))
                if sign > 0:
                    handle.remove()
                else:
                    self._add_hook(path, added)
        self._merged = sign > 0

    def merge(self) -> None:
        """Adds the adapters' products to the weights. Errors: RuntimeError if they are merged."""
        if self._merged:
            raise RuntimeError("Lora: merge: the adapters are merged already. Unmerge them first.")
        self._add_to_weights(1)

    def unmerge(self) -> None:
        """Takes them out again by a subtraction, which is as exact as the weights' dtype."""
        if not self._merged:
            raise RuntimeError("Lora: unmerge: the adapters are not merged.")
        self._add_to_weights(-1)

    def remove(self) -> None:
        """Takes the adapters out of the module; weights that they are merged into keep them. What was frozen is learned
        again."""
        for path, (_, handle) in self._hooks.items():
            handle.remove()
            del self._layers[path].lora_A, self._layers[path].lora_B
        for p in self._frozen:
            p.requires_grad = True
        self._hooks, self._frozen = {}, []
