"""The twin's training, in plain PyTorch: accumulation, clipping, AdamW, an exponential average of the weights."""

import contextlib
from dataclasses import dataclass
from functools import partial

import torch
from case import Arrays, Case
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


@dataclass
class Settings:
    steps: int = 200
    batches: int = 100  # of an epoch
    accumulate: int = 2
    clip: float = 1.0
    decay: float = 0.98
    weight_decay: float = 0.05
    seed: int = 7


@dataclass
class Trained:
    losses: dict[str, list[float]]  # by name of the trainer's log, one for each step
    weights: Arrays
    averaged: Arrays


def autocast_of(precision):
    if precision == "bf16-mixed":
        return partial(torch.autocast, "cpu", torch.bfloat16)
    return contextlib.nullcontext


def batches_of(case: Case, arrays: Arrays, settings: Settings, dtype):
    for i in range(settings.batches):
        rows = slice(i * case.batch_size, (i + 1) * case.batch_size)
        yield {name: v[rows].to(dtype) if v.is_floating_point() else v[rows] for name, v in arrays.items()}


def state_of(model) -> Arrays:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def train(case: Case, model, arrays: Arrays, settings: Settings, precision: str) -> Trained:
    dtype = torch.float64 if precision == "64-true" else torch.float32
    model = model.to(dtype).train()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(settings.decay), use_buffers=True)
    endless = (batch for _ in iter(int, 1) for batch in batches_of(case, arrays, settings, dtype))
    steps = adversarial_steps if case.adversarial else supervised_steps
    losses = {}
    for logged in steps(case, model, endless, settings, autocast_of(precision)):
        average.update_parameters(model)
        for name, value in logged.items():
            losses.setdefault(name, []).append(value)
    return Trained(losses, state_of(model), state_of(average.module))


def supervised_steps(case, model, batches, settings, autocast):
    optimizer = torch.optim.AdamW(model.parameters(), case.lr, eps=case.eps, weight_decay=settings.weight_decay)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        sum_of_losses = 0.0
        for _ in range(settings.accumulate):
            with autocast():
                loss = case.loss_of(model, next(batches))
            (loss / settings.accumulate).backward()
            sum_of_losses += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        yield {"train_loss": sum_of_losses / settings.accumulate}


def adversarial_steps(case, model, batches, settings, autocast):
    optimizers = model.optimizers(case.lr)
    for _ in range(settings.steps):
        d_loss, g_loss = case.loss_of(model, next(batches), optimizers, autocast)
        yield {"train_d_loss": d_loss, "train_g_loss": g_loss}
