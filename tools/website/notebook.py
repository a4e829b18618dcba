"""A notebook as Markdown, with the outputs that are stored in it."""

import json
import re


def joined(text):
    return text if isinstance(text, str) else "".join(text)


def fenced(text, language):
    return f"```{language}\n{text.rstrip()}\n```"


def shown(output):
    """One output of a cell. Errors (ValueError): an output that no page can show."""
    kind, data = output["output_type"], output.get("data", {})
    if kind == "stream":
        return fenced(joined(output["text"]), "text")
    if "text/html" in data:
        # A blank line would end a block of HTML in Markdown.
        html = re.sub(r"\n\s*\n", "\n", joined(data["text/html"]).strip())
        return f'<div class="cell-output">\n{html}\n</div>'
    if "text/plain" in data:
        return fenced(joined(data["text/plain"]), "text")
    raise ValueError(
        f"an output of kind {kind} with {', '.join(data) or 'no data'}: stream, text/html and text/plain are shown"
    )


def markdown(path):
    """The page of a notebook."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = joined(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts.append(fenced(source, "python"))
            parts += [shown(output) for output in cell["outputs"]]
    parts.insert(1, f"This page is the notebook [{path.name}](<{path.name}>), with the results that are stored in it.")
    return "\n\n".join([*parts, ""])
