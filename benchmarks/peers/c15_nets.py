"""C15: what the Python peers train; cpp/c15_fulgur.cpp is the same in C++. `filled`, `labels` and the tables need numpy
alone, for JAX."""

import argparse

import numpy as np

BATCHES, WARMUPS, LAPS, RATE = 16, 20, 3, 1e-3
LENGTH, INPUTS, WIDTH, SIDE = 32, 8, 64, 16  # of the LSTM; of the images
CELL_LENGTH, CELL_INPUTS, CELL_WIDTH = 12, 16, 32
# Title: (kind, widths, batches, steps of a lap). Those of a GPT: classes, tokens, blocks, heads, channels.
CASES = {
    "MLP 32-16-10": ("mlp", (32, 16, 10), (1, 8, 64), 4000),
    "MLP 128-64-64-8": ("mlp", (128, 64, 64, 8), (1, 8, 64), 2000),
    "MLP 784-128-10": ("mlp", (784, 128, 10), (1, 8, 64), 1000),
    "LSTM of width 64, 32 steps": ("lstm", (), (1, 8, 64), 200),
    "LSTM cells, 2 layers of width 32, 12 steps": ("cells", (), (1, 8, 64), 100),
    "conv net 16 x 16": ("conv", (), (1, 8, 64), 400),
    "DQN update": ("dqn", (4, 64, 64, 2), (1, 8, 64), 1000),
    "GPT of 2 blocks of width 32, 16 tokens": ("gpt", (64, 16, 2, 4, 32), (1, 4, 64), 200),
    "GPT of 6 blocks, 64 tokens": ("gpt", (256, 64, 6, 6, 384), (1,), 6),
}
# Outputs without gradients.
PREDICTIONS = {"predict through MLP 32-16-10": ("mlp", (32, 16, 10), (1,), 20000)}


def filled(shape, phase):
    i = np.arange(np.prod(shape), dtype=np.float64)
    return np.sin(i * 0.37 + i * i * 1e-3 + phase).reshape(shape).astype(np.float32)


def inputs(shape, batch):
    return filled(shape, 1000.0 + batch)


def labels(shape, batch, classes):
    return ((np.arange(np.prod(shape), dtype=np.int64) * 7 + batch * 3) % classes).reshape(shape)


def weight(name, shape, phase):
    if len(shape) == 1:
        return np.full(shape, 1.0 if name.endswith("weight") else 0.0, np.float32)
    return (filled(shape, phase) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def make_batch(kind, widths, samples, number):
    n = number
    if kind == "mlp":
        return inputs((samples, widths[0]), n), labels((samples,), n, widths[-1])
    if kind == "lstm":
        return inputs((samples, LENGTH, INPUTS), n), inputs((samples, 1), n + 500)
    if kind == "cells":
        return inputs((samples, CELL_LENGTH, CELL_INPUTS), n), inputs((samples, 1), n + 500)
    if kind == "conv":
        return inputs((samples, 1, SIDE, SIDE), n), labels((samples,), n, 10)
    if kind == "dqn":
        goes_on = (labels((samples,), n, 5) != 0).astype(np.float32)
        return (
            inputs((samples, 4), n),
            labels((samples, 1), n, 2),
            inputs((samples,), n + 500),
            inputs((samples, 4), n + 900),
            goes_on,
        )
    classes, tokens = widths[:2]
    return labels((samples, tokens), n, classes), labels((samples, tokens), n + 1, classes)


def arguments(*modes):
    parser = argparse.ArgumentParser()
    for name in ("scratch", "report"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--divide", type=int, required=True)
    if modes:
        parser.add_argument("--mode", choices=modes, required=True)
    return parser.parse_args()


class Measured:
    """The losses of the first steps, or the mean squares of predictions, then a stamp after each lap."""

    def __init__(self, steps):
        from time import perf_counter, process_time

        self.steps, self.losses, self.stamps = steps, [], []
        self.clocks = lambda: (process_time(), perf_counter())

    def see(self, index, loss):
        if index < WARMUPS:
            self.losses.append(float(loss))
        if self.ends_lap(index):
            float(loss)  # where steps are asynchronous
            self.stamps.append(self.clocks())

    def see_prediction(self, index, output):
        if index < WARMUPS:
            self.losses.append(float((output * output).mean()))
        if self.ends_lap(index):
            float(output[0, 0])
            self.stamps.append(self.clocks())

    def ends_lap(self, index):
        return index + 1 >= WARMUPS and (index + 1 - WARMUPS) % self.steps == 0

    def samples(self):
        pairs = zip(self.stamps, self.stamps[1:])
        return [{"cpu_s": (b[0] - a[0]) / self.steps, "wall_s": (b[1] - a[1]) / self.steps} for a, b in pairs]


def report_of(train, predict, divide):
    """`train(kind, widths, batches, steps, measured)`, or predict, for each case."""
    report = {"cases": {}, "losses": {}}
    for run, cases in ((train, CASES), (predict, PREDICTIONS)):
        for title, (kind, widths, sizes, steps) in cases.items():
            for samples in sizes:
                batches = [make_batch(kind, widths, samples, number) for number in range(BATCHES)]
                measured = Measured(max(steps // divide, 2))
                run(kind, widths, batches, WARMUPS + LAPS * measured.steps, measured)
                report["cases"][f"{title}, batch {samples}"] = measured.samples()
                report["losses"][f"{title}, batch {samples}"] = measured.losses
    return report
