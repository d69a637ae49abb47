"""C5, torchvision's ImageFolder and transforms v2, and Python's DataLoader.

`--mode pil`: decoded by PIL and augmented as PIL images, the default of ImageFolder; `--mode tensor`: decoded by
torchvision.io to uint8 tensors, augmented as these and normalised one by one; `--mode batch`: the same, normalised batch
by batch. cpp/c5_fulgur.cpp is the same in C++."""

import argparse
import time
from pathlib import Path

import torch
from common import cpu_of, prepare, write_report
from torch.utils.data import DataLoader, default_collate
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def read_tensor(path):
    return decode_image(read_file(path), ImageReadMode.RGB)


def augmentation(set_name):
    crop = v2.RandomCrop(32, padding=4) if set_name == "cifar" else v2.RandomResizedCrop(224, antialias=True)
    return [crop, v2.RandomHorizontalFlip()]


def normalisation():
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


class CollateNormalised:
    def __init__(self):
        self.transform = v2.Compose(normalisation())

    def __call__(self, samples):
        images, labels = default_collate(samples)
        return self.transform(images), labels


def loader_of(args):
    steps = augmentation(args.case)
    if args.mode == "pil":
        steps += [v2.ToImage(), *normalisation()]
    elif args.mode == "tensor":
        steps += normalisation()
    images = ImageFolder(
        Path(args.inputs) / args.case,
        transform=v2.Compose(steps),
        **({} if args.mode == "pil" else {"loader": read_tensor}),
    )
    return len(images.classes), DataLoader(
        images,
        batch_size=args.batch,
        shuffle=True,
        num_workers=args.workers,
        collate_fn=CollateNormalised() if args.mode == "batch" else None,
        persistent_workers=args.workers > 0,
        generator=torch.Generator().manual_seed(1),
    )


def contents_of(loader, class_count):
    """How many images of each class an epoch has, and the mean and the deviation of all pixels."""
    classes, images, total, squares, pixels = torch.zeros(class_count, dtype=torch.int64), 0, 0.0, 0.0, 0
    for x, y in loader:
        classes += torch.bincount(y, minlength=class_count)
        images += len(x)
        total += x.sum(dtype=torch.float64).item()
        squares += x.square().sum(dtype=torch.float64).item()
        pixels += x.numel()
    mean = total / pixels
    deviation = (squares / pixels - mean * mean) ** 0.5
    return {"images": images, "classes": classes.tolist(), "mean": mean, "deviation": deviation}


def main():
    parser = argparse.ArgumentParser()
    for name in ("mode", "case", "title", "inputs", "report"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("batch", "workers", "epochs"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    prepare()
    torch.manual_seed(1)
    class_count, loader = loader_of(args)
    contents = contents_of(loader, class_count)

    def cpu_seconds():
        workers = loader._iterator._workers if args.workers else []
        return time.process_time() + sum(cpu_of(worker.pid) for worker in workers)

    samples = []
    for _ in range(args.epochs):
        cpu, wall = cpu_seconds(), time.perf_counter()
        for _ in loader:
            pass
        samples.append({"cpu_s": cpu_seconds() - cpu, "wall_s": time.perf_counter() - wall})
    if args.workers:
        loader._iterator._shutdown_workers()
    write_report(args.report, {"cases": {args.title: samples}, "contents": {args.title: contents}})


main()
