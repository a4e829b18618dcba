"""Variables: made by get_variable in job functions, one for each name, kept by the session."""

from holon import _C
from holon.autograd import no_grad

from .blob import Blob
from .distribute import assert_is_valid_distribute, broadcast

__all__ = ["assign", "get_variable"]


class Declaration:
    """What a job function says of a variable."""

    def __init__(self, name, shape, dtype, initializer, regularizer, trainable, distribute, placement, seed, site):
        self.name, self.shape, self.dtype, self.initializer = name, shape, dtype, initializer
        self.regularizer, self.trainable, self.distribute = regularizer, trainable, distribute
        self.placement, self.seed, self.site = placement, seed, site

    def difference(self, other):
        """In words what does not agree with another job's, or None."""
        for what in ("shape", "dtype", "distribute", "placement"):
            mine, others = getattr(self, what), getattr(other, what)
            if mine != others:
                return (
                    f"{what} {others if others is not None else 'of all devices'} ({other.site}) and "
                    f"{mine if mine is not None else 'of all devices'} ({self.site})"
                )
        return None


class Use:
    """A variable in one job: its blob."""

    def __init__(self, declaration, blob):
        self.declaration, self.blob, self.name = declaration, blob, declaration.name


def get_variable(
    name,
    shape=None,
    dtype=None,
    initializer=None,
    regularizer=None,
    trainable=None,
    model_name=None,
    random_seed=None,
    distribute=None,
    reuse=True,
):
    """Returns the blob of the variable of this name,
    which is made at the start of the session where no job has made it before.

    dtype: the job's default_data_type, if None. distribute: distribute.split(axis) keeps only a part on each device.
    Errors: no initializer, and none in function_config (ValueError); a second use in this job with another shape or
    dtype (ValueError); with reuse=False, a second use at all (AssertionError).
    """
    from . import job

    current = job.current("get_variable")
    scope = current.scope()
    assert isinstance(name, str) and name, f"get_variable: name must be a text, got {name!r}."
    full = scope.prefix + name
    distribute = broadcast() if distribute is None else distribute
    assert_is_valid_distribute(distribute)
    dtype = current.config.data_type if dtype is None else dtype
    if full in current.variables:
        assert reuse, (
            f"get_variable: this job has a variable '{full}' already, and reuse=False. "
            "Layers make theirs by their own name: give each layer of a job another name."
        )
        use = current.variables[full]
        if (shape is not None and tuple(shape) != use.declaration.shape) or use.declaration.dtype != dtype:
            raise ValueError(
                f"get_variable: the variable '{full}' is {use.declaration.dtype} {list(use.declaration.shape)} "
                f"({use.declaration.site}) and cannot be {dtype} {shape} too."
            )
        return use.blob
    assert isinstance(shape, (list, tuple)), (
        f"get_variable: the shape of '{full}' must be a list or tuple, got {shape!r}."
    )
    if any(not isinstance(d, int) or d < 0 for d in shape):
        raise ValueError(f"get_variable: the shape of '{full}' is {list(shape)}; it must be of ints from 0 on.")
    initializer = current.config.initializer if initializer is None else initializer
    if initializer is None:
        raise ValueError(
            f"get_variable: '{full}' has no initializer, and function_config has no default_initializer_conf."
        )
    if distribute.axis is not None and distribute.axis >= len(shape):
        raise ValueError(f"get_variable: '{full}' {list(shape)} has no axis {distribute.axis} to split along.")
    if distribute.axis is not None:
        current.check_split(f"get_variable: '{full}'", distribute.axis, shape)
    declaration = Declaration(
        full,
        tuple(shape),
        dtype,
        initializer,
        regularizer,
        trainable is None or bool(trainable),
        distribute,
        scope.placement,
        random_seed,
        _C.user_line(),
    )
    blob = Blob(current, shape, dtype, full, scope.placement)
    blob._distribute = distribute
    current.variables[full] = Use(declaration, blob)
    return blob


def assign(ref, value, name=None):
    """From here on the variable `ref` has this value, cast to its dtype; also in later calls."""
    from . import job
    from .record import record

    assert any(ref is use.blob for use in job.current("assign").variables.values()), (
        f"assign: {ref!r} is not a variable; create it by get_variable()."
    )
    assert not isinstance(value, Blob) or value.shape == ref.shape, (
        f"assign: {ref!r} cannot take a value of the shape {list(value.shape)}."
    )

    def write(ref, value):
        with no_grad():
            ref.copy_(value)
        return ref

    return record(write, (ref, value), {}, "assign", name, placement=ref._placement)
