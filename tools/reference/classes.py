"""The pages of modules and optimizers: what inspection tells of the classes, and their examples, which are run."""

import inspect
import re
import sys
import types

import holon
from holon import nn, optim

from . import examples
from .module_examples import EXAMPLES


def namespace():
    model = nn.Linear(2, 1)
    return {
        "model": model,
        "optimizer": optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        "flow": holon,
        "holon": holon,
        "nn": nn,
        "optim": optim,
        "F": nn.functional,
        "lr_scheduler": optim.lr_scheduler,
    }


def signature(name, obj):
    try:
        text = str(inspect.signature(obj))
    except (TypeError, ValueError):
        text = "(...)"
    # A function that is a default is shown by its name.
    text = re.sub(r"<(?:built-in )?(?:function|method) (\w+)(?: at 0x[0-9a-f]+|[^>]*)?>", r"\1", text)
    return name + text.replace("(self, ", "(").replace("(self)", "()")


def public_methods(cls):
    """Those that the class itself defines and documents."""
    found = []
    for name, value in vars(cls).items():
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        if isinstance(value, types.FunctionType) and name[0] != "_" and value.__doc__ and name != "forward":
            found.append((name, value))
    return found


def paragraph(doc):
    return inspect.cleandoc(doc).split("\n\n")[0].replace("\n", " ") if doc else ""


class Made:
    """While it is open, remembers the objects of this class, or of one that derives from it without an __init__,
    that are made."""

    def __init__(self, cls):
        self.cls, self.objects, self.own = cls, [], "__init__" in vars(cls)

    def __enter__(self):
        init = self.cls.__init__
        made = self

        def remember(self, *args, **kwargs):
            init(self, *args, **kwargs)
            if type(self) is made.cls or "__init__" not in vars(type(self)):
                made.objects.append(self)

        self.init = init
        self.cls.__init__ = remember
        return self

    def __exit__(self, *error):
        if self.own:
            self.cls.__init__ = self.init
        else:
            del self.cls.__init__


def rates(schedule, steps=8):
    """The learning rate before each of the first steps."""
    found = []
    for _ in range(steps):
        found.append(f"{schedule.get_last_lr()[0]:.4g}")
        if isinstance(schedule, optim.lr_scheduler.ReduceLROnPlateau):
            schedule.step(1.0)
        else:
            schedule.step()
    return ", ".join(found)


def after_a_step(optimizer, model):
    """The state that an optimizer keeps for a parameter."""
    model(holon.ones(1, 2)).sum().backward()
    optimizer.step()
    weight = model.weight
    held = [
        name + (f" {list(v.shape)}" if isinstance(v, holon.Tensor) else "")
        for name, v in optimizer.state[weight].items()
    ]
    return f"{', '.join(held) or 'none'} (of a weight {list(weight.shape)})"


def observed(made, names):
    """What can be seen of the object that the example made."""
    if isinstance(made, nn.Module):
        parameters = [f"{name} {list(p.shape)}" for name, p in made.named_parameters()]
        buffers = [f"{name} {list(b.shape)}" for name, b in made.named_buffers()]
        lines = [f"- **parameters** of the example: {', '.join(parameters) or 'none'}"]
        return lines + ([f"- **buffers** of the example: {', '.join(buffers)}"] if buffers else [])
    if isinstance(made, optim.Optimizer):
        return [f"- **state** of the example after a step: {after_a_step(made, names['model'])}"]
    if isinstance(made, (optim.lr_scheduler.LRScheduler, optim.lr_scheduler.ReduceLROnPlateau)):
        metric = " (with a metric that stays)" if isinstance(made, optim.lr_scheduler.ReduceLROnPlateau) else ""
        return [f"- **rates** of the example, step by step{metric}: {rates(made)}"]
    return []


def op_words(name):
    """The words of the op that a module calls by its own name: log_softmax of LogSoftmax."""
    names = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(), name.lower()}  # silu of SiLU
    return next((op["doc"] for op in holon._C.op_table() if op["name"] in names), "")


def section(name, cls, prefix, problems):
    doc, sources = examples.of_docstring(inspect.cleandoc(cls.__doc__ or op_words(name)))
    if not sources and name in EXAMPLES:
        sources = [EXAMPLES[name]]
    if not doc:
        problems.append(f"{prefix}{name}: no words in its docstring")
    other = [n for n, v in vars(sys.modules[cls.__module__]).items() if v is cls and n != name]
    lines = [
        f"## {name}",
        "",
        "```",
        signature(prefix + name, cls),
        "```",
        "",
        doc + (f" Also {', '.join(other)}." if other else ""),
        "",
    ]
    if not sources:
        problems.append(f"{prefix}{name}: no example in its docstring")
    else:
        names = namespace()
        with Made(cls) as made:
            try:
                lines += examples.transcript(examples.run(sources, names))
                lines += observed(made.objects[0], names) if made.objects else []
            except Exception as e:  # noqa: BLE001 - all failures are listed
                problems.append(f"{prefix}{name}: the example failed: {sources}: {type(e).__name__}: {e}")
    methods = public_methods(cls)
    lines += [f"- `{signature(n, f)}`: {paragraph(f.__doc__)}" for n, f in methods]
    return [*lines, ""]


def is_public_class(value, package):
    return inspect.isclass(value) and value.__module__.startswith(package)


def functions(title, module, note):
    """A list of a module's own functions."""
    found = {
        n: v
        for n, v in vars(module).items()
        if isinstance(v, types.FunctionType) and n[0] != "_" and v.__module__.startswith("holon.nn")
    }
    lines = [f"## {title}", "", note, ""]
    for name in sorted(found):
        lines.append(
            f"- `{signature(name, found[name])}`"
            + (f": {paragraph(found[name].__doc__)}" if found[name].__doc__ else "")
        )
    return [*lines, ""]


def contents(classes):
    """One line for each source file: links to its classes' sections."""
    files = {}
    for name, cls in classes:
        files.setdefault(cls.__module__.rsplit(".", 1)[-1], []).append(name)
    return [
        f"- {file.replace('_', ' ')}: " + ", ".join(f"[{n}](#{n.lower()})" for n in sorted(names))
        for file, names in sorted(files.items())
    ]


def modules_page(note, problems):
    classes = sorted((n, getattr(nn, n)) for n in nn.__all__ if is_public_class(getattr(nn, n), "holon"))
    lines = [
        "# Modules",
        "",
        note,
        "Examples ran when the page was made, after `import holon as flow` and `from holon import nn`. A module with "
        "parameters takes `placement` and `sbp` and then makes them global.",
        "",
        *contents(classes),
        "",
    ]
    for name, cls in classes:
        lines += section(name, cls, "nn.", problems)
    lines += functions("nn.functional", nn.functional, "Beside these, every [op](ops.md) is here too.")
    lines += functions("nn.init", nn.init, "Initial values, in place; they do not depend on the layout.")
    lines += functions("nn.utils", nn.utils, "")
    return "\n".join(lines), len(classes)


def optim_page(note, problems):
    optimizers = sorted(
        (n, getattr(optim, n)) for n in optim.__all__ if is_public_class(getattr(optim, n), "holon.optim")
    )
    schedules = sorted(
        (n, v)
        for n, v in vars(optim.lr_scheduler).items()
        if is_public_class(v, "holon.optim.lr_scheduler") and n[0] != "_" and n == v.__name__
    )
    lines = [
        "# Optimizers and schedules",
        "",
        note,
        "Examples ran when the page was made, after `import holon as flow` and `from holon import nn, optim`.",
        "",
        *contents(optimizers + schedules),
        "",
    ]
    for name, cls in optimizers:
        lines += section(name, cls, "optim.", problems)
    for name, cls in schedules:
        lines += section(name, cls, "optim.lr_scheduler.", problems)
    return "\n".join(lines), len(optimizers) + len(schedules)
