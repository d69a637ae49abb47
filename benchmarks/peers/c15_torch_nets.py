"""C15: the networks in PyTorch."""

import torch
from c15_nets import CELL_INPUTS, CELL_WIDTH, INPUTS, SIDE, WIDTH, weight
from gpt import Gpt
from torch import nn
from torch.nn import functional as F


class Layers(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.count = len(widths) - 1
        for i in range(self.count):
            self.add_module(f"layer{i}", nn.Linear(widths[i], widths[i + 1]))

    def forward(self, x):
        for i in range(self.count):
            x = getattr(self, f"layer{i}")(x if i == 0 else F.relu(x))
        return x


class Mlp(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.net = Layers(widths)

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


class Lstm(nn.Module):
    def __init__(self, _):
        super().__init__()
        self.lstm, self.last = nn.LSTM(INPUTS, WIDTH, batch_first=True), nn.Linear(WIDTH, 1)

    def forward(self, x, y):
        return F.mse_loss(self.last(self.lstm(x)[0][:, -1]), y)


class Cells(nn.Module):
    def __init__(self, _):
        super().__init__()
        self.first, self.second = nn.LSTMCell(CELL_INPUTS, CELL_WIDTH), nn.LSTMCell(CELL_WIDTH, CELL_WIDTH)
        self.last = nn.Linear(CELL_WIDTH, 1)

    def forward(self, x, y):
        first = second = None
        for step in x.unbind(1):
            first = self.first(step, first)
            second = self.second(first[0], second)
        return F.mse_loss(self.last(second[0]), y)


class ConvNet(nn.Module):
    def __init__(self, _):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.last = nn.Linear(SIDE * SIDE, 10)

    def forward(self, x, y):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return F.cross_entropy(self.last(x.flatten(1)), y)


class Dqn(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.online, self.target = Layers(widths), Layers(widths)
        self.target.requires_grad_(False)

    def forward(self, state, action, reward, following, goes_on):
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), 0.005)
            expected = reward + goes_on * self.target(following).max(1).values * 0.99
        return F.smooth_l1_loss(self.online(state).gather(1, action).squeeze(1), expected)


class GptLoss(nn.Module):
    def __init__(self, widths):
        super().__init__()
        classes, tokens, blocks, heads, channels = widths
        self.gpt = Gpt(classes, 4 * tokens, blocks, heads, channels)

    def forward(self, x, y):
        return F.cross_entropy(self.gpt(x).flatten(0, 1), y.flatten())


def make_net(kind, widths):
    net = {"mlp": Mlp, "lstm": Lstm, "cells": Cells, "conv": ConvNet, "dqn": Dqn, "gpt": GptLoss}[kind](widths)
    with torch.no_grad():
        for phase, (name, value) in enumerate(sorted(net.named_parameters())):  # a tied one once
            value.copy_(torch.from_numpy(weight(name, tuple(value.shape), float(phase))))
    return net


def tensors(batches):
    return [tuple(torch.from_numpy(part) for part in batch) for batch in batches]
