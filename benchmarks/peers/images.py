"""C4: images in memory, and how a loader of them is measured; cpp/images.h is the same in C++."""

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

SCALE, SHIFT = 1 / (255 * 0.3530), -0.2860 / 0.3530
WORK, CONSUMER, CONSUMED = 50e-6, 1e-3, 200
_SHIFT = torch.tensor(SHIFT)


def normalise(x):
    """(N, 28, 28) uint8 to float32 with mean 0 and deviation 1, in one pass."""
    return torch.add(_SHIFT, x, alpha=SCALE)


def work_on(image):
    """The transform of a costly sample: reads the image until it has taken 50 µs of this thread's CPU time."""
    end = time.thread_time() + WORK
    data = memoryview(image.numpy()).cast("B", [784])
    while time.thread_time() < end:
        sum(data[:64])


class Images:
    """Images, labels, and their order in each epoch."""

    def __init__(self, args):
        data = load_file(Path(args.inputs) / "images.safetensors")
        self.x, self.y, self.order = data["x"], data["y"], data["order"]
        if args.samples < len(self.x):
            self.x, self.y = self.x[: args.samples].clone(), self.y[: args.samples].clone()
            self.order = self.order[self.order < args.samples].view(-1, args.samples)


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("mode", "case", "inputs", "report"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("batch", "workers", "samples", "epochs"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def measure(args, start, cpu_seconds):
    """`start(epoch)` gives an iterator over an epoch. Epoch 0 is a warm-up in which the contents are summed up, the last one
    has a consumer that computes for 1 ms."""
    images = labels = first_image = 0.0
    for i, (x, y) in enumerate(start(0)):
        images += x.mean(dtype=torch.float64).item()
        labels += y.sum().item() * (i % 7 + 1)
        if i == 0:
            first_image = x[0].mean().item()
    samples = []
    for epoch in range(1, args.epochs + 1):
        cpu, wall = cpu_seconds(), time.perf_counter()
        batches = start(epoch)
        next(batches)
        first = time.perf_counter() - wall
        for _ in batches:
            pass
        samples.append({"cpu_s": cpu_seconds() - cpu, "wall_s": time.perf_counter() - wall, "first_s": first})
    batches = start(args.epochs + 1)
    next(batches)
    waited, count = 0.0, 0
    while count < CONSUMED:
        until = time.perf_counter() + CONSUMER
        while time.perf_counter() < until:
            pass
        before = time.perf_counter()
        if next(batches, None) is None:
            break
        waited += time.perf_counter() - before
        count += 1
    samples.append({"gap_s": waited / max(count, 1)})
    return {"cases": {args.case: samples}, "contents": {args.case: [images, labels, first_image]}}
