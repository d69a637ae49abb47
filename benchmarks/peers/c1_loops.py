"""C1: loops over batches made before. `--mode raw` by hand, `fabric`, and Lightning's Trainer `barebones`, `off` (all off but
self.log) or `default`. ../step_overhead.cpp is the same in C++: batches and weights come from the same generator."""

import argparse
import warnings

import torch
from common import Laps, prepare, write_report
from torch import nn

STEPS, EPOCHS, CALLBACKS = 5000, 3, 10


class Batches:
    """A list, which Lightning would take for a list of loaders."""

    def __init__(self):
        torch.manual_seed(1)
        self.made = [(torch.randn(8, 32), torch.randn(8, 2)) for _ in range(STEPS)]

    def __len__(self):
        return len(self.made)

    def __iter__(self):
        return iter(self.made)


def make_layer():
    torch.manual_seed(2)
    return nn.Linear(32, 2)


def by_hand(batches, fabric=None):
    layer = make_layer()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    module = layer
    if fabric:
        module, optimizer = fabric.setup(layer, optimizer)
    backward = fabric.backward if fabric else torch.Tensor.backward
    laps, weights = Laps(), []
    for _ in range(EPOCHS):
        laps.stamp()
        for x, y in batches:
            backward(nn.functional.mse_loss(module(x), y))
            optimizer.step()
            optimizer.zero_grad()
        weights.append(layer.weight.sum().item())
    laps.stamp()
    return laps, weights


def with_trainer(batches, mode, scratch):
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.laps, self.weights = make_layer(), Laps(), []

        def training_step(self, batch, _):
            loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            if mode != "barebones":
                self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def on_train_epoch_start(self):
            self.laps.stamp()

        def on_train_epoch_end(self):
            self.weights.append(self.layer.weight.sum().item())

        def on_train_end(self):
            self.laps.stamp()

    class Idle(pl.Callback):
        def on_train_batch_start(self, *_):
            pass

        def on_train_batch_end(self, *_):
            pass

    options = {
        "barebones": {"barebones": True},
        "off": {
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        },
        "default": {"logger": CSVLogger(scratch)},
    }[mode]
    idle = [type(f"Idle{i}", (Idle,), {})() for i in range(CALLBACKS)]
    net = Net()
    pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=EPOCHS, callbacks=idle, default_root_dir=scratch, **options
    ).fit(net, batches)
    return net.laps, net.weights


def main():
    parser = argparse.ArgumentParser()
    for name in ("mode", "scratch", "report"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    prepare()
    warnings.filterwarnings("ignore")
    batches = Batches()
    if args.mode == "raw":
        laps, weights = by_hand(batches)
    elif args.mode == "fabric":
        from lightning.fabric import Fabric

        laps, weights = by_hand(batches, Fabric(accelerator="cpu", devices=1))
    else:
        laps, weights = with_trainer(batches, args.mode, args.scratch)
    write_report(args.report, {"samples": laps.samples(), "weights": {"sum": weights[:1]}})


main()
