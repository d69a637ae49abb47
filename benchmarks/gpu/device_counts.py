"""Counts what steps of Fulgur, PyTorch and Lightning ask of a simulated GPU; called by benchmarks/device_counts.sh."""

import argparse
import json
import math
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "harness"))
from runner import drain  # noqa: E402

ROOT = HERE.parent.parent
HEADER = ROOT / "simulated_cuda/include/fulgur/simulated_cuda/simulated_cuda.h"
FROM, TO, TOTAL = 20, 40, 45
SAVED_AT = 30
LOSS_TOLERANCE = {"32-true": 1e-3}  # relative; mixed precisions: MIXED_TOLERANCE
MIXED_TOLERANCE = 2e-2
COMPARED_LOSSES = 3  # the first ones
BASE, FUSED = "Fulgur", "PyTorch by hand, fused optimizer"
CLIPPED = "PyTorch by hand, fused, clipping, `.item()`"
DDP = "PyTorch DDP in 2 processes, fused, one of them"
FSDP = "PyTorch fully_shard in 2 processes, {}, fused, one of them"
LIMIT_S = 300


@dataclass
class Row:
    title: str
    program: str  # fulgur: gpu_bench; torch: peers/torch_bench.py
    case: dict
    group: str = ""  # rows of one group have the same losses
    terminal: bool = False
    beyond: str = ""  # counts are those beyond the steps of this row


@dataclass
class Table:
    name: str
    title: str
    rows: list[Row] = field(default_factory=list)


def header_fields():
    """The counters' names, in the order of their places."""
    struct = re.search(r"struct SimulatedCudaCounts \{(.*?)\n\};", HEADER.read_text(encoding="utf-8"), re.DOTALL).group(1)
    text = re.sub(r"//.*", "", struct)
    return [name.strip() for line in re.findall(r"uint64_t\s+([^;]+);", text) for name in line.split(",")]


def tables():
    mlp = {"model": "mlp", "lr": 1e-4, "batch": 64, "depth": 10, "width": 256, "classes": 10}
    # Layers as in G4; width, vocabulary and length only change the sizes of the same kernels.
    gpt = {
        "model": "gpt", "lr": 3e-4, "batch": 2, "length": 32, "layers": 12, "width": 96, "heads": 12, "vocab": 512,
        "precision": "bf16-mixed", "matmul": "high",
    }  # fmt: skip
    # Images small enough for a CPU, but with several values to a channel in the last norms, and a rate at which rounding does not grow.
    sgd = {"model": "resnet", "optimizer": "sgd", "lr": 1e-4, "batch": 8, "image": 64, "width": 8, "classes": 10, "matmul": "high"}
    resnet = sgd | {"depths": [3, 4, 6, 3], "memory_format": "channels_last"}
    images = sgd | {"depths": [1, 1], "memory_format": "channels_last", "precision": "bf16-mixed", "bytes": True, "workers": 2}
    cnn = {
        "model": "cnn", "lr": 0.003, "batch": 128, "image": 28, "channels": 1, "classes": 10, "dropout": 0.25,
        "one_cycle": True, "cycle_momentum": True,
    }  # fmt: skip
    made = [
        ("mlp", "G1: MLP 10 x 256, batch 64, AdamW, float32", mlp, True),
        ("gpt", "G4: GPT of GPT-2's 12 layers, bf16-mixed, AdamW", gpt, False),
        ("resnet32", "G6: ResNet-50's shape, float32, SGD", resnet, False),
        ("resnet", "G6: ResNet-50's shape, bf16-mixed, SGD", resnet | {"precision": "bf16-mixed"}, False),
        # PyTorch's fused SGD computes with momentum that it never wrote where the first step overflows.
        ("resnet16", "G6: ResNet-50's shape, 16-mixed, AdamW", resnet | {"precision": "16-mixed", "optimizer": "adamw", "lr": 1e-5}, False),
        ("images", "G8: bytes of images through 2 workers, a small net, bf16-mixed, SGD", images, False),
        ("cnn", "Quickstart: configs/fashion_mnist_cnn.yaml", cnn, True),
    ]
    # Wide enough for weights to be most of the memory.
    sharded = gpt | {"width": 384, "vocab": 2048, "layers": 8, "precision": "32-true", "matmul": "highest", "ranks": 2}
    return [_table(name, title, case, variants) for name, title, case, variants in made] + [_sharded_table(sharded)]


def _sharded_table(case):
    case = {"kind": "counts", "from": FROM, "to": TO, "total": TOTAL} | case
    rows = [Row("Fulgur, ddp", "fulgur", case), Row(DDP, "torch", case | {"way": "eager", "fused": True})]
    for sharding in ("optimizer", "gradients", "parameters"):
        rows.append(Row(f"Fulgur, fsdp, {sharding}", "fulgur", case | {"sharding": sharding}))
    for sharding in ("gradients", "parameters"):
        rows.append(Row(FSDP.format(sharding), "torch", case | {"way": "eager", "fused": True, "sharding": sharding}))
    return Table("fsdp", "GPT of 8 layers of width 384 in 2 processes, one of them, AdamW, float32", rows)


def _table(name, title, case, variants):
    base = {"kind": "counts", "from": FROM, "to": TO, "total": TOTAL} | case
    # Momentum that a schedule moves cannot be captured: rows with a graph keep it where it is, and have losses of their own.
    graphed = base | ({"cycle_momentum": False} if "one_cycle" in base else {})
    own = "graph" if "one_cycle" in base else ""
    graph = {"capture": True}
    rows = [Row(BASE, "fulgur", base), Row("Fulgur, capture", "fulgur", graphed | graph, own)]
    if variants:
        # Batch norm exchanges its buffers between ranks; an MLP shows what gradients cost.
        clip, each = {"clip": 1.0}, {"log_every": 1}
        saves = {"save_every": SAVED_AT, "from": SAVED_AT - 1, "to": SAVED_AT + 9}
        bar = {"progress_bar": True}
        ddp = {"ranks": 2}
        rows += [
            Row("Fulgur, a row written", "fulgur", base | each),
            Row("Fulgur, clipping", "fulgur", base | clip, "clip"),
            Row("Fulgur, the progress bar drawn", "fulgur", base | bar, terminal=True),
            Row("Fulgur, a row written, clipping, the bar drawn", "fulgur", base | each | clip | bar, "clip", True),
            Row("Fulgur, capture, a row written, clipping, the bar drawn", "fulgur", graphed | graph | each | clip | bar, "clip" + own, True),
            Row("Fulgur, what a checkpoint adds", "fulgur", base | saves, beyond=BASE),
        ]
        if name == "mlp":
            rows.append(Row("Fulgur, ddp in 2 processes, one of them", "fulgur", base | ddp, "ddp"))
    by_hand = {"way": "eager", "fused": True}
    rows += [
        Row("PyTorch by hand", "torch", base | by_hand | {"fused": False}),
        Row(FUSED, "torch", base | by_hand),
        Row("PyTorch, the whole step in a CUDA graph", "torch", graphed | {"way": "graph", "fused": True}, own),
        Row("Lightning, its defaults", "torch", base | {"way": "lightning"}, terminal=True),
    ]
    if variants:
        rows += [
            Row(CLIPPED, "torch", base | by_hand | clip | {"item": True}, "clip"),
        ]
        if name == "mlp":
            rows.append(Row(DDP, "torch", base | by_hand | ddp, "ddp"))
    return Table(name, title, rows)


def _free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Runner:
    def __init__(self, args, work):
        self.args, self.work = args, work
        self.fields = header_fields()

    def run(self, row):
        """The row's counts between the two steps, or why there are none."""
        scratch = Path(tempfile.mkdtemp(dir=self.work))
        try:
            return self._run(row, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _run(self, row, scratch):
        program = [str(self.args.bin / "gpu_bench")] if row.program == "fulgur" else [self.args.python, str(HERE / "peers/torch_bench.py")]
        if row.program == "fulgur" and not Path(program[0]).exists():
            return {"reason": "gpu_bench is not there (cmake --build build/release --target gpu_benchmarks)"}
        plan, log = scratch / "plan.json", scratch / "log"
        plan.write_text(json.dumps([row.case | {"id": row.title}]), encoding="utf-8")
        ranks = row.case.get("ranks", 1)
        env = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", TERM="xterm", COLUMNS="120")
        env |= {"SIMULATED_CUDA_DEVICES": str(ranks), "SIMULATED_CUDA_SCHEDULE": "immediate"}
        place = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        ours = theirs = reader = None
        if row.terminal:
            ours, theirs = pty.openpty()
            reader = threading.Thread(target=drain, args=(ours, log))
            reader.start()
        else:
            theirs = os.open(log, os.O_WRONLY | os.O_CREAT)
        processes, reason = [], ""
        try:
            for rank in range(ranks):
                files = ["--device", "cuda", "--plan", str(plan), "--report", str(scratch / f"report{rank}.json"), "--scratch", str(scratch)]
                of_rank = place | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
                command = [str(ROOT / "scripts/simulated_gpu.sh"), *program, *files]
                processes.append(subprocess.Popen(command, env=env | of_rank, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True))
            for process in processes:
                code = process.wait(timeout=LIMIT_S)
                if code:
                    reason = reason or f"it ended with code {code}"
        except subprocess.TimeoutExpired:
            reason = f"it took longer than {LIMIT_S} s"
        finally:
            for process in processes:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            os.close(theirs)
            if reader:
                reader.join()
                os.close(ours)
        try:
            found = json.loads((scratch / "report0.json").read_text(encoding="utf-8"))[0]
        except (OSError, ValueError, IndexError):
            found = {}
        reason = reason or found.get("not_measured") or found.get("failed") or ("" if "last" in found else "it did not come to the last step")
        if self.args.verbose or reason:
            sys.stderr.write(log.read_text(errors="replace")[-3000:])
        if reason:
            return {"reason": reason}
        change = {name: last - first for name, first, last in zip(self.fields, found["first"], found["last"]) if not name.endswith(("_live", "_peak"))}
        kept = {key: found[key] for key in ("parameters", "losses", "peak_allocated", "peak_reserved") if key in found}
        return {"change": change, "steps": row.case["to"] - row.case["from"]} | kept


def per_step(row, results):
    """Counts of one step; of a row that goes beyond another, what is left without that row's steps."""
    found = results[row.title]
    change, steps = found["change"], found["steps"]
    if not row.beyond:
        return {name: value / steps for name, value in change.items()}
    base = results[row.beyond]
    return {name: value - steps * base["change"][name] / base["steps"] for name, value in change.items()}


def _number(value):
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-9 else f"{value:,.2f}"


def _parts(counts, total, parts):
    """A total, and what it is made of."""
    named = [f"{_number(counts[name])} {title}" for name, title in parts.items() if counts[name]]
    return _number(total) + (f" ({', '.join(named)})" if named else "")


WAITS = {"waits_stream": "stream", "waits_device": "device", "waits_event": "event", "waits_copy": "copy", "waits_pageable_copy": "pageable copy", "waits_free": "free"}
COPIES = {"to_device": "to device", "to_host": "to host", "on_device": "on device", "between_devices": "between devices"}
COLUMNS = ["launches (in libraries)", "graph launches", "host waits", "copies", "bytes copied", "memsets", "cudaMalloc", "cudaHostAlloc", "peak MiB", "reserved MiB"]


def waits_of(counts):
    return sum(counts[name] for name in WAITS)


def cells(counts, found):
    library = counts["library_launches"]
    copies = {f"copies_{key}": title for key, title in COPIES.items()}
    sizes = {f"bytes_{key}": title for key, title in COPIES.items()}
    return [
        _number(counts["launches"]) + (f" ({_number(library)})" if library else ""),
        _number(counts["graph_launches"]),
        _parts(counts, waits_of(counts), WAITS),
        _parts(counts, sum(counts[name] for name in copies), copies),
        ", ".join(f"{_number(counts[name])} {title}" for name, title in sizes.items() if counts[name]) or "0",
        _number(counts["memsets"]),
        _number(counts["mallocs"]),
        _number(counts["host_mallocs"]),
        f"{found['peak_allocated'] / 2**20:,.1f}" if "peak_allocated" in found else "",
        f"{found['peak_reserved'] / 2**20:,.0f}" if "peak_reserved" in found else "",
    ]


def losses_differ(table, results):
    """Sentences about rows whose losses or parameters are not those of the first of their group."""
    wrong, firsts = [], {}
    for row in table.rows:
        found = results.get(row.title, {})
        if "change" not in found:
            continue
        first = firsts.setdefault(row.group, (row.title, found))
        if found["parameters"] != first[1]["parameters"]:
            wrong.append(f"{table.name}: {row.title} has {found['parameters']:,} parameters, {first[0]} {first[1]['parameters']:,}")
        allowed = LOSS_TOLERANCE.get(row.case.get("precision", "32-true"), MIXED_TOLERANCE)
        for step, (mine, theirs) in enumerate(zip(found["losses"], first[1]["losses"])):
            # Each step multiplies what the one before has rounded otherwise, so later losses need only be numbers.
            limit = allowed * abs(theirs) if step < COMPARED_LOSSES and theirs is not None else float("inf")
            if mine is None or theirs is None or not math.isfinite(mine) or abs(mine - theirs) > limit:
                wrong.append(f"{table.name}: losses of {row.title} are {found['losses']}, of {first[0]} {first[1]['losses']}")
                break
    return wrong


def short_of_goals(table, results):
    """Where Fulgur asks more of the device than it should."""
    counted = {row.title: per_step(row, results) for row in table.rows if "change" in results.get(row.title, {})}
    lines = []
    for row in table.rows:
        if row.program != "fulgur" or row.title not in counted or row.beyond:
            continue
        counts = counted[row.title]
        if waits_of(counts):
            lines.append(f"{row.title}: {_parts(counts, waits_of(counts), WAITS)} waits of the host a step; the goal is none")
        if row.case.get("capture"):
            if counts["graph_launches"] != 1 or counts["launches"]:
                lines.append(f"{row.title}: {_number(counts['graph_launches'])} graph launches and {_number(counts['launches'])} others a step; the goal is one and none")
            inside = counts["copies_on_device"] + counts["copies_to_host"]
            if inside:
                lines.append(f"{row.title}: {_number(inside)} copies a step that do not bring the batch; the goal is none")
            eager = results.get(BASE, {})
            mine, theirs = results[row.title].get("peak_reserved"), eager.get("peak_reserved")
            if mine and theirs and mine > 1.3 * theirs:
                lines.append(f"{row.title}: {mine / theirs:.2f} times the reserved memory of {BASE}; the goal is 1.3")
        else:
            peer = FSDP.format(row.case["sharding"]) if "sharding" in row.case else DDP if row.case.get("ranks", 1) > 1 else CLIPPED if "clip" in row.case else FUSED
            if peer in counted and counts["launches"] > counted[peer]["launches"]:
                lines.append(f"{row.title}: {_number(counts['launches'])} launches a step, {peer} {_number(counted[peer]['launches'])}")
        for name, title in (("mallocs", "cudaMalloc"), ("host_mallocs", "cudaHostAlloc")):
            if counts[name]:
                lines.append(f"{row.title}: {_number(counts[name])} calls of {title} a step")
    return lines


def markdown(kept):
    lines = []
    for entry in kept:
        lines += [f"### {entry['title']}", "", "| a step of | " + " | ".join(COLUMNS) + " |", "|" + "---|" * (len(COLUMNS) + 1)]
        for row in entry["rows"]:
            filled = row["cells"] if "cells" in row else [f"not counted: {row['reason']}".replace("|", "\\|")] + [""] * (len(COLUMNS) - 1)
            lines.append(f"| {row['title']} | " + " | ".join(filled) + " |")
        lines.append("")
        lines += [f"- {line}" for line in entry["short"]] + ([""] if entry["short"] else [])
        lines += [f"- **failed**: {line}" for line in entry["wrong"]] + ([""] if entry["wrong"] else [])
    return "\n".join(lines).rstrip() + "\n"


def arguments(known):
    parser = argparse.ArgumentParser(prog="benchmarks/device_counts.sh")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to count: {', '.join(known)}; default all")
    parser.add_argument("--rows", default="", help="a regular expression: only rows whose title has it")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin", help="folder of gpu_bench; default build/release/bin")
    parser.add_argument("--out", type=Path, help="folder for device_counts.json and device_counts.md; default: the table is printed only")
    parser.add_argument("--python", default=sys.executable, help="of the peers; default: the one that runs this")
    parser.add_argument("--verbose", action="store_true", help="shows what the programs print")
    args = parser.parse_args()
    for name in args.names:
        if name not in known:
            parser.error(f"there is no {name}; there are {', '.join(known)}")
    return args


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    known = tables()
    args = arguments([table.name for table in known])
    kept, wrong = [], []
    work = Path(tempfile.mkdtemp(prefix="fulgur-counts-"))
    try:
        runner = Runner(args, work)
        for table in known:
            if args.names and table.name not in args.names:
                continue
            table.rows = [row for row in table.rows if re.search(args.rows, row.title)]
            results, rows = {}, []
            for row in table.rows:
                print(f"[{table.name}] {row.title}", file=sys.stderr)
                found = results[row.title] = runner.run(row)
                if row.beyond and "change" not in results.get(row.beyond, {}):
                    found = results[row.title] = {"reason": f"needs the row {row.beyond}"}
                if "change" in found:
                    counts = per_step(row, results)
                    rows.append({"title": row.title, "counts": counts, "cells": cells(counts, found), "case": row.case} | found)
                else:
                    rows.append({"title": row.title, "reason": found["reason"], "case": row.case})
                    wrong.append(f"{table.name}: {row.title} was not counted: {found['reason']}")
            differ = losses_differ(table, results)
            wrong += differ
            kept.append({"name": table.name, "title": table.title, "rows": rows, "short": short_of_goals(table, results), "wrong": differ})
    finally:
        shutil.rmtree(work, ignore_errors=True)
    text = markdown(kept)
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip() or "unknown"
        conditions = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "commit": commit, "steps": [FROM, TO]}
        (args.out / "device_counts.json").write_text(json.dumps({"conditions": conditions, "tables": kept}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        about = f"{conditions['date']}, commit {commit}. Counts are of one step between steps {FROM} and {TO}; docs/performance.md says more."
        (args.out / "device_counts.md").write_text(f"# Results of `benchmarks/device_counts.sh`\n\n{about}\n\n{text}", encoding="utf-8")
    if wrong:
        sys.exit("device_counts.sh: rows were not counted, or did not do the same work:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
