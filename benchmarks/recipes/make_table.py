#!/usr/bin/env python3
"""Makes a long CSV file for trainings that stream it: four numbers, a category, and a number to predict; needs NumPy.

    benchmarks/recipes/make_table.py FILE [ROWS]

The target is linear in the columns, with a deviation of 0.1. By default 10,000,000 rows, 404 MB.
"""

import sys

import numpy as np

BLOCK = 100_000


def main():
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000_000
    random = np.random.default_rng(1)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write("a,b,c,d,kind,y\n")
        for begin in range(0, rows, BLOCK):
            count = min(BLOCK, rows - begin)
            numbers, kinds = random.normal(size=(count, 4)), random.integers(0, 5, count)
            target = numbers @ [1, -2, 0.5, 3] + 0.3 * kinds + random.normal(size=count) * 0.1
            lines = (f"{a:.4f},{b:.4f},{c:.4f},{d:.4f},k{kind},{y:.4f}\n" for (a, b, c, d), kind, y in zip(numbers, kinds, target))
            file.writelines(lines)


main()
