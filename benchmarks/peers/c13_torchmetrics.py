"""C13, PyTorch by hand: a validation with loss and accuracy, and with metrics of torchmetrics added."""

import argparse
import time
from pathlib import Path

import torch
from common import prepare, write_report
from safetensors.torch import load_file
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

BATCH = 128


def make_net(values):
    conv = [torch.nn.Conv2d(1, 32, 3, padding=1, bias=False), torch.nn.Conv2d(32, 64, 3, padding=1, bias=False)]
    linear = [torch.nn.Linear(64 * 7 * 7, 128), torch.nn.Linear(128, 10)]
    with torch.no_grad():
        for i, layer in enumerate(conv):
            layer.weight.copy_(values[f"conv{i}.weight"])
        for i, layer in enumerate(linear):
            layer.weight.copy_(values[f"head.layer{i}.weight"])
            layer.bias.copy_(values[f"head.layer{i}.bias"])
    # Pooling before ReLU, as CnnClassifier does: the same values at a quarter of the cost.
    parts = [part for i, layer in enumerate(conv) for part in (layer, torch.nn.BatchNorm2d(layer.out_channels), torch.nn.MaxPool2d(2), torch.nn.ReLU())]
    net = torch.nn.Sequential(*parts, torch.nn.Flatten(), linear[0], torch.nn.ReLU(), linear[1])
    return net.to(memory_format=torch.channels_last).eval()


def validate(net, x, y, metrics):
    loss = right = 0.0
    for begin in range(0, len(x), BATCH):
        images, labels = x[begin : begin + BATCH], y[begin : begin + BATCH]
        logits = net(images)
        loss += torch.nn.functional.cross_entropy(logits, labels).item() * len(labels)
        right += (logits.argmax(1) == labels).sum().item()
        for metric in metrics.values():
            metric.update(logits, labels)
    values = {name: metric.compute().item() for name, metric in metrics.items()}
    for metric in metrics.values():
        metric.reset()
    return {"loss": loss / len(x), "acc": right / len(x), **values}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=Path)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--report")
    args = parser.parse_args()
    prepare()
    values = load_file(args.inputs / "c13.safetensors")
    net, x, y = make_net(values), values["x"].contiguous(memory_format=torch.channels_last), values["y"]
    metrics = {
        "accuracy": MulticlassAccuracy(10, average="micro", validate_args=False),
        "f_beta": MulticlassF1Score(10, average="macro", validate_args=False),
        "auroc": MulticlassAUROC(10, thresholds=200, validate_args=False),
    }
    rows = {"torchmetrics_plain": [], "torchmetrics_metrics": []}
    result = {}
    with torch.inference_mode():
        for turn in range(args.rounds + 1):
            for row, used in (("torchmetrics_plain", {}), ("torchmetrics_metrics", metrics)):
                cpu, wall = time.process_time(), time.perf_counter()
                result = validate(net, x, y, used)
                if turn > 0:  # the first one warms up
                    rows[row].append({"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall})
    write_report(args.report, {"rows": rows, "values": result})


main()
