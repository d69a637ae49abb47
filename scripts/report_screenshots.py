#!/usr/bin/env python3
"""Makes docs/images/report-390.png and report-1280.png: a report of two small runs, on a phone and on a desk.

    report_screenshots.py [TRAINER]           trains the runs with TRAINER (default: build/release/bin/trainer)
    report_screenshots.py --page FILE.html    takes a page that exists

It needs Chromium (Debian's package chromium), which may be named in CHROMIUM.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTHS = {390: 2000, 1280: 1400}  # and heights, in pixels
CONFIG = """
seed_everything: 1
trainer:
  max_epochs: 12
  num_threads: 1
  log_every_n_steps: 2
  enable_model_summary: false
  enable_progress_bar: false
  callbacks:
    - {class_path: ModelCheckpoint, init_args: {monitor: val_acc, mode: max, save_top_k: 3}}
    - {class_path: LearningRateMonitor}
    - {class_path: ThroughputMonitor, init_args: {window_size: 50}}
model: {class_path: MlpClassifier, init_args: {in_features: 64, num_classes: 10, hidden: [32]}}
data:
  class_path: SyntheticDataModule
  init_args: {num_train: 2048, num_val: 512, num_test: 64, num_classes: 10, shape: [64], noise: 2.5, batch_size: 32}
optimizer: {class_path: SGD, init_args: {lr: 0.05, momentum: 0.9}}
lr_scheduler: {class_path: CosineAnnealingLR, init_args: {t_max: 12}}
"""


def page_of_two_runs(trainer, folder):
    """Trains two runs in `folder` and returns their report."""
    def call(*arguments):
        subprocess.run([trainer, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    (folder / "demo.yaml").write_text(CONFIG)
    call("fit", "-c", "demo.yaml")
    call("fit", "-c", "demo.yaml", "--optimizer.lr", "0.01", "--model.hidden", "[128]")
    call("report", "fulgur_logs/version_0", "fulgur_logs/version_1", "--quiet")
    return folder / "report.html"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", nargs="?", default=ROOT / "build/release/bin/trainer", type=pathlib.Path)
    parser.add_argument("--page", type=pathlib.Path)
    options = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        parser.error("Chromium was not found: install Debian's package chromium, or set CHROMIUM")
    images = ROOT / "docs/images"
    images.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        page = options.page.resolve() if options.page else page_of_two_runs(options.trainer.resolve(), folder)
        for width, height in WIDTHS.items():
            image = images / f"report-{width}.png"
            # Chromium's sandbox does not work for root, and the page is our own.
            subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                            f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}",
                            f"--screenshot={image}", page.as_uri()], check=True, stderr=subprocess.DEVNULL)
            print(image)


if __name__ == "__main__":
    main()
