"""`%load_ext holon` and `%%ranks N`: cells of a notebook that run on all ranks of a world,
and values that draw themselves."""

import html

from . import _C
from ._world import World, alike, ranks_text

_worlds: dict[int, World] = {}  # of each shell: the world that %%ranks uses


class _Drawn:
    """What a cell's last line is shown as: the text of each rank, and a picture where it has one."""

    def __init__(self, value):
        self.text = repr(value)
        draw = getattr(type(value), "_repr_html_", None)
        self.html = draw(value) if draw else None


def _display(values):
    from IPython.display import HTML, display

    if all(v is not None and v.html is not None for v in values):  # the same value, as each rank sees it
        display(HTML(values[0].html))
        return
    groups = alike([None if v is None else v.text for v in values])
    for text, ranks in groups.items():
        if text is not None:
            print(text if len(groups) == 1 else f"[{ranks_text(ranks)}]\n{text}")


def load_ipython_extension(shell):
    """Called by `%load_ext holon`: adds %%ranks to the shell."""

    def ranks(line, cell):
        """%%ranks [N]: runs the cell on N ranks, threads of this process; without N on those of the last one. Names
        live from cell to cell on each rank. What they print is shown once where they agree, else by rank. Another N
        begins a new world."""
        world = _world(shell, line)
        shown = [None] * world.n

        def keep(value):
            shown[_C.rank()] = _Drawn(value)

        world.execute(cell, keep)
        if any(v is not None for v in shown):
            _display(shown)

    shell.register_magic_function(ranks, magic_kind="cell", magic_name="ranks")


def unload_ipython_extension(shell):
    """Called by `%unload_ext holon`: ends the ranks."""
    shell.magics_manager.magics["cell"].pop("ranks", None)
    world = _worlds.pop(id(shell), None)
    if world is not None:
        world.close()


def _world(shell, line):
    words = line.split()
    world = _worlds.get(id(shell))
    if len(words) > 1 or (words and not words[0].isdecimal()):
        raise ValueError(f"%%ranks {line}: takes one number, that of ranks, as in %%ranks 4.")
    if not words:
        if world is None:
            raise ValueError("%%ranks: no ranks have been started yet; give their number, as in %%ranks 4.")
        return world
    n = int(words[0])
    if world is None or world.n != n:
        if world is not None:
            world.close()
            print(f"{n} ranks instead of {world.n}: names of earlier cells are gone")
        _worlds.pop(id(shell), None)
        world = _worlds[id(shell)] = World(n)
    return world


def placement_html(p):
    """The ranks of a placement as a grid."""
    grid = p.ranks.reshape(-1, p.ranks.shape[-1]).tolist()
    cells = "".join(
        f'<g transform="translate({40 * x} {28 * y})"><rect width="38" height="26" rx="3" fill="#4c78a8"/>'
        f'<text x="19" y="18" text-anchor="middle" fill="#fff">{rank}</text></g>'
        for y, row in enumerate(grid)
        for x, rank in enumerate(row)
    )
    width, height = 40 * len(grid[0]), 28 * len(grid)
    return (
        f"<div><code>{html.escape(repr(p))}</code></div>"
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="13">'
        f"{cells}</svg>"
    )


def tensor_html(x):
    """Who holds which part of a global tensor; None for a local one, whose text says all."""
    return _C.picture(x)["svg"] if x.is_global else None


def explanation_html(text, plan):
    """Who holds what before and after each step of a plan, the step in words between them; then links and memory."""
    head, *lines = text.splitlines()
    first, *after = plan.pictures()
    parts = [f"<div><code>{html.escape(head)}</code></div>", first]
    for line, picture in zip(lines, after):
        parts += [f"<div>&#8595; {html.escape(line.strip())}</div>", picture]
    parts += [f"<div>{html.escape(line.strip())}</div>" for line in lines[len(after) :]]
    return "\n".join(parts)
