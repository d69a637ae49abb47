"""C8, Lightning: from fit() with a checkpoint to the first training step, for one at the begin and one late in an epoch."""

import argparse
import logging
import shutil
import time
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from common import prepare, write_report
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

BATCH = 100


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
        self.started_s, self.first_step_s = 0.0, 0.0

    def training_step(self, batch, _):
        if not self.first_step_s:
            self.first_step_s = time.perf_counter() - self.started_s
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--report")
    args = parser.parse_args()
    prepare()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(args.samples, 16), torch.randint(4, (args.samples,)))
    steps = args.samples // BATCH
    folder = args.scratch / "c8_lightning"

    def fit(max_steps, path=None, saving=()):
        torch.manual_seed(2)
        module = Classifier()
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=1,
            max_steps=max_steps,
            default_root_dir=folder,
            callbacks=list(saving),
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=bool(saving),
            logger=False,
        )
        module.started_s = time.perf_counter()
        trainer.fit(module, DataLoader(data, batch_size=BATCH, shuffle=True), ckpt_path=path, weights_only=False)
        return module

    whole = fit(steps)
    rows, equal = {}, True
    for name, at in (("lightning_start", 1), ("lightning_late", steps * 9 // 10)):
        # In mid-epoch: what is saved behind the fit counts as the end of its epoch.
        fit(at, saving=[ModelCheckpoint(folder, filename=name, every_n_train_steps=at, save_top_k=-1)])
        path = folder / f"{name}.ckpt"
        rows[name] = [{"wall_s": fit(at + 1, path).first_step_s} for _ in range(args.rounds)]
        equal = equal and torch.equal(fit(steps, path).layer.weight, whole.layer.weight)
    shutil.rmtree(folder)
    write_report(args.report, {"rows": rows, "equal": equal})


main()
