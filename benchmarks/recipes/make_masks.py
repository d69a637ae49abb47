#!/usr/bin/env python3
"""Makes a folder of images with discs and squares, and their masks: {train,test}_{images,masks}.npy; needs NumPy.

    benchmarks/recipes/make_masks.py FOLDER [TRAIN_IMAGES [TEST_IMAGES]]

Images are (N, 1, 48, 48) bytes: one to three shapes, brighter or darker than the background by two to four times the noise.
Masks are (N, 48, 48) int64: 0 background, 1 disc, 2 square; a later shape hides an earlier one.
"""

import sys
from pathlib import Path

import numpy as np

SIZE = 48


def picture(rng):
    y, x = np.mgrid[:SIZE, :SIZE]
    ground = rng.uniform(80, 160)
    image, mask = np.full((SIZE, SIZE), ground), np.zeros((SIZE, SIZE), np.uint8)
    for _ in range(rng.integers(1, 4)):
        centre_y, centre_x, radius = rng.uniform(6, SIZE - 6, 2).tolist() + [rng.uniform(5, 11)]
        kind = rng.integers(1, 3)
        away_y, away_x = np.abs(y - centre_y), np.abs(x - centre_x)
        inside = away_y**2 + away_x**2 <= radius**2 if kind == 1 else np.maximum(away_y, away_x) <= 0.85 * radius
        image[inside], mask[inside] = ground + rng.choice([-1, 1]) * rng.uniform(40, 80), kind
    image += rng.normal(0, 20, image.shape)
    return image.clip(0, 255).astype(np.uint8)[None], mask


def main():
    folder = Path(sys.argv[1])
    counts = [int(count) for count in sys.argv[2:4]] + [2000, 500][len(sys.argv) - 2 :]
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for name, count in zip(("train", "test"), counts):
        images, masks = zip(*(picture(rng) for _ in range(count)))
        np.save(folder / f"{name}_images.npy", np.stack(images))
        np.save(folder / f"{name}_masks.npy", np.stack(masks).astype(np.int64))


main()
