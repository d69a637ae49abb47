"""C15, Lightning's Trainer."""

import logging
import warnings

import lightning.pytorch as pl
import torch
from c15_nets import BATCHES, RATE, arguments, report_of
from c15_torch_nets import make_net, tensors
from common import prepare, write_report
from torch.utils.data import DataLoader


class Trained(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, _):
        return self.net(*batch)

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=RATE, fused=True)


class Stamps(pl.Callback):
    def __init__(self, measured):
        self.measured = measured

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.measured.see(batch_idx, outputs["loss"])


def main():
    args = arguments()
    prepare()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def train(kind, widths, batches, steps, measured):
        batches = tensors(batches)
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            callbacks=[Stamps(measured)],
            default_root_dir=args.scratch,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        cycle = [batches[i % BATCHES] for i in range(steps)]
        trainer.fit(Trained(make_net(kind, widths)), DataLoader(cycle, batch_size=None))

    write_report(args.report, report_of(train, args.divide))


main()
