"""C9, Lightning's Trainer with `precision`."""

import logging
import warnings

import lightning.pytorch as pl
import torch
from c9_nets import RATE, arguments, loss_of, report_of
from common import prepare, write_report
from torch.utils.data import DataLoader


class Trained(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, _):
        return loss_of(self.net, *batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=RATE, fused=True)


class Stamps(pl.Callback):
    def __init__(self, laps, losses):
        self.laps, self.losses = laps, losses

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())
        self.laps.stamp()


def main():
    args = arguments()
    prepare()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def train(inputs, precision, steps, laps, losses):
        batches = list(zip(inputs.x.split(inputs.batch), inputs.y.split(inputs.batch), strict=True))
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            precision=precision,
            max_steps=steps,
            callbacks=[Stamps(laps, losses)],
            default_root_dir=args.scratch,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Trained(inputs.net()), DataLoader(batches, batch_size=None))

    write_report(args.report, report_of(train, args))


main()
