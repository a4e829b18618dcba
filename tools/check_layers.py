#!/usr/bin/env python3
"""Checks the one rule of the layout: calls and includes go down the list of layers, never up.

  tools/check_layers.py [ROOT]

The order is HOLON_LAYERS in holon/CMakeLists.txt, and HOLON_FOLDERS in a layer's CMakeLists.txt for the folders in it,
where "." is the layer's own files. An error is: an #include of a folder that is higher than the file's own;
a folder of holon/ or of a layer that the lists do not name; a source that neither its folder's CMakeLists.txt nor that
of the tools builds.
"""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"](holon/[^>"]+)[>"]', re.M)
# Written by the build: of which layer.
GENERATED = {"holon/version.h": "base", "holon/op_names": "registry", "holon/internal_ops": "ops"}
# For users: each includes much, and is included by nothing inside. What includes ops.h is compiled again with each new
# op.
FOR_USERS = re.compile(r"holon/(?!version\.h)\w+\.h")


def layers_of(root):
    text = (root / "holon/CMakeLists.txt").read_text()
    m = re.search(r"set\(HOLON_LAYERS\s+([^)]*)\)", text)
    if not m:
        raise SystemExit("holon/CMakeLists.txt has no set(HOLON_LAYERS ...)")
    return m.group(1).split()


def folders_of(cmake_text):
    """The folders in a layer, bottom to top; None where it does not list them."""
    m = re.search(r"set\(HOLON_FOLDERS\s+([^)]*)\)", cmake_text)
    return m.group(1).split() if m else None


def folder_in_layer(parts):
    """Of a path below a layer: its first folder, or "." for a file of the layer itself."""
    return parts[0] if len(parts) > 1 else "."


def built(cmake_text):
    """A pattern for the sources that a CMakeLists.txt names; ${x} and * in a name match any part of it."""
    names = re.findall(r"[\w./${}*-]+\.cpp", cmake_text)
    parts = [
        "".join("[^/]*" if p.startswith("$") or p == "*" else re.escape(p) for p in re.split(r"(\$\{\w+\}|\*)", n))
        for n in names
    ]
    return re.compile("|".join(parts) or "(?!)")


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"^\s*//.*$", "", text, flags=re.M)


def check(root):
    layers = layers_of(root)
    order = {name: i for i, name in enumerate(layers)}
    errors = []
    tools = root / "tools/CMakeLists.txt"
    in_tools = set(re.findall(r"holon/[\w./]+\.cpp", tools.read_text())) if tools.exists() else set()
    module = root / "holon/kernels/cuda/CMakeLists.txt"  # takes all of these folders
    in_module = {
        "holon/kernels/cuda",
        *re.findall(r"PROJECT_SOURCE_DIR\}/(holon/[\w/]+)/\*\.cpp", module.read_text() if module.exists() else ""),
    }
    for folder in sorted(p.name for p in (root / "holon").iterdir() if p.is_dir()):
        if folder not in order:
            errors.append(
                f"holon/{folder}: not in HOLON_LAYERS (holon/CMakeLists.txt): add it to the list, at its height"
            )
            continue
        cmake = root / "holon" / folder / "CMakeLists.txt"
        cmake_text = cmake.read_text() if cmake.exists() else ""
        sources = built(cmake_text)
        inner = folders_of(cmake_text)
        for sub in sorted(p.name for p in (root / "holon" / folder).iterdir() if p.is_dir()):
            if inner is None or sub not in inner:
                errors.append(
                    f"holon/{folder}/{sub}: not in HOLON_FOLDERS (holon/{folder}/CMakeLists.txt): add it to the list, "
                    f"at its height"
                )
        for path in sorted((root / "holon" / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            name = path.relative_to(root).as_posix()
            inside = path.relative_to(cmake.parent).as_posix()
            if (
                path.suffix == ".cpp"
                and path.parent.relative_to(root).as_posix() not in in_module
                and not sources.fullmatch(inside)
                and name not in in_tools
            ):
                errors.append(f"{name}: no source of holon/{folder}/CMakeLists.txt: list it there or delete it")
            text = path.read_text()
            for m in INCLUDE.finditer(without_comments(text)):
                included = m.group(1)
                if FOR_USERS.fullmatch(included):
                    errors.append(f"{name}: includes {included}, which is for users: include what is needed")
                    continue
                generated = GENERATED.get(included) or GENERATED.get("/".join(included.split("/")[:2]))
                target = generated or included.split("/")[1]
                if target == folder and inner and not generated:
                    own = folder_in_layer(path.relative_to(cmake.parent).parts)
                    other = folder_in_layer(included.split("/")[2:])
                    if own in inner and other in inner and inner.index(other) > inner.index(own):
                        errors.append(
                            f"{name}: includes {included}: {other} is above {own} in holon/{folder}; "
                            f"move one of the two"
                        )
                if target in order and order[target] > order[folder]:
                    errors.append(f"{name}: includes {included}: {target} is above {folder}; move one of the two")
    return errors


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    errors = check(root)
    for e in errors:
        print(e)
    if not errors:
        print(f"layers: {len(layers_of(root))} in order")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
