#!/usr/bin/env python3
"""Makes the TorchScript files of fixtures/python/, and baselines/python.json: what their modules compute in Python.

    make_python_baseline.py        needs torch 2.11; batches are formulas, which python_models_test.cpp has too
"""
import json
import os
from typing import Dict, Tuple

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = os.path.join(HERE, "fixtures", "python")


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    def forward(self, x):
        return self.net(x)


class WithLoss(torch.nn.Module):
    """Tied weights, a buffer that is assigned, and a loss."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.second = torch.nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.head = torch.nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.calls = self.calls + 1
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x - self.mean)))))

    @torch.jit.export
    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(output, target) + 0.01 * self.first.weight.square().sum()


class WithSteps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)

    @torch.jit.export
    def training_step(self, x, target) -> Dict[str, torch.Tensor]:
        output = self.forward(x)
        loss = torch.nn.functional.cross_entropy(output, target)
        return {"loss": loss, "spread": output.std()}

    @torch.jit.export
    def validation_step(self, x, target) -> torch.Tensor:
        return (self.forward(x).argmax(1) != target).float().mean()


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 2)

    def forward(self, a, b) -> Tuple[torch.Tensor, torch.Tensor]:
        return self.layer(a) - b, a + 1


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)

    def forward(self, x):
        return self.layer(x)


def batch(step):
    i = torch.arange(8 * 6, dtype=torch.float64)
    x = torch.sin(0.37 * i + step).reshape(8, 6).float()
    return x, (torch.arange(8) * 7 + step) % 3


def fill(module):
    """The same weights in each run of this script."""
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            values = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_((0.4 * torch.cos(1.3 * values + number)).reshape(parameter.shape))
    return module


def train(module, loss, make_optimizer):
    optimizer = make_optimizer(module.parameters())
    module.train()
    losses = []
    for step in range(5):
        x, y = batch(step)
        value = loss(module, x, y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    module.eval()
    with torch.no_grad():
        output = module(batch(9)[0])
    return {"losses": losses, "output": output.flatten().tolist(), "names": sorted(module.state_dict())}


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


def main():
    os.makedirs(FILES, exist_ok=True)
    save = lambda module, name: module.save(os.path.join(FILES, name))
    save(torch.jit.script(fill(Classifier())), "classifier.pt")
    save(torch.jit.script(fill(WithLoss())), "with_loss.pt")
    save(torch.jit.script(fill(WithSteps())), "with_steps.pt")
    save(torch.jit.script(fill(Pair())), "pair.pt")
    save(torch.jit.trace(fill(Regression()), batch(0)[0]), "traced.pt")
    save(torch.jit.freeze(torch.jit.script(fill(Regression()).eval())), "frozen.pt")
    torch.save(Regression().state_dict(), os.path.join(FILES, "state_dict.pt"))
    torch.export.save(torch.export.export(Regression(), (batch(0)[0],)), os.path.join(FILES, "exported.pt2"))

    functional = torch.nn.functional
    cases = []
    for file, make, loss_name, loss in [
        ("classifier.pt", Classifier, "cross_entropy", lambda m, x, y: functional.cross_entropy(m(x), y)),
        ("with_loss.pt", WithLoss, "module", lambda m, x, y: m.loss(m(x), y)),
        ("with_steps.pt", WithSteps, "module", lambda m, x, y: m.training_step(x, y)["loss"]),
    ]:
        for name, optimizer in OPTIMIZERS.items():
            case = train(fill(make()), loss, optimizer)
            cases.append({"file": file, "loss": loss_name, "optimizer": name, **case})
    x, y = batch(0)
    positive = torch.sigmoid(x)
    binary = (x > 0).float()
    losses = {
        "cross_entropy": [functional.cross_entropy(x, y % 6)],
        "nll_loss": [functional.nll_loss(functional.log_softmax(x, 1), y)],
        "binary_cross_entropy": [functional.binary_cross_entropy(positive, binary)],
        "binary_cross_entropy_with_logits": [functional.binary_cross_entropy_with_logits(x, binary)],
        "multi_margin_loss": [functional.multi_margin_loss(x, y)],
        "soft_margin_loss": [functional.soft_margin_loss(x, 2 * binary - 1)],
        "hinge_embedding_loss": [functional.hinge_embedding_loss(x, 2 * binary - 1)],
        "mse_loss": [functional.mse_loss(x, positive)],
        "l1_loss": [functional.l1_loss(x, positive)],
        "smooth_l1_loss": [functional.smooth_l1_loss(x, positive)],
        "huber_loss": [functional.huber_loss(3 * x, positive)],
        "kl_div": [functional.kl_div(functional.log_softmax(x, 1), functional.softmax(2 * x, 1))],
        "poisson_nll_loss": [functional.poisson_nll_loss(x, positive)],
    }
    baseline = {"cases": cases, "functional": {name: value[0].item() for name, value in losses.items()}}
    with open(os.path.join(HERE, "baselines", "python.json"), "w", encoding="utf-8") as file:
        json.dump(baseline, file, separators=(",", ":"))
        file.write("\n")


main()
