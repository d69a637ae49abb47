"""What the Python peers of benchmarks/gpu.sh share; cpp/work.cpp makes the same weights and batches."""

import ctypes
import math
import time

import torch


class NotMeasured(Exception):
    """A case that cannot run here, and why."""


def _counter():
    try:
        function = ctypes.CDLL(None).fulgur_host_waits
    except AttributeError:
        return None
    function.restype = ctypes.c_int64
    return function


_waits = _counter()


def host_waits():
    """Times that the host has waited for the device, where libhost_waits.so is preloaded; else -1."""
    return _waits() if _waits else -1


class Stretches:
    """Stamps a run: work up to the first stamp is warm-up; each following one ends a stretch. Waits for the device at stamps only."""

    def __init__(self, device):
        self.device, self.marks = device, []

    def stamp(self):
        waits = host_waits()
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.marks.append((time.perf_counter(), waits, host_waits()))

    def samples(self, steps):
        samples = []
        for (before, _, waits_before), (after, waits_after, _) in zip(self.marks, self.marks[1:]):
            sample = {"step_s": (after - before) / steps}
            if _waits:
                sample["waits"] = (waits_after - waits_before) / steps
            samples.append(sample)
        return samples


def fill_weights(net, gain):
    """The weights that peers have: matrices normal with gain / sqrt(inputs), or 0.02 where gain is 0; biases of 0."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in net.named_parameters():
            if value.dim() >= 2:
                inputs = value.numel() // value.shape[0]
                value.copy_(torch.randn(value.shape, device=value.device) * (gain / math.sqrt(inputs) if gain > 0 else 0.02))
            elif name.endswith("bias"):
                value.zero_()


def count_parameters(net):
    return sum(p.numel() for p in net.parameters())


def make_batches(case, device):
    torch.manual_seed(2)
    batch, batches = case["batch"], []
    for _ in range(case.get("batches", 4)):
        if "image" in case:
            images = torch.randn(batch, 3, case["image"], case["image"], device=device)
            if case.get("memory_format") == "channels_last":
                images = images.contiguous(memory_format=torch.channels_last)
            batches.append((images, torch.randint(case["classes"], (batch,), device=device)))
        elif "vocab" in case:
            sizes = (batch, case["length"])
            tokens = torch.randint(case["vocab"], sizes, device=device)
            batches.append((tokens, torch.randint(case["vocab"], sizes, device=device)))
        else:
            rows = torch.randn(batch, case["width"], device=device)
            batches.append((rows, torch.randint(case["classes"], (batch,), device=device)))
    return batches


def pool_batches(case, device, dtype):
    """Images that lie on the device with their channels innermost, in another order each epoch."""
    torch.manual_seed(2)
    pool, size, batch = case["pool"], case["image"], case["batch"]
    images = torch.randn(pool, size, size, 3, device=device).to(dtype)
    labels = torch.randint(case["classes"], (pool,), device=device)
    while True:
        order = torch.randperm(pool, device=device)
        for i in range(pool // batch):
            rows = order[i * batch : (i + 1) * batch]
            yield images.index_select(0, rows).permute(0, 3, 1, 2), labels.index_select(0, rows)


def again(batches):
    while True:
        yield from batches
