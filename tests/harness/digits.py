"""Digits in MNIST's form, for tests: python digits.py FOLDER TRAIN TEST writes seven-segment figures,
shifted and in noise."""

import random
import struct
import sys
from pathlib import Path

SIDE = 28
# Bars of the display: first row, first column, rows, columns. Then which of them each digit lights.
BARS = [(4, 9, 3, 10), (6, 17, 8, 3), (14, 17, 8, 3), (21, 9, 3, 10), (14, 8, 8, 3), (6, 8, 8, 3), (12, 9, 3, 10)]
LIT = [0b0111111, 0b0000110, 0b1011011, 0b1001111, 0b1100110, 0b1101101, 0b1111101, 0b0000111, 0b1111111, 0b1101111]


def draw(digit, rng):
    """Returns the image of a digit as bytes, row by row."""
    pixels = bytearray(x // 4 for x in rng.randbytes(SIDE * SIDE))
    down, right = rng.randint(-1, 1), rng.randint(-1, 1)
    for bar, (row, column, rows, columns) in enumerate(BARS):
        if LIT[digit] >> bar & 1:
            for r in range(row + down, row + down + rows):
                at = r * SIDE + column + right
                pixels[at : at + columns] = bytes(200 + x // 8 for x in rng.randbytes(columns))
    return bytes(pixels)


def write(folder, train, test, seed=1):
    rng = random.Random(seed)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for part, n in (("train", train), ("t10k", test)):
        labels = [rng.randrange(10) for _ in range(n)]
        images = b"".join(draw(d, rng) for d in labels)
        Path(folder, f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, n, SIDE, SIDE) + images)
        Path(folder, f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, n) + bytes(labels))


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
