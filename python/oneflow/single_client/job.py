"""Job functions: registered by global_function, traced once, and then run by the ranks."""

import inspect
import threading
import warnings
from functools import wraps

from holon import _C

from . import session as _session
from . import signature
from .blob import Blob
from .function_config import FunctionConfig
from .record import leaves, map_leaves
from .results import Value

__all__ = ["global_function"]

_tracing = threading.local()


def current_or_none():
    """The job whose body runs in this thread."""
    return getattr(_tracing, "job", None)


def current(what):
    """The job whose body runs. Errors (RuntimeError): none does. what: the op, for the message."""
    job = current_or_none()
    if job is None:
        raise RuntimeError(
            f"{what}: is an op of job functions, and no job function's body is running. "
            "Call it in a function under @global_function(), or use tensors."
        )
    return job


class Job:
    """One job function: what was recorded of it, and how its calls' arguments and results are understood."""

    def __init__(self, function, type, config):
        self.function, self.type, self.config = function, type, config
        self.name = function.__name__
        self.site = _C.user_line()
        self.parameters, self.returns = signature.parameters_of(function)
        self.step = 0
        self._clear()

    def _clear(self):
        self.nodes, self.variables, self.inputs, self.watches = [], {}, [], []
        self.result = self.optimizer = None
        self.losses, self.scopes, self._names = [], [self.config.scope], {}

    # While the body runs

    def scope(self):
        return self.scopes[-1]

    def check_split(self, what, axis, shape):
        """Errors (ValueError): an axis that is smaller than the number of the scope's devices."""
        n = len(self._session.ranks_of(self.scope().placement))
        if shape[axis] < n:
            raise ValueError(
                f"{what} {list(shape)} is split along axis {axis} over {n} devices, and has only {shape[axis]} there. "
                "Broadcast it, split another axis, or take fewer devices (scope.placement)."
            )

    def unique_name(self, name, given):
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return f"{name}_{count}" if count or not given else name

    def set_train_step(self, optimizer, losses):
        """Called by an optimizer's minimize(). Errors: not a train job; a second time;
        losses that do not agree (AssertionError)."""
        losses = list(losses) if isinstance(losses, (list, tuple)) else [losses]
        if self.type != "train":
            raise RuntimeError(
                f'minimize: {self.name} is a predict job. Decorate it with global_function(type="train").'
            )
        if self.optimizer is not None:
            raise RuntimeError(
                f"minimize: {self.name} has an optimizer already; a job has one. Give it a list of losses."
            )
        self._check_losses(losses)
        self.optimizer, self.losses = optimizer, losses

    def add_loss(self, loss):
        """losses.add_loss(): the optimizer is that of function_config.train."""
        if self.type != "train":
            raise RuntimeError(
                f'add_loss: {self.name} is a predict job. Decorate it with global_function(type="train").'
            )
        self._check_losses([*self.losses, loss])
        self.losses.append(loss)

    def _check_losses(self, losses):
        assert losses and all(isinstance(b, Blob) for b in losses), (
            f"{self.name}: a loss must be a blob, got {', '.join(type(b).__name__ for b in losses) or 'none'}."
        )
        first = losses[0]
        for loss in losses[1:]:
            assert (loss.shape, loss.dtype, loss._parts) == (first.shape, first.dtype, first._parts), (
                f"{self.name}: losses must agree in shape and dtype; they are {first!r} and {loss!r}."
            )
        assert first.dtype.is_floating_point, f"{self.name}: the loss {first!r} must be of floating point numbers."

    def trace(self, session):
        """Runs the body. Errors: what it raises; no loss in a train job; a result that is not as annotated."""
        from . import load_ops

        load_ops()
        self._clear()
        _tracing.job = self
        try:
            self._session = session
            self.device_ranks = session.ranks_of(self.config.scope.placement)
            result = self.function(*(self._input(session, name, tree) for name, tree in self.parameters))
        finally:
            _tracing.job = None
        if self.type == "train" and self.optimizer is None:
            if not self.losses:
                raise RuntimeError(
                    f"{self.name}: loss not found: a train job must call minimize(loss) of an optimizer once."
                )
            self.optimizer = self._older_optimizer()
        signature.check_result(self.name, self.returns, result)
        bad = [type(x).__name__ for x in _other_leaves(result)]
        assert not bad, (
            f"{self.name}: a job function returns blobs, and lists, tuples and dicts of them; "
            f"this one returns {bad[0]}."
        )
        self.result = result
        views = {node.scope.mirrored for node in self.nodes} or {self.scopes[0].mirrored}
        if len(views) > 1:
            raise NotImplementedError(
                f"{self.name}: some of its ops are in the mirrored view, others in the consistent one. "
                "Choose one for the job: function_config.default_logical_view(...)."
            )
        self.mirrored = views.pop()

    def _older_optimizer(self):
        from .train_conf import optimizer_of

        values = self.config.train.values
        if "model_update_conf" not in values:
            raise RuntimeError(
                f"{self.name}: losses.add_loss() without an optimizer: "
                "call minimize(loss) of one, or set function_config.train.model_update_conf."
            )
        return optimizer_of(values.get("primary_lr", 0.0), values["model_update_conf"], values.get("loss_scale_factor"))

    def _input(self, session, name, tree):
        leaves_of = signature.placeholders(tree)
        blobs = []
        for i, p in enumerate(leaves_of):
            mirrored = self.scopes[0].mirrored
            assert mirrored or p.kind == "Numpy", (
                f"{self.name}: argument {name} is tp.{p.kind}.Placeholder, which is for the mirrored view. "
                "In the consistent view it is tp.Numpy.Placeholder."
            )
            shape = list(p.shape)
            n = len(self.device_ranks)
            if p.batch_axis is not None and p.kind == "Numpy" and shape:
                if shape[p.batch_axis] < n:
                    raise ValueError(
                        f"{self.name}: argument {name} {shape} is split along axis {p.batch_axis} over {n} devices, "
                        f"and has only {shape[p.batch_axis]} there. Give it batch_axis=None, a larger batch, or the "
                        "job fewer devices (function_config.default_placement_scope)."
                    )
                if mirrored:
                    shape[p.batch_axis] = -(-shape[p.batch_axis] // n)
            blob = Blob(
                self,
                shape,
                p.dtype,
                name if len(leaves_of) == 1 else f"{name}_{i}",
                self.scopes[0].placement,
                -1 if p.kind == "ListListNumpy" else None,
            )
            blobs.append(blob)
            self.inputs.append((blob, p))
        return signature.fill(tree, iter(blobs))

    @property
    def n_devices(self):
        return len(self.device_ranks)

    # Calls

    def next_step(self):
        """(learning rate, number of the call from 1) for the next call."""
        step = self.step
        self.step += 1
        return (float(self.optimizer.lr_at(step)) if self.optimizer is not None else 0.0), step + 1

    @property
    def is_watched(self):
        """Whether somebody asks for a call's result, and with it for its error."""
        return not (self.returns is None or self.returns is type(None) or _is_callback(self.returns))

    def returned(self, future):
        """What a call gives its caller."""
        if self.returns is inspect.Signature.empty:
            return future
        if self.returns is None or self.returns is type(None):
            return None
        if _is_callback(self.returns):
            return future.async_get
        return future.get()

    def delivered(self, results):
        """The call's value from what each rank of this process returned; calls the handlers of watch() first."""
        n_out = len(leaves(self.result, Blob))

        def value(at):
            if not self.mirrored:
                return Value([next(r[at] for r in results if r[at] is not None)], False)
            by_rank = results[0][at] if _C.world_size() > 1 else [r[at] for r in results]
            return Value([by_rank[rank] for rank in self.device_ranks], True)

        for i, watched in enumerate(self.watches):
            watched.show(value(n_out + i))
        made = iter([value(i) for i in range(n_out)])
        result = map_leaves(self.result, Blob, lambda _: next(made))
        annotation = self.returns.__args__[0] if _is_callback(self.returns) else self.returns
        return signature.converted(annotation, result)


def _is_callback(annotation):
    import typing

    from .typing import Callback

    return typing.get_origin(annotation) is Callback


def _other_leaves(tree):
    if isinstance(tree, dict):
        return [x for v in tree.values() for x in _other_leaves(v)]
    if isinstance(tree, (list, tuple)):
        return [x for v in tree for x in _other_leaves(v)]
    return [] if tree is None or isinstance(tree, Blob) else [tree]


def global_function(type="predict", function_config=None):
    """Makes a job function of a function: @global_function(type="train", function_config=config).
    type: "train" or "predict".

    Its body runs once, at the first call of any job function.
    A call takes arrays as the parameters' placeholders say, and returns what the annotation says.
    """
    if isinstance(type, FunctionConfig):
        warnings.warn(
            'global_function(config) is the older form: write global_function(type="train", function_config=config).',
            DeprecationWarning,
            stacklevel=2,
        )
        function_config = type
        type = "train" if function_config.train.values else "predict"
    elif callable(type):
        return global_function()(type)
    assert type in ("train", "predict"), f'global_function: type is {type!r}; it must be "train" or "predict".'
    if function_config is None:
        function_config = FunctionConfig()
    if not isinstance(function_config, FunctionConfig):
        raise TypeError(
            "global_function: function_config must be what function_config() returns, "
            f"got {function_config.__class__.__name__}."
        )
    config = function_config.copy()

    def decorate(function):
        session = _session.default()
        job = Job(function, type, config)
        session.add(job)

        @wraps(function)
        def call(*args, **kwargs):
            assert not kwargs, (
                f"{job.name}: arguments of a job function go by position, not by name: {', '.join(kwargs)}."
            )
            return session.call(job, args)

        call.__holon_job__ = job
        return call

    return decorate
