"""C4, Python's DataLoader: `--mode batch` normalises batch by batch, `--mode sample` sample by sample as torchvision's
transforms do, `--mode work` has a costly transform of each sample; `--mode index` is one index_select for a batch and no
DataLoader."""

import time

from common import cpu_of, prepare, write_report
from images import Images, arguments, measure, normalise, work_on
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate


class Samples(Dataset):
    def __init__(self, images, normalises, works):
        self.x, self.y, self.normalises, self.works = images.x, images.y, normalises, works

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        image = self.x[index]
        if self.works:
            work_on(image)
        return normalise(image) if self.normalises else image, self.y[index]


class GivenOrder(Sampler):
    def __init__(self, order):
        self.order = order
        self.epoch = 0

    def __len__(self):
        return self.order.shape[1]

    def __iter__(self):
        return iter(self.order[self.epoch].tolist())


def collate_normalised(samples):
    x, y = default_collate(samples)
    return normalise(x), y


def main():
    args = arguments()
    prepare()
    images = Images(args)
    if args.mode == "index":

        def start(epoch):
            for rows in images.order[epoch].split(args.batch):
                yield normalise(images.x.index_select(0, rows)), images.y.index_select(0, rows)

        write_report(args.report, measure(args, start, time.process_time))
    order = GivenOrder(images.order)
    by_batch = args.mode == "batch"
    loader = DataLoader(
        Samples(images, not by_batch, args.mode == "work"),
        batch_size=args.batch,
        sampler=order,
        num_workers=args.workers,
        collate_fn=collate_normalised if by_batch else None,
        persistent_workers=args.workers > 0,
    )

    def start(epoch):
        order.epoch = epoch
        return iter(loader)

    def cpu_seconds():
        workers = getattr(loader._iterator, "_workers", []) if args.workers else []
        return time.process_time() + sum(cpu_of(worker.pid) for worker in workers)

    report = measure(args, start, cpu_seconds)
    if args.workers:
        loader._iterator._shutdown_workers()
    write_report(args.report, report)


main()
