"""What is compared: a model of Fulgur and its twin in PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Arrays = dict[str, torch.Tensor]


def same_names(state: Arrays) -> Arrays:
    return state


@dataclass
class Case:
    """`twin()` makes the model in PyTorch, `loss_of(twin, batch)` its loss; `arrays(rows)` makes the data of an epoch."""

    name: str
    title: str
    twin_title: str
    model: dict  # `model` of the trainer's config
    twin: Callable[[], torch.nn.Module]
    loss_of: Callable[[torch.nn.Module, Arrays], torch.Tensor]
    arrays: Callable[[int], Arrays]
    entries: list[str] = field(default_factory=lambda: ["input", "target"])  # of a batch, in the trainer's order
    key_map: str | None = None
    to_fulgur: Callable[[Arrays], Arrays] = same_names  # the twin's state dict under Fulgur's names
    lr: float = 1e-3
    eps: float = 1e-8
    batch_size: int = 8
    adversarial: bool = False  # two optimizers, without accumulation and clipping
    precisions: tuple[str, ...] = ("32-true", "64-true", "bf16-mixed")
    note: str = ""


def slow_and_fast(name: str, **of_case) -> list[Case]:
    """Of a training that is chaotic in 32 bits: slow in all precisions, and with the usual rate in 64 bits."""
    note = "trained slowly in 32 bits, where ReLU and batch norm amplify roundings; a further run in 64 bits has the usual rate"
    return [Case(name=name, lr=1e-5, note=note, **of_case), Case(name=f"{name}-fast", precisions=("64-true",), **of_case)]
