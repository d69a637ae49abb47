"""Fashion-MNIST for the twins of the recipes: the four files of a folder, by default that of Debian's package."""

import gzip
from pathlib import Path

import numpy as np
import torch

FOLDER = Path("/usr/share/datasets/fashion-mnist")


def _read(folder, name, header):
    with gzip.open(Path(folder) / name) as file:
        return torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=header).copy())


def images_of(folder, part):
    """Values from 0 to 1, (N, 1, 28, 28), and labels of `train` or `t10k`."""
    pixels = _read(folder, f"{part}-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float() / 255
    return pixels, _read(folder, f"{part}-labels-idx1-ubyte.gz", 8).long()


def channels_last(x):
    # With one channel both formats look alike to PyTorch, whose kernels then take the other one.
    n, c, h, w = x.shape
    return x.permute(0, 2, 3, 1).contiguous().as_strided((n, c, h, w), (c * h * w, 1, w * c, c))
