"""The pages of modules and optimizers: what inspection tells of the classes, and their examples, which are run."""
import inspect
import types

import holon
from holon import nn, optim

from . import examples


def namespace():
    return {"flow": holon, "holon": holon, "nn": nn, "optim": optim, "F": nn.functional, "lr_scheduler": optim.lr_scheduler}


def signature(name, obj):
    try:
        text = str(inspect.signature(obj))
    except (TypeError, ValueError):
        text = "(...)"
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
    """While it is open, remembers the objects of exactly this class that are made."""

    def __init__(self, cls):
        self.cls, self.objects, self.own = cls, [], "__init__" in vars(cls)

    def __enter__(self):
        init = self.cls.__init__
        made = self

        def remember(self, *args, **kwargs):
            init(self, *args, **kwargs)
            if type(self) is made.cls:
                made.objects.append(self)

        self.init = init
        self.cls.__init__ = remember
        return self

    def __exit__(self, *error):
        if self.own:
            self.cls.__init__ = self.init
        else:
            del self.cls.__init__


def shapes_of(module):
    held = [f"{name} {list(p.shape)}" for name, p in module.named_parameters()]
    return held, [f"{name} {list(b.shape)}" for name, b in module.named_buffers()]


def section(name, cls, prefix, problems):
    doc, sources = examples.of_docstring(inspect.cleandoc(cls.__doc__ or ""))
    if not doc:
        problems.append(f"{prefix}{name}: no words in its docstring")
    lines = [f"## {name}", "", "```", signature(prefix + name, cls), "```", "", doc, ""]
    if not sources:
        problems.append(f"{prefix}{name}: no example in its docstring")
    else:
        with Made(cls) as made:
            try:
                lines += examples.transcript(examples.run(sources, namespace()))
            except Exception as e:  # noqa: BLE001 - all failures are listed
                problems.append(f"{prefix}{name}: the example failed: {sources}: {type(e).__name__}: {e}")
        if made.objects and isinstance(made.objects[0], nn.Module):
            parameters, buffers = shapes_of(made.objects[0])
            lines.append(f"- **parameters** of the example: {', '.join(parameters) or 'none'}")
            if buffers:
                lines.append(f"- **buffers** of the example: {', '.join(buffers)}")
    methods = public_methods(cls)
    lines += [f"- `{signature(n, f)}`: {paragraph(f.__doc__)}" for n, f in methods]
    return [*lines, ""]


def is_public_class(value, package):
    return inspect.isclass(value) and value.__module__.startswith(package)


def functions(title, module, note):
    """A list of a module's own functions."""
    found = {n: v for n, v in vars(module).items()
             if isinstance(v, types.FunctionType) and n[0] != "_" and v.__module__.startswith("holon.nn")}
    lines = [f"## {title}", "", note, ""]
    for name in sorted(found):
        lines.append(f"- `{signature(name, found[name])}`" + (f": {paragraph(found[name].__doc__)}" if found[name].__doc__ else ""))
    return [*lines, ""]


def contents(classes):
    """One line for each source file: links to its classes' sections."""
    files = {}
    for name, cls in classes:
        files.setdefault(cls.__module__.rsplit(".", 1)[-1], []).append(name)
    return [f"- {file.replace('_', ' ')}: " + ", ".join(f"[{n}](#{n.lower()})" for n in sorted(names)) for file, names in sorted(files.items())]


def modules_page(note, problems):
    classes = sorted((n, getattr(nn, n)) for n in nn.__all__ if is_public_class(getattr(nn, n), "holon"))
    lines = ["# Modules", "", note, "Examples ran when the page was made, after `import holon as flow` and `from holon import nn`. A module with "
             "parameters takes `placement` and `sbp` and then makes them global.", "", *contents(classes), ""]
    for name, cls in classes:
        lines += section(name, cls, "nn.", problems)
    lines += functions("nn.functional", nn.functional, "Beside these, every [op](ops.md) is here too.")
    lines += functions("nn.init", nn.init, "Initial values, in place; they do not depend on the layout.")
    lines += functions("nn.utils", nn.utils, "")
    return "\n".join(lines), len(classes)


def optim_page(note, problems):
    optimizers = sorted((n, getattr(optim, n)) for n in optim.__all__ if is_public_class(getattr(optim, n), "holon.optim"))
    schedules = sorted((n, v) for n, v in vars(optim.lr_scheduler).items()
                       if is_public_class(v, "holon.optim.lr_scheduler") and n[0] != "_")
    lines = ["# Optimizers and schedules", "", note, "Examples ran when the page was made, after `import holon as flow` and "
             "`from holon import nn, optim`.", "", *contents(optimizers + schedules), ""]
    for name, cls in optimizers:
        lines += section(name, cls, "optim.", problems)
    for name, cls in schedules:
        lines += section(name, cls, "optim.lr_scheduler.", problems)
    return "\n".join(lines), len(optimizers) + len(schedules)


