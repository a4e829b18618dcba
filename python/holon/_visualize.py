"""Pictures of who holds which part of a tensor."""

import sys

from . import _C

_COLOURS = ["cyan", "yellow", "green", "magenta", "red", "blue", "bright_yellow", "bright_cyan"]


class Picture:
    """What visualize() shows: text and svg. A notebook displays it as an image."""

    def __init__(self, parts):
        self.text, self.svg, self._parts = parts["text"], parts["svg"], parts

    def __str__(self):
        return self.text

    def __repr__(self):
        return f"<picture of {self._parts['title']}>"

    def _repr_svg_(self):
        return self.svg

    def _print_in_colour(self, console):
        from rich.table import Table
        from rich.text import Text

        here = False
        console.print(Text(self._parts["title"], style="bold"))
        for plane in self._parts["planes"]:
            # Ranges of rows have a separate column, if there are any.
            named = any(plane["rows"])
            table = Table(
                title=plane["title"] or None, title_justify="left", show_header=any(plane["columns"]), show_lines=True
            )
            if named:
                table.add_column("", justify="right", style="dim")
            for column in plane["columns"]:
                table.add_column(column, justify="center")
            width = len(plane["columns"])
            for i, row in enumerate(plane["rows"]):
                cells = []
                for text, copies, mine in plane["cells"][i * width : (i + 1) * width]:
                    here |= mine
                    style = _COLOURS[copies[0][0] % len(_COLOURS)] + (" bold" if mine else "")
                    cells.append(Text(text + (" *" if mine else ""), style=style))
                table.add_row(*([row] if named else []), *cells)
            console.print(table)
        for note in self._parts["notes"] + (["* this rank"] if here else []):
            console.print(Text(note, style="dim"))


def visualize(x, file=None):
    """Prints who holds which part of x, and returns it as a Picture with text and svg;
    file, a name ending in .svg, gets the SVG.

    Nothing is communicated: one rank may call it alone. In a terminal the parts are coloured, if rich is installed.
    """
    if not isinstance(x, _C.Tensor):
        raise TypeError(f"visualize: takes a tensor, got {type(x).__name__}.")
    if file is not None and not str(file).endswith(".svg"):
        raise ValueError(f"visualize: file={str(file)!r} does not end in .svg, which is the only format.")
    picture = Picture(_C.picture(x))
    if file is not None:
        with open(file, "w") as out:
            out.write(picture.svg)
    if sys.stdout.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            picture._print_in_colour(Console())
            return picture
    print(picture.text, end="", flush=True)
    return picture
