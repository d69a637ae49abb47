"""C2, Lightning: `--mode default` with all that a Trainer does by default (CSV log, checkpoints, progress bar, summary) and
one logged value per step; `--mode barebones` with none of it; `--mode best` barebones with the batches and the optimizer
of PyTorch at its best."""

import warnings

import lightning.pytorch as pl
import torch
from common import Laps, prepare, write_report
from lightning.pytorch.loggers import CSVLogger
from mlp import RATE, IndexedBatches, Inputs, Losses, arguments


class Classifier(pl.LightningModule):
    def __init__(self, net, logs, fused):
        super().__init__()
        self.net, self.logs, self.fused = net, logs, fused
        self.losses, self.laps = Losses(), Laps()

    def training_step(self, batch, _):
        loss = self.net.loss(*batch)
        if self.logs:
            self.log("train_loss", loss, prog_bar=True)
        self.losses.add(loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=RATE, fused=self.fused)

    def on_train_epoch_start(self):
        self.laps.stamp()

    def on_train_end(self):
        self.laps.stamp()


def main():
    args = arguments()
    prepare()
    warnings.filterwarnings("ignore")
    inputs = Inputs(args.inputs)
    best = args.mode == "best"
    module = Classifier(inputs.model(), logs=args.mode == "default", fused=True if best else None)
    common = {"accelerator": "cpu", "devices": 1, "max_epochs": args.epochs, "default_root_dir": args.scratch}
    if args.mode == "default":
        trainer = pl.Trainer(logger=CSVLogger(args.scratch), **common)
    else:
        trainer = pl.Trainer(barebones=True, **common)
    trainer.fit(module, IndexedBatches(inputs) if best else inputs.loader())
    write_report(args.report, {"samples": module.laps.samples(), "losses": module.losses.report(module.net, inputs)})


main()
