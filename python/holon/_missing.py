"""What an AttributeError says of a name that is not there:
what to use instead, where that is known, or names that are alike."""

from difflib import get_close_matches

from . import _C

# Dotted names below this package, and what to use instead. A package that gives these modules other names adds to it.
hints: dict[str, str] = {}


def hint(path, name):
    """Returns the sentence for a name of the module at a dotted path ("" is the package itself), or None."""
    text = hints.get(f"{path}.{name}" if path else name)
    return text and f"{_C.get_printoptions()['prefix']}{'.' + path if path else ''} has no '{name}': {text}"


def error(path, name, known, otherwise=None):
    """Returns the AttributeError for a name that a module does not have, out of those that it has."""
    text = hint(path, name)
    if text is None:
        near = [] if name.startswith("_") else get_close_matches(name, known, 3, 0.75)
        listed = otherwise or f"It has {', '.join(sorted(known))}."
        text = f"{path or _C.get_printoptions()['prefix']} has no '{name}'. " + (
            f"Did you mean {' or '.join(near)}?" if near else listed
        )
    return AttributeError(text)


class Gone:
    """On a class, an attribute that other frameworks' programs know and that is not there: hasattr() is False."""

    def __init__(self, text):
        self._text = text

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, instance, owner=None):
        raise AttributeError(f"{owner.__name__} has no '{self._name}': {self._text}")


def leave_out(cls, names):
    """Makes the attributes of a class that are not there tell what to use instead."""
    for name, text in names.items():
        gone = Gone(text)
        gone.__set_name__(cls, name)
        setattr(cls, name, gone)
