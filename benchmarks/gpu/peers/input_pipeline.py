"""Images from the host through PyTorch's DataLoader; cpp/input_pipeline.cpp is Fulgur's."""

import time

import torch
from nets import loss_of, make_net
from torch.utils.data import DataLoader, Dataset
from training import set_conditions
from work import Stretches, count_parameters

COPIES = 20


class Images(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    # All of a batch at once: PyTorch's fastest way to tensors in memory.
    def __getitems__(self, indices):
        rows = torch.tensor(indices)
        return self.x.index_select(0, rows), self.y.index_select(0, rows)


def same(batch):
    return batch


def copy_seconds(case, device, batch):
    cuda = device == "cuda"
    host = [t.pin_memory() for t in batch] if cuda and case["pinned"] else batch
    for i in range(-3, COPIES):
        if i == 0:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
        copy = [t.to(device, non_blocking=True) if cuda else t.clone() for t in host]
    if cuda:
        torch.cuda.synchronize()
    del copy
    return (time.perf_counter() - start) / COPIES


def copied_ahead(batches, device):
    """The next batch goes to the device on a separate stream while this one is computed with."""
    side = torch.cuda.Stream()

    def copy():
        with torch.cuda.stream(side):
            return [t.to(device, non_blocking=True) for t in next(batches)]

    ahead = copy()
    while True:
        current = torch.cuda.current_stream()
        current.wait_stream(side)
        batch = ahead
        for t in batch:
            t.record_stream(current)
        yield batch
        # Behind the step that was asked of the device: the copy runs beside it.
        ahead = copy()


def train(case, device, batches):
    set_conditions({"benchmark": True})
    net = make_net(case, device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
    stretches = Stretches(device)
    for done in range(1, case["warmup"] + case["steps"] * case["stretches"] + 1):
        x, y = (t.to(device, non_blocking=True) for t in next(batches))
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(net, x.permute(0, 3, 1, 2).float().div_(255), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if done >= case["warmup"] and (done - case["warmup"]) % case["steps"] == 0:
            stretches.stamp()
    return stretches.samples(case["steps"]), count_parameters(net)


def endless(loader):
    while True:
        yield from loader


def again(batch):
    while True:
        yield batch


def run_input(case, device, _scratch):
    torch.manual_seed(1)
    pool, size, batch = case["pool"], case["image"], case["batch"]
    x = torch.randint(256, (pool, size, size, 3), dtype=torch.uint8)
    y = torch.randint(case["classes"], (pool,))
    one = (x[:batch], y[:batch])
    copy = copy_seconds(case, device, one)
    compute = min(s["step_s"] for s in train(case, device, again([t.to(device) for t in one]))[0])
    loader = DataLoader(
        Images(x, y),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=case["workers"],
        collate_fn=same,
        pin_memory=case["pinned"] and device == "cuda",
        persistent_workers=case["workers"] > 0,
        prefetch_factor=2 if case["workers"] > 0 else None,
    )
    batches = endless(loader)
    if case["prefetch"] and device == "cuda":
        batches = copied_ahead(batches, device)
    samples, parameters = train(case, device, batches)
    for sample in samples:
        sample |= {"copy_s": copy, "compute_s": compute, "overlap": max(copy, compute) / sample["step_s"]}
    return {"samples": samples, "parameters": parameters}
