"""Gradients: `grad`, `backward`, functions with a backward of their own, and whether ops are recorded."""
from . import _C


class _GradMode:
    """For a `with` block, or as a decorator for each call, records ops or not; what was before comes back afterwards."""

    def __init__(self, enabled):
        self._enabled = enabled
        self._before = []

    def __enter__(self):
        self._before.append(_C.is_grad_enabled())
        _C.set_grad_enabled(self._enabled)

    def __exit__(self, *error):
        _C.set_grad_enabled(self._before.pop())

    def __call__(self, function):
        from functools import wraps
        from inspect import isgeneratorfunction

        if isgeneratorfunction(function):
            raise TypeError(f"{function.__name__} is a generator, which stops inside of the block: write `with` in it instead.")
        enabled = self._enabled

        @wraps(function)
        def wrapped(*args, **kwargs):
            with _GradMode(enabled):
                return function(*args, **kwargs)

        return wrapped


class _Fixed(_GradMode):
    """A mode that is written with or without brackets where it decorates: @no_grad() and @no_grad."""

    def __new__(cls, function=None):
        if function is None:
            return super().__new__(cls)
        return cls()(function)

    def __init__(self, function=None):
        super().__init__(self._on)


class no_grad(_Fixed):
    """Ops in this block are not recorded for backward."""

    _on = False


class enable_grad(_Fixed):
    """Ops in this block are recorded, also inside of no_grad."""

    _on = True


class inference_mode(_GradMode):
    """As no_grad; inference_mode(False) records."""

    def __init__(self, mode=True):
        super().__init__(not mode)


class set_grad_enabled(_GradMode):
    """Sets from now on whether ops are recorded; as a `with` block, until its end."""

    def __init__(self, mode):
        super().__init__(bool(mode))
        self._before.append(_C.is_grad_enabled())
        _C.set_grad_enabled(self._enabled)

    def __enter__(self):
        pass


def grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, allow_unused=False):
    """Returns d(outputs)/d(inputs) as a tuple and leaves every .grad as it is. Collective where outputs are global.

    grad_outputs: the gradients of the outputs; one that has a single element needs none. An input on which the outputs do
    not depend is an error, or None if allow_unused.
    """
    return _C.grad(outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused)


def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False):
    """Adds the gradients of all leaves below tensors to their .grad. Collective where tensors are global."""
    _C.backward(tensors, grad_tensors, retain_graph, create_graph)


class FunctionContext:
    """What a Function's forward leaves for its backward: save_for_backward(), and any attributes."""

    saved_tensors = ()
    needs_input_grad = ()

    def save_for_backward(self, *tensors):
        """Keeps tensors for backward, as `saved_tensors`."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors):
        """Says which outputs have no gradient."""
        self._non_differentiable = tensors

    _non_differentiable = ()


class Function:
    """An op in Python with its own backward; used as `MyFunction.apply(x, ...)`.

        class Square(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, dy):
                (x,) = ctx.saved_tensors
                return 2 * x * dy

    backward gets the gradient of each output (None where nothing reached it) and returns one for each argument of forward
    (None for those that are no tensors).
    """

    @staticmethod
    def forward(ctx, *args):
        raise NotImplementedError("a Function needs a static method forward(ctx, ...).")

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError("a Function needs a static method backward(ctx, ...).")

    @classmethod
    def apply(cls, *args):
        ctx = FunctionContext()
        inputs = [a for a in args if isinstance(a, _C.Tensor)]
        ctx.needs_input_grad = tuple(isinstance(a, _C.Tensor) and a.requires_grad for a in args)
        with no_grad():
            result = cls.forward(ctx, *args)
        if not (_C.is_grad_enabled() and any(ctx.needs_input_grad)):
            return result
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]

        def backward(grads):
            given = cls.backward(ctx, *grads)
            given = list(given) if isinstance(given, (tuple, list)) else [given]
            if len(given) != len(args):
                raise RuntimeError(f"{cls.__name__}.backward returned {len(given)} gradients for the {len(args)} arguments of "
                                   "forward. Return one for each, None for those without.")
            return [g for a, g in zip(args, given) if isinstance(a, _C.Tensor)]

        without = [i for i, t in enumerate(outputs) if any(t is other for other in ctx._non_differentiable)]
        recorded = _C.record_function(cls.__name__, inputs, outputs, backward, without)
        return tuple(recorded) if isinstance(result, (tuple, list)) else recorded[0]
