"""What the twins of language models share: the schedule, the steps on random windows, and the validation loss."""

import math

import torch
from torch import nn

BLOCK, BATCH = 64, 12  # tokens of a window, windows of a step


def train(model, optimizer, tokens, steps, warmup, rate, lowest_rate):
    """Steps whose rate rises for `warmup` steps and then falls as a cosine; the norm of gradients is clipped at 1."""
    places = torch.arange(BLOCK + 1)
    for step in range(steps):
        fallen = (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
        for group in optimizer.param_groups:
            group["lr"] = rate * (0.01 + 0.99 * step / warmup) if step < warmup else lowest_rate + (rate - lowest_rate) * fallen
        windows = tokens[torch.randint(len(tokens) - BLOCK, (BATCH, 1)) + places]
        model.loss(windows[:, :-1], windows[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def mean_loss(model, tokens):
    """The loss of windows side by side, without dropout."""
    count = (len(tokens) - 1) // BLOCK
    x, y = tokens[: count * BLOCK].view(count, BLOCK), tokens[1 : count * BLOCK + 1].view(count, BLOCK)
    model.eval()
    with torch.no_grad():
        return sum(model.loss(a, b).item() * len(a) for a, b in zip(x.split(64), y.split(64))) / count
