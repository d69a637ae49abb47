"""How far two trainings are from each other."""

import torch
from case import Arrays
from training import Trained

LOWEST_LOSS = 1e-3  # smaller losses are compared as if they were this large


def losses_apart(a: Trained, b: Trained) -> dict:
    """The largest relative difference of a loss, and the step that has it."""
    worst = {"relative": 0.0, "step": 1}
    for name, expected in b.losses.items():
        found = a.losses.get(name, [])
        if len(found) != len(expected):
            raise ValueError(f"{name} has {len(found)} values; expected {len(expected)}")
        for step, (x, y) in enumerate(zip(found, expected), 1):
            relative = abs(x - y) / max(abs(y), LOWEST_LOSS)
            if not relative <= worst["relative"]:  # also if it is NaN
                worst = {"relative": relative, "step": step}
    return worst


def weights_apart(a: Arrays, b: Arrays) -> float:
    """The norm of the difference of all floating-point weights and buffers over the norm of those of `b`."""
    floating = {name: value.double() for name, value in b.items() if value.is_floating_point()}
    missing = [name for name in floating if name not in a]
    if missing:
        raise ValueError(f"the checkpoint lacks {', '.join(missing)}")
    difference = sum((a[name].double() - value).square().sum() for name, value in floating.items())
    size = sum(value.square().sum() for value in floating.values())
    return torch.sqrt(difference / size).item()


def apart(a: Trained, b: Trained) -> dict:
    return {
        "loss": losses_apart(a, b),
        "weights": weights_apart(a.weights, b.weights),
        "averaged": weights_apart(a.averaged, b.averaged),
    }
