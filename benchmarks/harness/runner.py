"""Runs the processes of a benchmark in turn, A B C A B C …."""

import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from spec import Benchmark, Peer, Results


# glibc gives the top of the heap back to the kernel as soon as it is free and takes it again, page by page, for the next
# batch: by the chance of how a heap lies, a program spends none or a third of its time so. No peer has that here.
MALLOC = "glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=33554432"


def _environment(threads: int):
    count = str(threads)
    env = dict(os.environ, OMP_NUM_THREADS=count, MKL_NUM_THREADS=count, GLIBC_TUNABLES=MALLOC, TERM="xterm", COLUMNS="120")
    env.pop("NO_COLOR", None)
    return env


def drain(descriptor, log):
    with open(log, "wb") as file:
        while True:
            try:
                data = os.read(descriptor, 65536)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            file.write(data)


def _run(command, env, log, terminal):
    if not terminal:
        with open(log, "wb") as file:
            return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file).returncode
    ours, theirs = pty.openpty()
    reader = threading.Thread(target=drain, args=(ours, log))
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    reader.start()
    try:
        code = process.wait()
    finally:
        process.kill()
    reader.join()
    os.close(ours)
    return code


class PeerFailed(Exception):
    pass


def measure(peer: Peer, places: dict[str, str], work: Path) -> dict:
    scratch = Path(tempfile.mkdtemp(dir=work))
    report, log = scratch / "report.json", scratch / "log"
    filled = {**places, "scratch": str(scratch), "report": str(report)}
    command = [part.format(**filled) for part in peer.command]
    env = _environment(peer.threads)
    env["BENCH_REPORT"] = str(report)
    env["BENCH_START_NS"] = str(time.monotonic_ns())
    try:
        code = _run(command, env, log, peer.terminal)
        if code != 0 or not report.exists():
            tail = log.read_text(errors="replace")[-4000:]
            raise PeerFailed(f"{peer.name} ended with code {code}: {' '.join(command)}\n{tail}")
        return json.loads(report.read_text())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run(benchmark: Benchmark, places: dict[str, str], work: Path) -> Results:
    inputs = Path(tempfile.mkdtemp(prefix="inputs-", dir=work))
    results = Results(benchmark)
    places = {**places, "inputs": str(inputs)}
    try:
        benchmark.make_inputs(inputs)
        rounds = benchmark.warmup_rounds + benchmark.rounds
        for number in range(rounds):
            warmup = number < benchmark.warmup_rounds
            print(f"[{benchmark.name}] round {number + 1} of {rounds}{' (warm-up)' if warmup else ''}", file=sys.stderr)
            for peer in benchmark.peers:
                report = measure(peer, places, work)
                if not warmup:
                    results.add(peer, report)
    finally:
        shutil.rmtree(inputs, ignore_errors=True)
    return results
