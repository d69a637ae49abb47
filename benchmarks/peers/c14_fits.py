"""C14: `trainer fit` without callbacks and loggers and with everything, in turn, beside a stand-in for MLflow's server."""

import argparse
import json
import os
import shutil
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BARE = ["--trainer.callbacks", "[]", "--trainer.logger", "false"]
COMMON = [
    "--trainer.num_threads", "1",
    "--trainer.max_epochs", "1",
    "--trainer.accelerator", "cpu",
    "--trainer.enable_progress_bar", "false",
    "--trainer.enable_model_summary", "false",
    "--trainer.num_sanity_val_steps", "0",
]  # fmt: skip


class Server(BaseHTTPRequestHandler):
    """Accepts whatever MLflowLogger sends, and counts the values of metrics."""

    protocol_version = "HTTP/1.1"
    received = 0

    def answer(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def read(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self):
        self.read()
        self.answer({"experiment": {"experiment_id": "1"}})

    def do_POST(self):
        body = json.loads(self.read() or b"{}")
        Server.received += len(body.get("metrics", []))
        self.answer({"run": {"info": {"run_id": "1", "experiment_id": "1", "artifact_uri": "mlflow-artifacts:/1/1/artifacts"}}})

    def do_PUT(self):
        self.read()
        self.answer({})

    def log_message(self, *_):
        pass


def fit(args, options, folder):
    command = [args.trainer, "fit", "--config", args.suite.parent.parent / "configs" / "fashion_mnist_cnn.yaml", *options, *COMMON]
    command += ["--trainer.limit_train_batches", args.batches, "--trainer.default_root_dir", folder, "--report", folder / "report.json"]
    folder.mkdir(parents=True)
    with open(folder / "log", "wb") as log:
        began = time.perf_counter()
        process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"trainer fit ended with {process.returncode}:\n{(folder / 'log').read_text()[-3000:]}")
    loss = json.loads((folder / "report.json").read_text())["metrics"]["train_loss"]
    shutil.rmtree(folder)
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": time.perf_counter() - began}, loss


def main():
    parser = argparse.ArgumentParser()
    for name in ("trainer", "batches", "report"):
        parser.add_argument(f"--{name}")
    for name in ("suite", "scratch"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--rounds", type=int)
    args = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["C14_SERVER"] = f"http://127.0.0.1:{server.server_address[1]}"
    everything = ["--config", args.suite / "c14_everything.yaml"]
    rows, losses = {"bare": [], "everything": []}, set()
    for turn in range(args.rounds):
        for row, options in (("bare", BARE), ("everything", everything)):
            sample, loss = fit(args, options, args.scratch / f"{row}{turn}")
            rows[row].append(sample)
            losses.add(loss)
    with open(args.report, "w", encoding="utf-8") as report:
        json.dump({"rows": rows, "received": Server.received, "equal": len(losses) == 1}, report)


main()
