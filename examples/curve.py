"""Draws the losses of a run as an SVG: python examples/curve.py RUN FILE.svg

RUN has losses.txt, the loss of each step, and validation.txt, whose lines are a step, the loss of an evaluation and,
for classes, in how many of a hundred the first is right.
"""

import sys
from pathlib import Path

import numpy as np

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 300, 48, 36, 16


def curve(losses, validation):
    """The text of the picture: the loss of each step, smoothed, and that of each evaluation as a point; what is right
    as a line with an axis at the right."""
    losses, validation = np.atleast_1d(losses), np.atleast_2d(validation)
    span, right = max(1, len(losses) // 50), 44 if validation.shape[1] > 2 else 12
    smooth = [losses[max(0, i - span) : i + 1].mean() for i in range(len(losses))]
    low = np.floor(10 * min(losses.min(), validation[:, 1].min(initial=np.inf))) / 10
    high = np.ceil(10 * max(losses.max(), validation[:, 1].max(initial=-np.inf))) / 10

    def x(step):
        return LEFT + (WIDTH - LEFT - right) * step / max(1, len(losses))

    def y(loss):
        return TOP + (HEIGHT - BOTTOM - TOP) * (high - loss) / max(high - low, 0.1)

    def line(points, color, width):
        text = " ".join(f"{x(s):.1f},{at:.1f}" for s, at in points)
        return f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="{width}"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for i, loss in enumerate(np.linspace(low, high, 5)):
        at = y(loss)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{loss:.1f}</text>')
        if right > 12:
            parts.append(f'<text x="{WIDTH - right + 6}" y="{at + 4:.1f}" fill="#2a7d4f">{25 * i} %</text>')
    for step in np.linspace(0, len(losses), 5).astype(int):
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 16}" text-anchor="middle">{step}</text>')
    steps = range(1, len(losses) + 1)
    parts += [line(zip(steps, map(y, losses)), "#bcd", 1), line(zip(steps, map(y, smooth)), "#1f5fa8", 2)]
    legend = [("loss of each step", "#1f5fa8"), ("validation", "#c4501b")]
    if right > 12:
        legend.append(("top-1", "#2a7d4f"))
        parts.append(line([(row[0], y(low + (high - low) * row[2] / 100)) for row in validation], "#2a7d4f", 2))
    parts += [f'<circle cx="{x(row[0]):.1f}" cy="{y(row[1]):.1f}" r="3.5" fill="#c4501b"/>' for row in validation]
    for i, (text, color) in enumerate(legend):
        parts.append(f'<text x="{LEFT + 120 * i}" y="{HEIGHT - 3}" fill="{color}">{text}</text>')
    parts.append(f'<text x="{WIDTH - right}" y="{HEIGHT - 3}" text-anchor="end">steps</text></svg>')
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    run, file = Path(sys.argv[1]), Path(sys.argv[2])
    file.write_text(curve(np.loadtxt(run / "losses.txt"), np.loadtxt(run / "validation.txt")))
