"""C6, Lightning as it is by default."""

import sys
import warnings

import lightning.pytorch as pl
import torch
from first_step import first_step_done
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        logits = self.net(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]), prog_bar=True)
        self.log("val_acc", (logits.argmax(1) == batch[1]).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_train_batch_end(self, *_):
        first_step_done()


def made(samples, prototypes):
    y = torch.randint(10, (samples,))
    return TensorDataset(prototypes[y] + torch.randn(samples, 784), y)


torch.set_num_threads(1)
warnings.filterwarnings("ignore")
pl.seed_everything(1)
centres = torch.randn(10, 784)
trainer = pl.Trainer(
    accelerator="cpu", devices=1, max_steps=1, logger=CSVLogger(sys.argv[1]), default_root_dir=sys.argv[1]
)
trainer.fit(
    Classifier(),
    DataLoader(made(1024, centres), batch_size=64, shuffle=True),
    DataLoader(made(256, centres), batch_size=64),
)
