"""A text for the example's GPT: always the same, and so regular that the loss falls from the first steps on."""


def write_text(folder):
    path = folder / "text.py"
    path.write_text("def f(x):\n    return x + 1\n\nclass A:\n    pass\n\n" * 2000)
    return path
