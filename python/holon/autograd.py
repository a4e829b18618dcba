"""Gradients: `grad`, `backward`, functions with a custom backward, and whether ops are recorded."""

from . import _C

is_grad_enabled = _C.is_grad_enabled


class _GradMode:
    """For a `with` block, or as a decorator for each call, records ops or not;
    what was before comes back afterwards."""

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
            raise TypeError(
                f"{function.__name__} is a generator, which stops inside the block: write `with` in it instead."
            )
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
    """Ops in this block are recorded, also inside no_grad."""

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

    grad_outputs: the gradients of the outputs; one that has a single element needs none. An input on which the outputs
    do not depend is an error, or None if allow_unused.
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

    backward gets the gradient of each output (None where nothing reached it) and returns one for each argument of
    forward (None for those that are not tensors).

    On global tensors, forward and backward get them as they are, and may use any op. A function that works on one
    rank's part alone (through NumPy, another library, its own kernel) specifies how it may be split instead:

        sharding_rule = "... k -> ... k"   # factors, one group for each tensor argument, then for each output

    Then the inputs are brought to the cheapest fitting sbps, both halves get this rank's parts as local tensors, and
    the gradients' sbps follow. A factor in no output is summed over: such an output must be linear in its parts. A
    capital letter is never divided. Outputs have the dtype of the first input, and the shapes that the rule gives or
    infer(*input_shapes) -> one shape or a list of them. linear = True: partial sums pass through, jointly in all
    inputs.
    """

    sharding_rule = None
    linear = False
    infer = None

    @staticmethod
    def forward(ctx, *args):
        raise NotImplementedError("a Function needs a static method forward(ctx, ...).")

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError("a Function needs a static method backward(ctx, ...).")

    @classmethod
    def apply(cls, *args):
        ctx = FunctionContext()
        at = [i for i, a in enumerate(args) if isinstance(a, _C.Tensor)]
        ctx.needs_input_grad = tuple(isinstance(a, _C.Tensor) and a.requires_grad for a in args)
        single = False

        def as_list(result):
            return list(result) if isinstance(result, (tuple, list)) else [result]

        def forward(tensors):
            nonlocal single
            given = list(args)
            for i, t in zip(at, tensors):
                given[i] = t
            result = cls.forward(ctx, *given)
            single = not isinstance(result, (tuple, list))
            outputs = as_list(result)
            ctx._cut = [i for i, t in enumerate(outputs) if any(t is other for other in ctx._non_differentiable)]
            return outputs

        def backward(grads):
            given = as_list(cls.backward(ctx, *grads))
            if len(given) != len(args):
                raise RuntimeError(
                    f"{cls.__name__}.backward returned {len(given)} gradients for the {len(args)} arguments of "
                    "forward. Return one for each, None for those without."
                )
            return [given[i] for i in at]

        def infer(shapes):
            result = cls.infer(*shapes)
            return result if result and isinstance(result[0], (tuple, list)) else [result]

        if not at:
            return cls.forward(ctx, *args)
        outputs = _C.apply_function(
            cls.__name__,
            cls.sharding_rule or "",
            bool(cls.linear),
            [args[i] for i in at],
            forward,
            backward,
            infer if cls.infer else None,
        )
        for i in getattr(ctx, "_cut", ()):
            _C.cut_gradient(outputs[i])
        # A rank outside the placement has not run forward: one output is returned alone.
        return outputs[0] if single or (len(outputs) == 1 and not hasattr(ctx, "_cut")) else tuple(outputs)
