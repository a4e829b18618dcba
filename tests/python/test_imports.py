"""The package does not need what is built on it, and its modules do not import each other in a circle."""

import ast
from pathlib import Path

import pytest
from harness.ranks import ROOT

PACKAGE = ROOT / "python/holon"


def modules(root):
    """{name: file} of the package's modules."""
    found = {}
    for path in root.rglob("*.py"):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name, path, known):
    """Of known modules: those that a module imports when it is imported, and those of all imports in its file."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    at_once, all_of_them = set(), set()

    def walk(node, later):
        for child in ast.iter_child_nodes(node):
            names = []
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                module = ".".join([*base, *([child.module] if child.module else [])])
                names = [f"{module}.{a.name}" if f"{module}.{a.name}" in known else module for a in child.names]
            all_of_them.update(names)
            if not later:
                at_once.update(names)
            walk(child, later or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    walk(ast.parse(path.read_text()), False)
    return at_once - {name}, all_of_them - {name}


def circle(graph):
    """The names of a circle, or None."""
    state, path = {}, []

    def visit(name):
        state[name] = "open"
        path.append(name)
        for other in sorted(graph[name] & graph.keys()):
            if state.get(other) == "open":
                return path[path.index(other) :]
            if other not in state and (found := visit(other)):
                return found
        state[name] = "done"
        path.pop()
        return None

    for name in graph:
        if name not in state and (found := visit(name)):
            return found
    return None


def test_no_circles():
    files = modules(PACKAGE)
    known = {*files, "holon._C"}
    assert circle({n: imports(n, p, known)[0] for n, p in files.items()}) is None


def test_nothing_of_oneflow():
    files = modules(PACKAGE)
    wrong = {n: m for n, p in files.items() for m in imports(n, p, set(files))[1] if m.split(".")[0] == "oneflow"}
    assert not wrong


@pytest.mark.parametrize("folder, kinds", [("python/holon", ("*.py", "*.pyi")), ("holon", ("*.h", "*.cpp", "*.cu"))])
def test_oneflow_is_not_named(folder, kinds):
    """What is OneFlow's, and what is said about it, is in python/oneflow."""
    files = [path for kind in kinds for path in (ROOT / folder).rglob(kind)]
    assert files
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "oneflow" in line.lower()
    ]
    assert not wrong


@pytest.mark.parametrize("later", [False, True])
def test_a_circle_is_found(tmp_path, later):
    root = Path(tmp_path / "one")
    root.mkdir()
    (root / "__init__.py").write_text("")
    (root / "a.py").write_text("from . import b\n")
    (root / "b.py").write_text("def f():\n    from .a import x\n" if later else "from .a import x\n")
    files = modules(root)
    found = circle({n: imports(n, p, set(files))[0] for n, p in files.items()})
    assert found is None if later else sorted(found) == ["one.a", "one.b"]
