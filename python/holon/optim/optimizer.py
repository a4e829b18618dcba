"""Optimizers: groups of parameters with options and the state of each, over update rules that run in C++ on many parameters at
once. A gradient whose layout is not its parameter's is boxed to it first (step is collective then)."""
from .. import _C
from ..autograd import enable_grad, no_grad


class Optimizer:
    """What all optimizers share. A subclass gives the defaults of its options and updates one group in `_update`."""

    def __init__(self, params, defaults):
        if isinstance(params, _C.Tensor):
            raise TypeError("an optimizer takes a list of parameters or of groups, not one tensor: write [tensor].")
        self.defaults = defaults
        self.state = {}
        self.param_groups = []
        groups = list(params)
        if not groups:
            raise ValueError(f"{type(self).__name__} got no parameters. Give model.parameters() before it is used up.")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group):
        """Adds {"params": [...], options...}; options left out have their defaults."""
        group = dict(param_group)
        params = group["params"]
        group["params"] = params = [params] if isinstance(params, _C.Tensor) else list(params)
        unknown = [name for name in group if name != "params" and name not in self.defaults and name != "initial_lr"]
        if unknown:
            raise ValueError(f"{type(self).__name__} has no option {unknown[0]!r}; it has {', '.join(self.defaults)}.")
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for p in params:
            if not isinstance(p, _C.Tensor):
                raise TypeError(f"{type(self).__name__} optimizes tensors, not {type(p).__name__}.")
            if not p.is_leaf:
                raise ValueError("a tensor to optimize must be a leaf: this one is the result of an op. Give what it was made from.")
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
            if group.get(name, 0) < 0:
                raise ValueError(f"{type(self).__name__}: {name} is {group[name]}; it must not be negative.")

    def zero_grad(self, set_to_none=True):
        """Forgets all gradients, or sets them to zero."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None
                elif p.grad is not None:
                    p.grad.zero_()

    def step(self, closure=None):
        """Updates every parameter that has a gradient. closure: computes the loss and gradients first; its result is returned."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group):
        raise NotImplementedError(f"{type(self).__name__} must define _update(group).")

    def _lists(self, params, names):
        """The states of params as one list per name, with None where there is none yet."""
        states = [self.state.setdefault(p, {}) for p in params]
        return [[state.get(name) for state in states] for name in names]

    def _keep(self, params, names, lists):
        for name, values in zip(names, lists):
            for p, value in zip(params, values):
                if value is not None:
                    self.state[p][name] = value

    def state_dict(self):
        """Returns {"state": {index: {...}}, "param_groups": [...]}; parameters are numbered in order of the groups."""
        number = {id(p): i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        return {
            "state": {number[id(p)]: dict(state) for p, state in self.state.items()},
            "param_groups": [{**group, "params": [number[id(p)] for p in group["params"]]} for group in self.param_groups],
        }

    def load_state_dict(self, state_dict):
        """Takes over what state_dict() returned; state tensors are boxed to the parameters' layout (collective)."""
        groups = state_dict["param_groups"]
        sizes, own = [len(g["params"]) for g in groups], [len(g["params"]) for g in self.param_groups]
        if sizes != own:
            raise ValueError(f"load_state_dict of {type(self).__name__}: its groups hold {sizes} parameters, the optimizer's {own}.")
        params = {}
        for loaded, group in zip(groups, self.param_groups):
            params.update(zip(loaded["params"], group["params"]))
            group.update({name: value for name, value in loaded.items() if name != "params"})
        state = {}
        with no_grad():
            for number, values in state_dict["state"].items():
                p = params[number]
                state[p] = {name: self._like(p, name, value) for name, value in values.items()}
        self.state = state

    def _like(self, p, name, value):
        if not isinstance(value, _C.Tensor):
            return value
        if tuple(value.shape) != tuple(p.shape) or value.is_global != p.is_global:
            raise ValueError(f"load_state_dict of {type(self).__name__}: {name} is {'global' if value.is_global else 'local'} "
                             f"{list(value.shape)}, its parameter {'global' if p.is_global else 'local'} {list(p.shape)}.")
        # A copy: training on must not change the dict that was loaded.
        return (value.to_global(p.placement, p.sbp) if p.is_global else value).clone()

    def __repr__(self):
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {name}: {value}" for name, value in sorted(group.items()) if name != "params"]
        return "\n".join([*lines, ")"])


class SGD(Optimizer):
    """p -= lr * g, with momentum: v = momentum * v + (1 - dampening) * g and p -= lr * v."""

    def __init__(self, params, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, *, maximize=False):
        super().__init__(params, {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
                                  "nesterov": nesterov, "maximize": maximize})

    def _check(self, group):
        super()._check(group)
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            raise ValueError("SGD: nesterov needs a momentum above 0 and a dampening of 0.")

    def _update(self, group):
        params = [p for p in group["params"] if p.grad is not None]
        names = ("momentum_buffer",) if group["momentum"] else ()
        lists = self._lists(params, names)
        kept = _C.sgd_update(params, [p.grad for p in params], *(lists or [[]]), group["lr"], group["momentum"],
                             group["dampening"], group["weight_decay"], group["nesterov"], group["maximize"])
        self._keep(params, names, [kept])


class Adam(Optimizer):
    """Adam: steps of lr * m / (sqrt(v) + eps), with running means m of g and v of g * g. weight_decay is added to g."""

    _decoupled = False

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False, *, maximize=False):
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
                                  "amsgrad": amsgrad, "maximize": maximize})

    def _check(self, group):
        super()._check(group)
        if not all(0 <= beta < 1 for beta in group["betas"]):
            raise ValueError(f"{type(self).__name__}: betas are {group['betas']}; both must lie in [0, 1).")

    def _update(self, group):
        names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")
        # Parameters that have missed steps have a count of their own; one call serves all that share a count.
        by_step = {}
        for p in group["params"]:
            if p.grad is not None:
                state = self.state.setdefault(p, {"step": 0})
                state["step"] += 1
                by_step.setdefault(state["step"], []).append(p)
        for step, params in by_step.items():
            lists = self._lists(params, names)
            kept = _C.adam_update(params, [p.grad for p in params], *lists, *([[]] * (3 - len(lists))), step, group["lr"],
                                  *group["betas"], group["eps"], group["weight_decay"], self._decoupled, group["amsgrad"],
                                  group["maximize"])
            self._keep(params, names, kept)


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters directly: p -= lr * weight_decay * p."""

    _decoupled = True

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, *, maximize=False):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
