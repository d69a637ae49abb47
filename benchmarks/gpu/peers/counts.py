"""What steady steps of PyTorch by hand and of Lightning ask of the device; cpp/counts.cpp is Fulgur's side."""

import ctypes
import os

import torch
from input_pipeline import Images, same
from nets import loss_of, make_net
from torch.utils.data import DataLoader
from training import Loop, set_conditions
from work import NotMeasured, count_parameters, fill_weights


def counts():
    try:
        read = ctypes.CDLL("libcudart.so.13").simulated_cuda_counts
    except (OSError, AttributeError):
        raise NotMeasured("steps are counted on simulated CUDA only (scripts/simulated_gpu.sh)") from None
    values = (ctypes.c_uint64 * 64)()
    read(values)
    return list(values)


def make_loader(case):
    """cpp/counts.cpp makes the same batches."""
    torch.manual_seed(2)
    ranks, batch = case.get("ranks", 1), case["batch"]
    rows = batch * case["total"] * ranks
    if "vocab" in case:
        x, y = (torch.randint(case["vocab"], (rows, case["length"])) for _ in range(2))
    else:
        size = case.get("image", 0)
        if case.get("bytes"):
            x = torch.randint(256, (rows, size, size, 3), dtype=torch.uint8)
        elif size:
            x = torch.randn(rows, case.get("channels", 3), size, size)
        else:
            x = torch.randn(rows, case["width"])
        y = torch.randint(case["classes"], (rows,))
    dataset = Images(x, y)
    order = torch.randperm(rows).tolist() if ranks == 1 else torch.utils.data.DistributedSampler(dataset, shuffle=False)
    return DataLoader(dataset, batch_size=batch, sampler=order, collate_fn=same, pin_memory=True, num_workers=case.get("workers", 0))


def prepared_net(case, device):
    net = make_net(case, device)
    fill_weights(net, 0 if case["model"] == "gpt" else 1.4)
    return net.to(memory_format=torch.channels_last) if case.get("memory_format") == "channels_last" else net


def loss_function(case):
    if not case.get("bytes"):
        return loss_of
    return lambda net, x, y: loss_of(net, x.permute(0, 3, 1, 2).float().div_(255), y)


def make_schedule(case, optimizer):
    if "one_cycle" not in case:
        return None
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=case["lr"], total_steps=case["total"], cycle_momentum=case["cycle_momentum"])


def formats(case, x):
    return {"memory_format": torch.channels_last} if case.get("memory_format") == "channels_last" and x.is_floating_point() and x.dim() == 4 else {}


class Counting:
    """Reads the counters after the steps `from` and `to`."""

    def __init__(self, case):
        self.case, self.done, self.losses, self.result = case, 0, [], {}

    def step(self, loss):
        self.done += 1
        if self.done in (1, 2, 5, 10, self.case["total"]):
            self.losses.append(loss.item())
        if self.done == self.case["from"]:
            self.result["first"] = counts()
            # A run begins with the whole model.
            if "sharding" in self.case:
                torch.cuda.reset_peak_memory_stats()
        if self.done == self.case["to"]:
            self.result |= {"last": counts(), "peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()}


def shard(case, net):
    """FSDP2, with the units of Fulgur: each block, and the rest."""
    from torch.distributed.fsdp import fully_shard

    frees = case["sharding"] == "parameters"
    for block in net.blocks:
        fully_shard(block, reshard_after_forward=frees)
    fully_shard(net, reshard_after_forward=frees)


def by_hand(case, device, counting):
    net = prepared_net(case, device)
    graphed = case["way"] == "graph"
    if "sharding" in case:
        shard(case, net)
    # A captured step reads a rate that moves from the device.
    lr = {"lr": torch.tensor(case["lr"], device=device)} if graphed and "one_cycle" in case else {}
    loop = Loop(case | lr, net, device)
    loop.loss = loss_function(case)
    if case.get("ranks", 1) > 1 and "sharding" not in case:
        loop.net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[torch.device(device).index])
    schedule = make_schedule(case, loop.optimizer)

    def update():
        if "clip" in case:
            torch.nn.utils.clip_grad_norm_(net.parameters(), case["clip"])
        loop.optimizer.step()

    loop.update = update
    # One stream for all warm-ups: cuBLAS takes a workspace for each.
    side = torch.cuda.Stream() if graphed else torch.cuda.current_stream()
    graph = static = output = None
    for number, batch in enumerate(make_loader(case)):
        if number == 0:
            torch.manual_seed(3)
        if graphed and number >= 3:
            if graph is None:
                static = [t.to(device, **formats(case, t)) for t in batch]
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # workers pin memory meanwhile
                    output = loop.eager(*static)
            else:
                for to, t in zip(static, batch):
                    to.copy_(t, non_blocking=True)
            graph.replay()
            loss = output
        else:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = loop.eager(*(t.to(device, non_blocking=True, **formats(case, t)) for t in batch))
            torch.cuda.current_stream().wait_stream(side)
        if schedule:
            schedule.step()
        if case.get("item"):
            loss.item()
        counting.step(loss)
    return net


def with_lightning(case, device, scratch, counting):
    try:
        import lightning.pytorch as pl
    except ImportError as error:
        raise NotMeasured(f"Lightning is not there: {error}") from error

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = prepared_net(case, device)

        def training_step(self, batch, _):
            x, y = batch
            loss = loss_function(case)(self.net, x.to(**formats(case, x)) if formats(case, x) else x, y)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            options = {"lr": case["lr"], "fused": True}
            if case.get("optimizer", "adamw") == "sgd":
                return torch.optim.SGD(self.parameters(), momentum=0.9, nesterov=True, **options)
            optimizer = torch.optim.AdamW(self.parameters(), **options)
            schedule = make_schedule(case, optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}} if schedule else optimizer

    class Stamping(pl.Callback):
        def on_train_start(self, *_):
            torch.manual_seed(3)

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            counting.step(outputs["loss"])

    module = Module()
    precision = case.get("precision", "32-true")
    trainer = pl.Trainer(accelerator="gpu", devices=1, max_epochs=1, precision=precision, default_root_dir=scratch, callbacks=[Stamping()])
    trainer.fit(module, make_loader(case))
    return module.net


def run_counts(case, device, scratch):
    counts()
    set_conditions(case)
    if case.get("ranks", 1) > 1:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl")
    counting = Counting(case)
    net = with_lightning(case, device, scratch, counting) if case["way"] == "lightning" else by_hand(case, device, counting)
    return counting.result | {"parameters": count_parameters(net), "losses": counting.losses}
