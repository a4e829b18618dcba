"""Draws the losses of a run as an SVG: python examples/pretrain/curve.py RUN FILE.svg"""

import sys
from pathlib import Path

import numpy as np

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 300, 48, 36, 16


def curve(losses, validation):
    """The text of the picture: the loss of each step, smoothed, and that of each evaluation as a point."""
    losses, validation = np.asarray(losses), np.asarray(validation).reshape(-1, 2)
    span = max(1, len(losses) // 50)
    smooth = [losses[max(0, i - span) : i + 1].mean() for i in range(len(losses))]
    low = np.floor(10 * min(losses.min(), validation[:, 1].min(initial=np.inf))) / 10
    high = np.ceil(10 * losses.max()) / 10

    def x(step):
        return LEFT + (WIDTH - LEFT - 12) * step / max(1, len(losses))

    def y(loss):
        return TOP + (HEIGHT - BOTTOM - TOP) * (high - loss) / max(high - low, 0.1)

    def line(values, color, width):
        points = " ".join(f"{x(i + 1):.1f},{y(v):.1f}" for i, v in enumerate(values))
        return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for loss in np.linspace(low, high, 5):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.1f}</text>')
    for step in np.linspace(0, len(losses), 5).astype(int):
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 16}" text-anchor="middle">{step}</text>')
    parts += [line(losses, "#bcd", 1), line(smooth, "#1f5fa8", 2)]
    parts += [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3.5" fill="#c4501b"/>' for s, v in validation]
    parts.append(f'<text x="{WIDTH - 14}" y="{TOP + 12}" text-anchor="end" fill="#1f5fa8">loss of each step</text>')
    parts.append(f'<text x="{WIDTH - 14}" y="{TOP + 28}" text-anchor="end" fill="#c4501b">validation</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 3}" text-anchor="middle">steps</text></svg>')
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    run, file = Path(sys.argv[1]), Path(sys.argv[2])
    file.write_text(curve(np.loadtxt(run / "losses.txt"), np.loadtxt(run / "validation.txt")))
