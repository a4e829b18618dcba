"""Optimizers: groups of parameters with options and the state of each. The update rules run in C++ on all parameters of
a group at once; a gradient whose layout is not its parameter's is converted to it first (step is collective then)."""

import warnings
from collections import defaultdict
from difflib import get_close_matches

from .. import _C
from ..autograd import enable_grad, no_grad

# Options of every group, whatever the rule. Without clip_grad_max_norm, clip_grad() leaves the group alone.
_COMMON = {"params", "initial_lr", "clip_grad_max_norm", "clip_grad_norm_type"}


class Optimizer:
    """What all optimizers share, to derive from:
    define step(), or `_update(group)`, using self.param_groups and self.state[p].
    Example: groups = [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}]
    Example: optimizer = optim.SGD(groups, lr=0.1)"""

    _rule: str | None = None
    _needs_parameters = True
    _give_back = None  # set while a graph has the state and updates it in its own steps

    def __init__(self, params, defaults):
        if isinstance(params, _C.Tensor):
            raise TypeError("an optimizer takes a list of parameters or of groups, not one tensor: write [tensor].")
        self.defaults = defaults
        self.state = defaultdict(dict)
        self.param_groups = []
        groups = list(params)
        if not groups and self._needs_parameters:
            raise ValueError(f"{type(self).__name__} got no parameters. Give model.parameters() before it is used up.")
        if not groups or not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    @property
    def state(self):
        """A dict from parameters to what the rule keeps for them."""
        self._take_back()
        return self._state

    @state.setter
    def state(self, value):
        self._take_back()
        self._state = value

    def _take_back(self):
        if self._give_back is not None:
            give_back, self._give_back = self._give_back, None
            give_back()

    def __getstate__(self):
        return {**vars(self), "_state": self.state, "_give_back": None}

    def add_param_group(self, param_group):
        """Adds {"params": [...], options...}; options left out have their defaults."""
        if not isinstance(param_group, dict):
            raise TypeError(f"a group of parameters is a dict with 'params', not {type(param_group).__name__}.")
        if "params" not in param_group:
            raise ValueError(f"a group of parameters needs 'params'; this one has {', '.join(param_group)}.")
        group = dict(param_group)
        params = group["params"]
        if isinstance(params, set):
            raise TypeError("parameters must come in an order that stays: give a list, not a set.")
        group["params"] = params = [params] if isinstance(params, _C.Tensor) else list(params)
        for name in group:
            # A name that no option has is the program's own ("name": "encoder"), unless it looks like a slip.
            near = (
                name not in _COMMON
                and name not in self.defaults
                and get_close_matches(name, [*self.defaults, *_COMMON], 1, 0.8)
            )
            if near:
                raise ValueError(f"{type(self).__name__} has no option {name!r}; did you mean {near[0]!r}?")
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for p in params:
            if not isinstance(p, _C.Tensor):
                raise TypeError(f"{type(self).__name__} optimizes tensors, not {type(p).__name__}.")
            if not p.is_leaf:
                raise ValueError(
                    "a tensor to optimize must be a leaf: this one is the result of an op. Give what it was made from."
                )
            if id(p) in known:
                raise ValueError("a parameter is given twice. Give each parameter to one group, once.")
            known.add(id(p))
        for name, value in self.defaults.items():
            group.setdefault(name, value)
        self._check(group)
        self.param_groups.append(group)

    def _check(self, group):
        """Raises if an option is out of range."""
        for name in ("lr", "eps", "weight_decay", "momentum"):
            value = group.get(name, 0)
            if value is not None and value < 0:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; it must not be negative.")
        if self._rule:
            _C.optimizer_check(self._rule, group)

    def zero_grad(self, set_to_none=True):
        """Forgets all gradients, or sets them to zero."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None
                elif p.grad is not None:
                    with no_grad():
                        p.grad.zero_()

    def clip_grad(self, error_if_nonfinite=False):
        """Clips the gradients of the groups that have a "clip_grad_max_norm" ("clip_grad_norm_type": 2).

        Groups with the same limit and type are clipped together, by the norm of all their gradients. Returns the norms
        before, one for each limit, in the order of the groups.
        """
        together = {}
        for group in self.param_groups:
            limit = group.get("clip_grad_max_norm")
            if limit is not None:
                key = float(limit), float(group.get("clip_grad_norm_type", 2.0))
                together.setdefault(key, []).extend(group["params"])
        if not together:
            warnings.warn("clip_grad() does nothing: no group has a 'clip_grad_max_norm'.", stacklevel=2)
        return [_C.clip_grad_norm(params, *key, error_if_nonfinite) for key, params in together.items()]

    def step(self, closure=None):
        """Updates every parameter that has a gradient.
        closure: computes the loss and gradients first; its result is returned."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            for group in self.param_groups:
                self._update(group)
        _C.contract_end_step()
        return loss

    def _update(self, group):
        if self._rule is None:
            raise NotImplementedError(f"{type(self).__name__} must define step(closure=None) or _update(group).")
        params = [p for p in group["params"] if p.grad is not None]
        if params:
            state = self.state
            _C.optimizer_step(self._rule, params, [state[p] for p in params], group)

    def state_dict(self):
        """Returns {"state": {index: {...}}, "param_groups": [...]}; parameters are numbered in order of the groups."""
        number = {id(p): i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        return {
            "state": {number[id(p)]: dict(state) for p, state in self.state.items()},
            "param_groups": [
                {**group, "params": [number[id(p)] for p in group["params"]]} for group in self.param_groups
            ],
        }

    def load_state_dict(self, state_dict):
        """Takes over what state_dict() returned; state tensors are converted to the parameters' layout (collective)."""
        name = f"load_state_dict of {type(self).__name__}"
        if missing := {"state", "param_groups"} - set(state_dict):
            raise ValueError(f"{name}: there is no {sorted(missing)[0]!r}. Load what state_dict() returned.")
        groups = state_dict["param_groups"]
        sizes, own = [len(g["params"]) for g in groups], [len(g["params"]) for g in self.param_groups]
        if sizes != own:
            raise ValueError(f"{name}: its groups hold {sizes} parameters, the optimizer's {own}.")
        params, group_of = {}, {}
        for i, (loaded, group) in enumerate(zip(groups, self.param_groups)):
            unknown = [key for key in self.defaults if key not in loaded]
            if unknown:
                raise ValueError(
                    f"{name}: group {i} has no option {unknown[0]!r}. It was saved by another kind of optimizer."
                )
            for number, p in zip(loaded["params"], group["params"]):
                params[number], group_of[number] = p, loaded
        # Everything is made before anything is changed.
        state = defaultdict(dict)
        with no_grad():
            for number, values in state_dict["state"].items():
                if number not in params:
                    raise ValueError(
                        f"{name}: there is a state {number!r}, but no parameter of that number in the groups."
                    )
                p = params[number]
                state[p] = {key: self._like(p, number, key, value, group_of[number]) for key, value in values.items()}
        for loaded, group in zip(groups, self.param_groups):
            self._check(loaded)
            group.update({key: value for key, value in loaded.items() if key != "params"})
        self.state = state

    def _like(self, p, number, key, value, group):
        if not isinstance(value, _C.Tensor):
            return value
        if tuple(value.shape) != tuple(p.shape):
            if self._rule is None:
                return value.clone()
            raise ValueError(
                f"load_state_dict of {type(self).__name__}: {key} of parameter {number} is {list(value.shape)}, its "
                f"parameter {list(p.shape)}."
            )
        if value.is_global != p.is_global:
            raise ValueError(
                f"load_state_dict of {type(self).__name__}: {key} of parameter {number} is "
                f"{'global' if value.is_global else 'local'}, its parameter is not. Convert it by "
                f"{'to_local()' if value.is_global else 'to_global()'} first."
            )
        # A copy: training on must not change the dict that was loaded.
        if self._rule is not None:
            return _C.optimizer_state_like(self._rule, group, p, value).clone()
        return (value.to_global(p.placement, p.sbp) if p.is_global else value).clone()

    def __repr__(self):
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {name}: {value}" for name, value in sorted(group.items()) if name != "params"]
        return "\n".join([*lines, ")"])


def _accept(rule, ignored, allowed=("foreach", "fused", "contiguous_params")):
    """Options of PyTorch's that choose among implementations: there is one, which is always fused."""
    for name in ignored:
        if name not in allowed:
            raise TypeError(f"{rule} got an unexpected option {name!r}.")


class SGD(Optimizer):
    """p -= lr * g, with momentum: v = momentum * v + (1 - dampening) * g and p -= lr * v.
    Example: optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"""

    _rule = "sgd"

    def __init__(
        self,
        params,
        lr=1e-3,
        momentum=0.0,
        dampening=0.0,
        weight_decay=0.0,
        nesterov=False,
        maximize=False,
        *,
        master_weights=False,
        **ignored,
    ):
        _accept("SGD", ignored)
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
                "master_weights": master_weights,
            },
        )


class Adam(Optimizer):
    """Adam: steps of lr * m / (sqrt(v) + eps), with running means m of g and v of g * g. weight_decay is added to g.
    Example: optimizer = optim.Adam(model.parameters(), lr=1e-3)"""

    _rule = "adam"
    _decoupled = False

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.0,
        amsgrad=False,
        do_bias_correction=True,
        *,
        maximize=False,
        master_weights=False,
        **ignored,
    ):
        _accept(type(self).__name__, ignored)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": tuple(betas),
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "do_bias_correction": do_bias_correction,
                "maximize": maximize,
                "master_weights": master_weights,
                "decoupled": self._decoupled,
            },
        )


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters directly: p -= lr * weight_decay * p; 0.01 where none is given.
    Example: optimizer = optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)"""

    _decoupled = True
    _weight_decay = 1e-2

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=None,
        amsgrad=False,
        do_bias_correction=True,
        *,
        maximize=False,
        master_weights=False,
        **ignored,
    ):
        super().__init__(
            params,
            lr,
            betas,
            eps,
            self._weight_decay if weight_decay is None else weight_decay,
            amsgrad,
            do_bias_correction,
            maximize=maximize,
            master_weights=master_weights,
            **ignored,
        )


class Adagrad(Optimizer):
    """p -= lr / (1 + steps * lr_decay) * g / (sqrt(sum of g * g) + eps).
    Example: optimizer = optim.Adagrad(model.parameters(), lr=0.1)"""

    _rule = "adagrad"

    def __init__(
        self,
        params,
        lr=1e-3,
        lr_decay=0.0,
        weight_decay=0.0,
        initial_accumulator_value=0.0,
        eps=1e-10,
        *,
        maximize=False,
        master_weights=False,
        **ignored,
    ):
        _accept("Adagrad", ignored)
        super().__init__(
            params,
            {
                "lr": lr,
                "lr_decay": lr_decay,
                "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value,
                "eps": eps,
                "maximize": maximize,
                "master_weights": master_weights,
            },
        )


class Adadelta(Optimizer):
    """Steps of lr * g * sqrt(u + eps) / sqrt(v + eps), with running means v of g * g and u of the squares of the steps.
    Example: optimizer = optim.Adadelta(model.parameters())"""

    _rule = "adadelta"

    def __init__(
        self, params, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0, maximize=False, *, master_weights=False, **ignored
    ):
        _accept("Adadelta", ignored)
        super().__init__(
            params,
            {
                "lr": lr,
                "rho": rho,
                "eps": eps,
                "weight_decay": weight_decay,
                "maximize": maximize,
                "master_weights": master_weights,
            },
        )


class RMSprop(Optimizer):
    """Steps of lr * g / (sqrt(v) + eps), with a running mean v of g * g (centered: less the square of the mean of g).
    Example: optimizer = optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)"""

    _rule = "rmsprop"

    def __init__(
        self,
        params,
        lr=1e-3,
        alpha=0.99,
        eps=1e-8,
        weight_decay=0.0,
        momentum=0.0,
        centered=False,
        *,
        maximize=False,
        master_weights=False,
        **ignored,
    ):
        _accept("RMSprop", ignored)
        super().__init__(
            params,
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
                "maximize": maximize,
                "master_weights": master_weights,
            },
        )


class LAMB(Optimizer):
    """Adam whose steps are scaled, for each parameter, to the parameter's own norm: large batches at large rates.

    adam_w_mode: weight decay is part of the step; otherwise it is added to the gradient.
    Norms are those of whole tensors.

    Example: optimizer = optim.LAMB(model.parameters(), lr=1e-2)
    """

    _rule = "lamb"

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.0,
        adam_w_mode=True,
        do_bias_correction=True,
        amsgrad=False,
        *,
        maximize=False,
        master_weights=False,
        **ignored,
    ):
        _accept("LAMB", ignored)
        if amsgrad:
            raise ValueError("LAMB has no amsgrad.")
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": tuple(betas),
                "eps": eps,
                "weight_decay": weight_decay,
                "adam_w_mode": adam_w_mode,
                "do_bias_correction": do_bias_correction,
                "maximize": maximize,
                "master_weights": master_weights,
            },
        )


class LARS(Optimizer):
    """SGD whose gradients are scaled, for each parameter,
    by trust_coefficient * |p| / (|g| + weight_decay * |p| + eps).
    Example: optimizer = optim.LARS(model.parameters(), lr=1.0)"""

    _rule = "lars"

    def __init__(
        self,
        params,
        lr=1e-3,
        momentum=0.9,
        dampening=0.0,
        weight_decay=0.0,
        nesterov=False,
        trust_coefficient=1e-3,
        eps=1e-8,
        *,
        maximize=False,
        master_weights=False,
        **ignored,
    ):
        _accept("LARS", ignored)
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "trust_coefficient": trust_coefficient,
                "eps": eps,
                "maximize": maximize,
                "master_weights": master_weights,
            },
        )
