"""Steps of PyTorch by hand, compiled, captured, and of Lightning, on batches that lie on the device; cpp/training.cpp is Fulgur's."""

import contextlib
import csv
import os

import torch
from nets import loss_of, make_net
from torch import nn
from work import NotMeasured, Stretches, again, count_parameters, fill_weights, make_batches, pool_batches

HALF = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16, "bf16-true": torch.bfloat16, "16-true": torch.float16}


def set_conditions(case):
    matmul = case.get("matmul", "highest")
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = matmul != "highest"
    torch.backends.cudnn.benchmark = case.get("benchmark", False)


def make_optimizer(case, net, **options):
    parameters = [p for p in net.parameters() if p.requires_grad]
    if case.get("optimizer", "adamw") == "adamw":
        return torch.optim.AdamW(parameters, lr=case["lr"], **options)
    return torch.optim.SGD(parameters, lr=case["lr"], momentum=0.9, nesterov=True, **options)


def prepared_net(case, device):
    net = make_net(case, device)
    fill_weights(net, 0 if case["model"] == "gpt" else 1.4)
    if case.get("precision", "32-true").endswith("-true") and case.get("precision", "32-true") != "32-true":
        for part in net.modules():
            if not isinstance(part, nn.BatchNorm2d):
                for p in part.parameters(recurse=False):
                    p.data = p.data.to(HALF[case["precision"]])
    if case.get("memory_format") == "channels_last":
        net.to(memory_format=torch.channels_last)
    return net


def batches_of(case, device):
    if "pool" in case:
        precision = case.get("precision", "32-true")
        return pool_batches(case, device, HALF[precision] if precision in ("bf16-true", "16-true") else torch.float32)
    return again(make_batches(case, device))


class Loop:
    """One step of a loop by hand: eager or compiled, its whole step captured where `way` is graph."""

    def __init__(self, case, net, device):
        way, precision = case["way"], case.get("precision", "32-true")
        fused = case.get("fused", True)
        self.net = net
        options = {"fused": True} if fused else {}
        if way == "graph":
            options["capturable"] = True
        if case.get("optimizer") == "sgd":
            options.pop("capturable", None)
        self.optimizer = make_optimizer(case, net, **options)
        self.scaler = torch.amp.GradScaler(device) if precision == "16-mixed" else None
        self.autocast = (
            (lambda: torch.autocast(device, HALF[precision], cache_enabled=way != "graph")) if precision.endswith("mixed") else contextlib.nullcontext
        )
        self.loss = torch.compile(loss_of, mode="reduce-overhead") if way == "compile" else loss_of
        update = self.optimizer.step
        self.update = torch.compile(lambda: update(), mode="reduce-overhead") if case.get("compile_optimizer") else update
        self.graph = self.static = None
        self.count = 0
        self.way = way

    def eager(self, x, y):
        if self.way == "compile":
            # The optimizer's graph is of the same step: the loss is read after it.
            torch.compiler.cudagraph_mark_step_begin()
        with self.autocast():
            loss = self.loss(self.net, x, y)
        if self.scaler:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def captured(self, x, y):
        self.count += 1
        if self.count <= 3:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = self.eager(x, y)
            torch.cuda.current_stream().wait_stream(side)
            return loss
        if self.graph is None:
            self.static = (x.clone(), y.clone())
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.output = self.eager(*self.static)
        else:
            self.static[0].copy_(x, non_blocking=True)
            self.static[1].copy_(y, non_blocking=True)
        self.graph.replay()
        return self.output

    def step(self, x, y):
        return self.captured(x, y) if self.way == "graph" else self.eager(x, y)


def by_hand(case, device, scratch):
    net = prepared_net(case, device)
    loop = Loop(case, net, device)
    batches, stretches, losses = batches_of(case, device), Stretches(device), []
    # Logged by hand: `.item()` each step that is written, or each step where `item` is true.
    every = case["log_every"] if case.get("log") else 0
    total = case["warmup"] + case["steps"] * case["stretches"]
    with open(os.path.join(scratch, "log.csv"), "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for done in range(1, total + 1):
            loss = loop.step(*next(batches))
            if case.get("item"):
                value = loss.item()
            if every and done % every == 0:
                writer.writerow((done, value if case.get("item") else loss.item()))
            if done in (1, total):
                first_or_last = loss.clone()
            if done == 1:
                losses.append(first_or_last.item())
            if done >= case["warmup"] and (done - case["warmup"]) % case["steps"] == 0:
                stretches.stamp()
    losses.append(first_or_last.item())
    return stretches, losses, net


def with_lightning(case, device, scratch):
    try:
        import lightning.pytorch as pl
        from lightning.pytorch.loggers import CSVLogger
    except ImportError as error:
        raise NotMeasured(f"Lightning is not there: {error}") from error
    import logging
    import warnings

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    total = case["warmup"] + case["steps"] * case["stretches"]

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = prepared_net(case, device)

        def training_step(self, batch, _):
            loss = loss_of(self.net, *batch)
            if case.get("log"):
                self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            return make_optimizer(case, self.net, **({"fused": True} if case.get("fused", True) else {}))

    class Stamping(pl.Callback):
        def __init__(self):
            self.done, self.losses, self.stretches = 0, [], Stretches(device)

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.done += 1
            if self.done == 1:
                self.losses.append(outputs["loss"].item())
            if self.done >= case["warmup"] and (self.done - case["warmup"]) % case["steps"] == 0:
                self.stretches.stamp()
            if self.done == total:
                self.losses.append(outputs["loss"].item())

    class Batches:
        def __len__(self):
            return total

        def __iter__(self):
            batches = batches_of(case, device)
            return (next(batches) for _ in range(total))

    module, stamping = Module(), Stamping()
    pl.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        max_epochs=1,
        precision=case.get("precision", "32-true"),
        benchmark=case.get("benchmark", False),
        log_every_n_steps=case.get("log_every", 50),
        logger=CSVLogger(scratch) if case.get("log") else False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=scratch,
        callbacks=[stamping],
    ).fit(module, Batches())
    return stamping.stretches, stamping.losses, module.net


def run_training(case, device, scratch):
    if case["way"] in ("graph", "compile") and device == "cpu" and not case.get("on_cpu"):
        raise NotMeasured("CUDA graphs, those of torch.compile(mode=\"reduce-overhead\") too, are of a GPU")
    if case["way"] == "compile":
        try:
            import triton  # noqa: F401
        except ImportError as error:
            raise NotMeasured("torch.compile needs triton, which is not there") from error
        torch._dynamo.reset()
    set_conditions(case)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    stretches, losses, net = (with_lightning if case["way"] == "lightning" else by_hand)(case, device, scratch)
    samples = stretches.samples(case["steps"])
    if device == "cuda":
        for sample in samples:
            sample["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
            sample["peak_reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
    return {"samples": samples, "parameters": count_parameters(net), "losses": losses}
