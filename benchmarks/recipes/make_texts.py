#!/usr/bin/env python3
"""Makes a folder of labelled sentences: train.csv, test.csv and vocab.txt; Python's standard library is enough.

    benchmarks/recipes/make_texts.py FOLDER [TRAIN_ROWS [TEST_ROWS]]

A sentence has the opinions of two persons, each perhaps with "not"; its label is that of the writer's. So no word decides alone.
"""

import csv
import random
import sys
from pathlib import Path

GOOD = "good fine lovely bright clever warm honest brilliant gentle fresh".split()
BAD = "bad dull ugly slow stupid cold false weak harsh stale".split()
THINGS = "story music acting ending light dialogue plot cast pace scenery".split()
FILLERS = "really quite perhaps truly rather simply of course".split()
FRAME = "the was not but and yet i they think".split()


def opinion(rng, who, thing):
    """Words of a person about a thing, and whether they praise it."""
    good, negated = rng.random() < 0.5, rng.random() < 0.4
    words = [who, "think", "the", thing, "was"] + (["not"] if negated else [])
    words += rng.sample(FILLERS, rng.randrange(3)) + [rng.choice(GOOD if good else BAD)]
    return words, good != negated


def sentence(rng):
    first, second = rng.sample(THINGS, 2)
    (own, praises), (other, _) = opinion(rng, "i", first), opinion(rng, "they", second)
    parts = [own, other] if rng.random() < 0.5 else [other, own]
    words = parts[0] + [rng.choice(["but", "and", "yet"])] + parts[1]
    return " ".join(words), "positive" if praises else "negative"


def main():
    folder = Path(sys.argv[1])
    rows = [int(count) for count in sys.argv[2:4]] + [20000, 2000][len(sys.argv) - 2 :]
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    for name, count in zip(("train", "test"), rows):
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *(sentence(rng) for _ in range(count))])
    words = sorted({*GOOD, *BAD, *THINGS, *FILLERS, *FRAME})
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")


main()
