"""Runs a notebook in a kernel, and compares what its cells show with what is stored with them."""

import json
import os


def text(lines):
    return lines if isinstance(lines, str) else "".join(lines)


def printed(outputs):
    return "".join(text(o["text"]) for o in outputs if o["output_type"] == "stream" and o["name"] == "stdout")


def drawn(outputs):
    return [o for o in outputs if "text/html" in o.get("data", {})]


def check(path, kernel=None, folder=None):
    """kernel: (a Python, its environment variables) of another environment, which is described in `folder`; else this
    environment's own."""
    import nbclient
    import nbformat

    stored, ran = (nbformat.reads(path.read_text(), as_version=4) for _ in range(2))
    name = "python3"
    if kernel:
        python, variables = kernel
        name = "holon-wheel"
        described = folder / "kernels" / name
        described.mkdir(parents=True)
        command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (described / "kernel.json").write_text(
            json.dumps({"argv": command, "display_name": name, "language": "python", "env": variables})
        )
        before = os.environ.get("JUPYTER_PATH")
        os.environ["JUPYTER_PATH"] = str(folder)
    try:
        nbclient.NotebookClient(ran, timeout=250, startup_timeout=250, kernel_name=name).execute()
    finally:
        if kernel:
            os.environ.pop("JUPYTER_PATH")
            if before is not None:
                os.environ["JUPYTER_PATH"] = before
    for old, new in zip(stored.cells, ran.cells):
        if old.cell_type == "code":
            assert printed(new.outputs) == printed(old.outputs), new.source
            assert len(drawn(new.outputs)) == len(drawn(old.outputs)), new.source
            assert all("<svg" in text(o["data"]["text/html"]) for o in drawn(new.outputs))
