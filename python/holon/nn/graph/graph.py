"""Graph: the class that users derive from. The core (holon/graph/graph_core.h) captures, compiles and runs; here are
the modules' names, what they look like now, and state_dict."""

import inspect
import warnings

from ... import _C
from ...amp.grad_scaler import GradScaler
from ...optim.lr_scheduler import LRScheduler
from ...optim.optimizer import Optimizer
from ..hooks import hooks_of
from ..module import Module, _indent
from ..parameter import Parameter
from . import pipeline
from .config import GraphConfig
from .module import GraphModule, under_construction
from .pictures import Pictures
from .scopes import Scopes, explain

_MANY_SIGNATURES = 32


class _GraphType(type):
    """Knows which graph's __init__ runs, so that set_stage() in it belongs to that graph."""

    def __call__(cls, *args, **kwargs):
        graph = cls.__new__(cls, *args, **kwargs)
        under_construction.graphs.append(graph)
        try:
            graph.__init__(*args, **kwargs)
        finally:
            under_construction.graphs.pop()
        return graph


class Graph(Pictures, metaclass=_GraphType):
    """A training step, or any function of tensors, captured once for each kind of input and run as one compiled step.

    Derive from it: __init__ assigns modules, calls add_optimizer() and sets config; build() computes, with
    loss.backward() inside where there is an optimizer. A call of the graph takes and returns what build() does:
    tensors, plain values, and lists, tuples and dicts of them. It captures build() where shapes, dtypes, placements,
    sbps, plain arguments, the gradient mode or the modules' flags are new, and else runs what is compiled. Plain values
    that build() reads elsewhere are those of the capture.

    A front end with other names sets config_class and module_class in a class derived from this one: what self.config
    is, and what a graph keeps about its modules. They derive from GraphConfig and GraphModule.

    Example: class Train(nn.Graph): ...; loss = Train()(images, labels)
    """

    config_class: type[GraphConfig] = GraphConfig
    module_class: type[GraphModule] = GraphModule

    def __init__(self, name=None):
        state = self.__dict__
        state["_name"] = name or type(self).__name__
        state["_core"] = _C.Graph(state["_name"])
        state["_members"] = {}  # modules and parameters by the attribute's name
        state["_blocks"] = {}  # modules to their GraphModules of this graph
        state["_optimizers"] = []
        state["_scaler"] = None
        state["_schedulers"] = []  # those that step with the graph
        state["_schedule_of"] = []  # of each optimizer, or None
        state["_variants"] = {}  # what modules look like -> a number
        state["_seen"] = {}  # modules that build() called and that are not members
        state["_scopes"] = None
        state["_buffers_before"] = ()
        state["_warned"] = False
        state["_debug"] = False
        state["config"] = self.config_class(state["_core"].config)

    def build(self, *args, **kwargs):
        """What a call computes. To be defined by the derived class."""
        raise NotImplementedError(
            f"{type(self).__name__} has no build: define it, as in `def build(self, x): return self.model(x)`."
        )

    def __call__(self, *args, **kwargs):
        result = self._core.run(args, kwargs)
        if result is NotImplemented:
            result = self._run_new(args, kwargs)
        for schedule in self._schedulers:
            schedule.step()
        return result

    def add_optimizer(self, optim, *, lr_sch=None):
        """Updates the optimizer's parameters at the end of each call; then lr_sch goes on by one step.
        May be called several times."""
        name = self._name
        if not isinstance(optim, Optimizer):
            raise TypeError(f"add_optimizer of {name}: takes an optimizer, got {type(optim).__name__}.")
        own_step = next((m for m in ("step", "_update") if getattr(type(optim), m) is not getattr(Optimizer, m)), None)
        if optim._rule is None or own_step:
            raise NotImplementedError(
                f"add_optimizer of {name}: {type(optim).__name__} has an update written in Python, which cannot be "
                "compiled. Use an optimizer of holon.optim, or return the gradients' loss and call step() outside with "
                "eager modules."
            )
        if any(optim is o for o in self._optimizers):
            raise ValueError(f"add_optimizer of {name}: this {type(optim).__name__} is added already.")
        if lr_sch is not None:
            if not hasattr(lr_sch, "step"):
                raise TypeError(
                    f"add_optimizer of {name}: lr_sch must be a learning-rate schedule, got {type(lr_sch).__name__}."
                )
            if getattr(lr_sch, "optimizer", optim) is not optim:
                raise ValueError(f"add_optimizer of {name}: the {type(lr_sch).__name__} belongs to another optimizer.")
            if not isinstance(lr_sch, LRScheduler) and any(
                p.default is p.empty for p in inspect.signature(lr_sch.step).parameters.values()
            ):
                raise TypeError(
                    f"add_optimizer of {name}: {type(lr_sch).__name__}.step() needs an argument. "
                    "Call it yourself after the graph."
                )
        self._core.add_optimizer(optim)
        self._optimizers.append(optim)
        self._schedule_of.append(lr_sch)
        if lr_sch is not None:
            self._schedulers.append(lr_sch)

    def set_grad_scaler(self, grad_scaler=None):
        """loss.backward() in build() begins with the scaler's scale,
        and gradients are divided by it before they are clipped and updated.

        An optimizer with a gradient that is not finite leaves the step out, and the scaler learns of it: build() does
        not call it, nor do you after the graph. None: no scaler. What is compiled is captured again.
        """
        if grad_scaler is not None and not isinstance(grad_scaler, GradScaler):
            raise TypeError(f"set_grad_scaler of {self._name}: takes a GradScaler, got {type(grad_scaler).__name__}.")
        if grad_scaler is not None and not grad_scaler.is_enabled():
            grad_scaler = None
        self._core.set_grad_scaler(grad_scaler)
        self.__dict__["_scaler"] = grad_scaler

    def debug(self, v_level=-1, *, ranks=None):
        """Prints what was captured and the plan of each compilation from now on, where v_level is 0 or more; on rank 0,
        or on `ranks` (a rank or a list of them, -1 for all)."""
        wanted = [0] if ranks is None else [ranks] if isinstance(ranks, int) else list(ranks)
        self.__dict__["_debug"] = v_level >= 0 and (-1 in wanted or _C.rank() in wanted)

    def compile(self, *args, **kwargs):
        """Captures and compiles for arguments like these, whose values are not read. Collective."""
        self._look()
        self._capture(args, kwargs)
        return self

    def plan(self):
        """This rank's instructions as text, for each signature."""
        return self._core.plan()

    def captured(self):
        """The graph as it was captured, before any pass, as text, for each signature."""
        return self._core.captured()

    def stats(self, signature=-1):
        """What came of compiling a signature: numbers of nodes and instructions, bytes, seconds."""
        n = self._core.n_signatures
        if not -n <= signature < n:
            raise IndexError(f"stats: signature {signature} of {n}. Call the graph, or compile(*inputs), first.")
        return self._core.stats(signature % n)

    def grad_norms(self):
        """By what the last call clipped gradients, before it did, as a list of numbers: the norms of clip_grad_norm_()
        in build(), in the order of the calls, then those of the optimizers' groups with a "clip_grad_max_norm", as
        clip_grad() of the optimizer has them."""
        return self._core.grad_norms()

    @property
    def name(self):
        """The class's, for messages."""
        return self._name

    @property
    def is_compiled(self):
        return self._core.n_signatures > 0

    @property
    def training(self):
        """Whether the graph updates parameters: it has an optimizer."""
        return bool(self._optimizers)

    # State

    def state_dict(self):
        """Returns a dict from the names of the graph's modules to their state_dict(), with "optimizer_0",
        "lr_scheduler_0" and so on for what add_optimizer() got."""
        state = {name: m.state_dict() if isinstance(m, Module) else m.detach() for name, m in self._members.items()}
        for name, part in self._training_parts():
            state[name] = part.state_dict()
        return state

    def load_state_dict(self, state_dict, strict=True):
        """Takes over what state_dict() returned. Collective where tensors are global."""
        parts = dict(self._training_parts())
        own = {*self._members, *parts}
        missing, unexpected = [n for n in own if n not in state_dict], [n for n in state_dict if n not in own]
        if strict and (missing or unexpected):
            lines = [
                f"{what}: {', '.join(sorted(names))}"
                for what, names in (("missing", missing), ("unexpected", unexpected))
                if names
            ]
            raise RuntimeError(f"load_state_dict of {self._name}: {'; '.join(lines)}.")
        for name, member in self._members.items():
            if name in state_dict:
                if isinstance(member, Module):
                    member.load_state_dict(state_dict[name], strict=strict)
                else:
                    member.data.copy_(state_dict[name])
        for name, part in parts.items():
            if name in state_dict:
                part.load_state_dict(state_dict[name])

    def _training_parts(self):
        for i, optimizer in enumerate(self._optimizers):
            yield f"optimizer_{i}", optimizer
        for i, schedule in enumerate(self._schedule_of):
            if schedule is not None:
                yield f"lr_scheduler_{i}", schedule
        if self._scaler is not None:
            yield "grad_scaler", self._scaler

    # Attributes

    def __setattr__(self, name, value):
        if isinstance(value, GraphModule):
            value = value.to(Module)
        if isinstance(value, (Module, Parameter)):
            if "_members" not in self.__dict__:
                raise AttributeError(
                    f"cannot assign '{name}' to {type(self).__name__}: call super().__init__() first in its __init__."
                )
            self._members[name] = value
            self._name_blocks()
            _C.note_module_change()
        elif name in self.__dict__.get("_members", ()):
            del self._members[name]
            _C.note_module_change()
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        if self._members.pop(name, None) is not None:
            _C.note_module_change()
        object.__delattr__(self, name)

    def __getattr__(self, name):
        if "_core" not in self.__dict__ and not name.startswith("__"):
            raise AttributeError(
                f"{type(self).__name__} has no attribute '{name}'. Call super().__init__() first in its __init__."
            )
        raise AttributeError(f"{type(self).__name__} has no attribute '{name}'.")

    # Capturing

    def _modules(self):
        """(path, module) of all modules of the graph, each once."""
        memo = set()
        for name, member in self._members.items():
            if isinstance(member, Module):
                yield from member.named_modules(memo, name)

    def _block_of(self, module):
        return self._blocks.get(module) or module.__dict__.get("_graph_block")

    def _name_blocks(self):
        for path, module in self._modules():
            block = self._block_of(module)
            if block is not None:
                object.__setattr__(block, "_name", path)

    def _look(self, relabel=False):
        """Finds out whether modules still look as they did when something was compiled for them."""
        parts, tensors = [], []
        for module in {**{id(m): m for _, m in self._modules()}, **self._seen}.values():
            block = self._block_of(module)
            core, hooks = module.__dict__.get("_cpp"), hooks_of(module)
            parts.append((id(module), module.training, block and block._key(), hooks, core and core.own_changes))
            tensors += [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
        key = (tuple(parts), _C.tensor_ids(tensors), self.config._pipeline and self.config._pipeline[0])
        self._core.set_flags(self._variants.setdefault(key, len(self._variants)), relabel)

    def _run_new(self, args, kwargs):
        self._look()
        result = self._core.run(args, kwargs)
        if result is not NotImplemented:
            return result
        self._capture(args, kwargs)
        result = self._core.run(args, kwargs)
        if result is NotImplemented:
            raise RuntimeError(
                f"{self._name}: what was compiled does not fit its own arguments: build() changes modules or "
                "parameters in each call. Change them outside build()."
            )
        return result

    def _capture(self, args, kwargs):
        self._cut(args, kwargs)
        name, recompute, stages = self._name, [], []
        for path, module in self._modules():
            block = self._block_of(module)
            if block is not None:
                if block._activation_checkpointing:
                    recompute.append(path)
                if block._stage_id is not None:
                    stages.append((path, block._stage_id))
        _C.check_stages(name, stages)
        self._core.set_recompute(recompute)
        self._building(lambda front: self._core.compile(args, kwargs, front))
        self._look(relabel=True)
        if self._debug:
            print(
                f"{self._name}, as captured:\n{self.captured()}\n"
                f"{self._name}, the plan of rank {_C.rank()}:\n{self.plan()}"
            )
        if self._core.n_signatures >= _MANY_SIGNATURES and not self._warned:
            self.__dict__["_warned"] = True
            warnings.warn(
                f"{name} is compiled for {self._core.n_signatures} kinds of arguments: each new shape, and each new "
                "value of an argument that is not a tensor, compiles again. "
                "Give inputs few shapes, and numbers that change as tensors.",
                stacklevel=4,
            )

    def _building(self, capture):
        """Returns capture(front), which calls build()."""
        self._scopes = Scopes(
            self._name, [(n, m) for n, m in self._members.items() if isinstance(m, Module)], self._block_of
        )
        self._buffers_before = [
            (path, module, key, tensor)
            for path, module in self._modules()
            for key, tensor in module._buffers.items()
            if tensor is not None
        ]
        try:
            return capture(_Front(self))
        except Exception as error:
            explain(error, self._name, "")
            raise
        finally:
            for _, module, key, tensor in self._buffers_before:
                module._buffers[key] = tensor
            self._seen.update(self._scopes.seen)
            self._scopes, self._buffers_before = None, ()

    def _cut(self, args, kwargs):
        """Stages by cost, where config.pipeline(stages=...) asks for them, once."""
        asked, stages = self.config._pipeline, self.__dict__.get("_automatic_stages")
        if stages is not None and asked != stages.asked:
            raise RuntimeError(
                f"config.pipeline of {self._name}: the graph has been cut into {stages.asked[0]} stages already, and "
                "its parameters are there. Create a new graph of a model whose parameters are on all ranks."
            )
        if asked is not None and stages is None:
            self.__dict__["_automatic_stages"] = self._building(
                lambda front: pipeline.cut(self, asked, args, kwargs, front)
            )

    def _begin(self):
        for name, member in self._members.items():
            if isinstance(member, Parameter):
                _C.capture_name(member, name, True)
        for path, module in self._modules():
            for key, tensor in module._parameters.items():
                if tensor is not None:
                    _C.capture_name(tensor, f"{path}.{key}" if path else key, True)
            for key, tensor in module._buffers.items():
                if tensor is not None:
                    _C.capture_name(tensor, f"{path}.{key}" if path else key, False)

    def _end(self):
        """A buffer that build() rebound takes the new value after each call."""
        for path, module, key, before in self._buffers_before:
            now = module._buffers.get(key)
            if now is before or now is None or not _C.is_symbolic(now):
                continue
            same_layout = now.is_global == before.is_global and (
                not now.is_global or (now.placement, now.sbp) == (before.placement, before.sbp)
            )
            if now.shape != before.shape or now.dtype != before.dtype or not same_layout:
                raise RuntimeError(
                    f"the buffer {path}.{key} gets another shape, dtype or layout in build(): it was {before.dtype} "
                    f"{list(before.shape)} and becomes {now.dtype} {list(now.shape)}. Buffers of a graph keep theirs."
                )
            _C.capture_write(before, now)

    # Text

    def __repr__(self):
        if "_core" not in self.__dict__:
            return f"{type(self).__name__}(before super().__init__())"
        lines = [f"({name}): {self._member_text(member)}" for name, member in self._members.items()]
        for i, optimizer in enumerate(self._optimizers):
            schedule = self._schedule_of[i]
            rates = ", ".join(f"{group['lr']:g}" for group in optimizer.param_groups)
            lines.append(
                f"(optimizer_{i}): {type(optimizer).__name__} lr={rates}"
                + (f", {type(schedule).__name__}" if schedule else "")
            )
        return self._core.text("".join(f"  {_indent(line)}\n" for line in lines))

    def _member_text(self, member):
        if not isinstance(member, Module):
            return f"Parameter {list(member.shape)}"
        block, extra = self._block_of(member), member.extra_repr()
        note = block._text() if block is not None else ""
        lines = extra.split("\n") if extra else []
        children = [
            f"({name}): {_indent(self._member_text(m))}" for name, m in member._modules.items() if m is not None
        ]
        if not children and len(lines) <= 1:
            return f"{member._get_name()}({extra}){note}"
        return f"{member._get_name()}(\n  " + "\n  ".join(lines + children) + f"\n){note}"


class _Front:
    """What the core calls while it captures."""

    def __init__(self, graph):
        self._graph = graph

    def begin(self):
        # A variant of micro-batches that was captured before has rebound buffers.
        for _, module, key, tensor in self._graph._buffers_before:
            module._buffers[key] = tensor
        self._graph._begin()

    def build(self, args, kwargs):
        stages = self._graph.__dict__.get("_automatic_stages")
        if stages is not None:
            args, kwargs = stages.bring_inputs(args, kwargs)
        with self._graph._scopes:
            return self._graph.build(*args, **kwargs)

    def enter(self, identity, x):
        """A module of C++ is called with x; returns x, where its stage has it."""
        return self._graph._scopes.enter(identity, x)

    def leave(self, failed):
        self._graph._scopes.leave(failed)

    def end(self):
        self._graph._end()
