"""Nested arguments as a tree."""

__all__ = ["ArgsTree", "NamedArg"]


class NamedArg:
    """An item of an ArgsTree: a leaf's value, or the tuple, list or dict that holds further items."""

    def __init__(self, prefix, name, global_index, value):
        self._prefix, self._name, self._index, self._value = prefix, name, global_index, value

    prefix = property(lambda self: self._prefix)
    name = property(lambda self: self._name)
    global_index = property(lambda self: self._index)
    value = property(lambda self: self._value)

    def is_leaf(self):
        return not isinstance(self._value, (tuple, list, dict))

    def __repr__(self):
        return f"(name: {self._prefix}{self._name}, index: {self._index}, value: {self._value!r})"


class ArgsTree:
    """Walks nested tuples, lists and dicts: iter_nodes(), iter_named_nodes(), map_leaf(function),
    map_tuple_leaf(function)."""

    def __init__(self, io_args, gen_name=False, root_prefix="", root_name=None, tensor_type=None):
        self._args, self._named, self._prefix = io_args, gen_name, root_prefix
        self._root_name = root_name or "_input"

    def iter_nodes(self):
        """Yields every item, a holder before what it holds."""
        for _, value in self._walk("", self._args):
            yield value

    def iter_named_nodes(self):
        """Yields (name, NamedArg) for every item."""
        for i, (path, value) in enumerate(self._walk("", self._args)):
            name = f"{self._root_name}.{path}" if path else self._root_name
            yield f"{self._prefix}{name}" if self._prefix else name, NamedArg(self._prefix, name, i, value)

    def _walk(self, path, value):
        yield path, value
        if isinstance(value, dict):
            inner = value.items()
        elif isinstance(value, (list, tuple)):
            inner = enumerate(value)
        else:
            return
        for key, item in inner:
            yield from self._walk(f"{path}.{key}" if path else str(key), item)

    def map_leaf(self, map_function):
        """Returns the same nesting with function(leaf) in the place of each leaf."""
        return self._mapped(self._args, map_function)

    map_tuple_leaf = map_leaf

    def _mapped(self, value, function):
        if isinstance(value, dict):
            return type(value)((k, self._mapped(v, function)) for k, v in value.items())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._mapped(v, function) for v in value))
        if isinstance(value, (list, tuple)):
            return type(value)(self._mapped(v, function) for v in value)
        return function(value)
