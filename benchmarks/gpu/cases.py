"""What benchmarks/gpu.sh measures: each benchmark's tables, and the case of each row.

A case says all of its work; cpp/ (Fulgur) and peers/ (PyTorch, Lightning) read the same one, so both do the same."""

from collections.abc import Callable
from dataclasses import dataclass, field

STEP_FLOPS = 0.855e9  # of a token of GPT-2 124M at 1024 tokens: 6 a parameter, and the attention
PEAK_FLOPS = 989e12  # of an H100 or H200 in bfloat16
EPOCHS, IMAGES = 9.9, 50_000  # of airbench94


@dataclass
class Column:
    key: str  # of the samples
    title: str
    of: Callable[[float, dict], float] = lambda value, case: value
    digits: int = 2
    most: bool = False  # the best is the greatest


@dataclass
class Row:
    title: str
    program: str  # fulgur: gpu_bench; torch: peers/torch_bench.py
    case: dict
    process: str = ""  # rows of one name share a process
    over: str = ""  # the row of the table whose time its own is divided by; default: the table's


@dataclass
class Table:
    title: str
    rows: list[Row]
    columns: list[Column]
    over: str = ""  # the row whose time the others' is divided by, where they name none


@dataclass
class Benchmark:
    name: str
    title: str
    about: str
    tables: list[Table]
    counts_waits: bool = False
    compare_losses: bool = True
    notes: list[str] = field(default_factory=list)


MICROSECONDS = Column("step_s", "µs a step", lambda s, case: 1e6 * s, 1)
MILLISECONDS = Column("step_s", "ms a step", lambda s, case: 1e3 * s, 3)
RATE = Column("step_s", "images/s", lambda s, case: case["batch"] / s, 0, True)
TOKENS = Column("step_s", "tokens/s", lambda s, case: case["batch"] * case["length"] / s, 0, True)
PEAK = Column("peak_gib", "peak GiB", digits=2)
# What the allocator took from the device: the private pools of CUDA graphs are here only.
RESERVED = Column("peak_reserved_gib", "peak reserved GiB", digits=2)
WAITS = Column("waits", "waits of the host a step")
# A column of parts only where there is something to count.
UTILISATION = Column("step_s", "MFU %", lambda s, case: 100 * STEP_FLOPS * case["batch"] * case["length"] / s / PEAK_FLOPS, 1, True)

ONLY_COMPILED = "torch.compile"


def _ways(base, fulgur, torch):
    """Rows of one case: `fulgur` and `torch` map titles to what they change."""
    rows = [Row(title, "fulgur", base | change) for title, change in fulgur.items()]
    # Inductor takes its time: a separate process, whose end takes no other row with it.
    return rows + [Row(title, "torch", base | change, ONLY_COMPILED if change.get("way") == "compile" else "") for title, change in torch.items()]


EAGER = {"way": "eager", "fused": True}
COMPILED = {"way": "compile", "fused": True}
# Inductor fuses foreach optimizers only.
COMPILED_WHOLE = {"way": "compile", "fused": False, "compile_optimizer": True}
FULGUR = {"Fulgur": {}, "Fulgur, capture": {"capture": True}}
BY_HAND = {
    "PyTorch by hand": {"way": "eager", "fused": False},
    "PyTorch by hand, fused AdamW": EAGER,
    "torch.compile(reduce-overhead), fused AdamW": COMPILED,
    "torch.compile(reduce-overhead), AdamW compiled too": COMPILED_WHOLE,
    "PyTorch, whole step in a CUDA graph": {"way": "graph", "fused": True},
}


def _length(quick, warmup, steps, stretches):
    return {"warmup": 5, "steps": 2, "stretches": 2} if quick else {"warmup": warmup, "steps": steps, "stretches": stretches}


def _mlp(quick):
    return {"kind": "training", "model": "mlp", "lr": 1e-3, "batch": 64, "depth": 10, "width": 32 if quick else 256, "classes": 10}


def _gpt(quick, batch, length, layers=12, width=768, heads=12):
    if quick:
        batch, length, layers, width, heads = min(batch, 2), 16, 2, 32, 2
    return {
        "kind": "training", "model": "gpt", "lr": 3e-4, "batch": batch, "length": length, "layers": layers, "width": width, "heads": heads,
        "vocab": 96 if quick else 50304, "precision": "bf16-mixed", "matmul": "high",
    }  # fmt: skip


def _resnet(quick, batch):
    small = {"batch": 2, "image": 32, "width": 4, "depths": [1, 1], "classes": 10}
    return {"kind": "training", "model": "resnet", "lr": 0.01, "optimizer": "sgd"} | (
        small if quick else {"batch": batch, "image": 224, "width": 64, "depths": [3, 4, 6, 3], "classes": 1000}
    )


def g1(quick):
    base = _mlp(quick) | _length(quick, 50, 500, 5)
    lightning = {"Lightning, all off": {"way": "lightning", "fused": False}, "Lightning, all off, fused AdamW": {"way": "lightning", "fused": True}}
    return Benchmark(
        "G1",
        "A step bound by launches",
        "MLP of 10 layers of 256, batch 64, AdamW, float32; batches on the device; no logger, no checkpoint, no progress bar.",
        [Table("10 x 256, batch 64", _ways(base, FULGUR, lightning | BY_HAND), [MICROSECONDS], "Fulgur, capture")],
    )


def g2(quick, device):
    base = {
        "kind": "training", "model": "airbench", "optimizer": "sgd", "lr": 0.01, "batch": 16 if quick else 1024, "pool": 64 if quick else IMAGES,
        "image": 32, "classes": 10, "memory_format": "channels_last", "benchmark": True, "matmul": "high",
        # A CPU emulates float16.
        "precision": "16-true" if device == "cuda" else "32-true",
    }  # fmt: skip
    base |= _length(quick, 48, 96, 5)
    torch = {"PyTorch by hand": EAGER, "torch.compile(reduce-overhead)": COMPILED}
    columns = [RATE, Column("step_s", f"{EPOCHS} epochs, s", lambda s, case: s * (case["pool"] // case["batch"]) * EPOCHS, 3)]
    return Benchmark(
        "G2",
        "The convolutional net of airbench94",
        f"{IMAGES:,} random images on the device, in another order each epoch; float16 but for norms, channels innermost, batch 1024, SGD with Nesterov's "
        "momentum. No augmentation, no whitening by the data, no label smoothing: its shapes and kernels, not its accuracy.",
        [Table("32 x 32, batch 1024", _ways(base, FULGUR, torch), columns, "Fulgur, capture")],
    )


def g3(quick):
    compiled = "torch.compile(reduce-overhead)"
    torch = {"PyTorch by hand, fused AdamW": EAGER, f"{compiled}, fused AdamW": COMPILED, f"{compiled}, AdamW compiled too": COMPILED_WHOLE}
    tables = []
    for batch in (16, 32):
        base = _gpt(quick, batch, 1024) | _length(quick, 5, 10, 3)
        tables.append(Table(f"batch {batch} x 1024", _ways(base, FULGUR, torch), [TOKENS, UTILISATION, PEAK, RESERVED], "Fulgur"))
    return Benchmark(
        "G3",
        "GPT-2 124M",
        "12 layers of 768, vocabulary of 50,304, no dropout, bf16-mixed, AdamW, random tokens on the device. MFU is 0.855 GFLOP a token over 989 TFLOP/s.",
        tables,
    )


def g4(quick):
    tables = []
    for batch in (1, 2, 4):
        base = _gpt(quick, batch, 256) | _length(quick, 10, 40, 3)
        tables.append(Table(f"batch {batch} x 256", _ways(base, FULGUR, BY_HAND), [MILLISECONDS, TOKENS], "Fulgur, capture"))
    return Benchmark("G4", "GPT-2 124M, small batches", "As G3 with 256 tokens: bound by launches.", tables)


def _gpt_shapes():
    width, layers = 768, 12
    block = [[3 * width, width], [3 * width], [width, width], [width], [4 * width, width], [4 * width], [width, 4 * width], [width]]
    norms = [[[width], 4 * layers + 2]]
    return [[[50304, width], 1], [[1024, width], 1], *([shape, layers] for shape in block), *norms]


def g5(quick):
    tables = []
    shapes = {"1000 x 256": [[[256], 1000]]} | ({} if quick else {"GPT-2 124M, 148 tensors": _gpt_shapes()})
    for title, each in shapes.items():
        base = {"kind": "optimizer", "shapes": each} | _length(quick, 10, 40, 5)
        numbers = sum(count * _product(shape) for shape, count in each)
        bandwidth = Column("step_s", "GB/s", lambda s, case, numbers=numbers: 28e-9 * numbers / s, 0, True)
        rows = [Row(name, "fulgur", base | {"way": way}) for name, way in {"Fulgur": "fused", "Fulgur, captured": "captured", "torch::optim": "torch::optim"}.items()]
        rows += [Row(f"Python, {way}", "torch", base | {"way": way}) for way in ("foreach", "fused", "captured")]
        tables.append(Table(f"AdamW, {title}", rows, [MILLISECONDS, bandwidth], "Fulgur"))
    return Benchmark("G5", "Optimizer step", "One step on float32 parameters whose gradients are there. GB/s count 28 bytes a parameter.", tables)


def _product(shape):
    result = 1
    for n in shape:
        result *= n
    return result


def g6(quick, device):
    precisions = {
        "float32": {"precision": "32-true", "matmul": "highest"},
        "TF32": {"precision": "32-true", "matmul": "high"},
        "bf16-mixed": {"precision": "bf16-mixed", "matmul": "high"},
    }
    if device == "cuda" or not quick:
        precisions["16-mixed"] = {"precision": "16-mixed", "matmul": "high"}
    bases = {
        "ResNet-50's shape, batch 128": (_resnet(quick, 128) | {"memory_format": "channels_last", "benchmark": True}, RATE),
        "GPT-2 124M, batch 8 x 1024": (_gpt(quick, 8, 1024), TOKENS),
    }
    tables = []
    for title, (base, rate) in bases.items():
        base = base | _length(quick, 6, 8, 3)
        rows = []
        for name, change in precisions.items():
            rows += [Row(f"Fulgur, {name}", "fulgur", base | change), Row(f"PyTorch by hand, {name}", "torch", base | change | EAGER, over=f"Fulgur, {name}")]
        tables.append(Table(title, rows, [MILLISECONDS, rate, WAITS, PEAK], "Fulgur, float32"))
    return Benchmark("G6", "Precisions", "The same step in each precision; cudnn.benchmark and TF32 equal on both sides.", tables, counts_waits=True)


def g7(quick):
    tables = []
    bases = {"MLP 10 x 256, batch 64": _mlp(quick) | _length(quick, 50, 400, 5), "GPT-2 124M, batch 4 x 256": _gpt(quick, 4, 256) | _length(quick, 10, 100, 3)}
    for title, base in bases.items():
        rows = []
        # The GPT logs its loss in any case; 1,000,000 steps are never reached.
        for name, change in {"nothing logged": {}, **{f"logged every {n}": {"log": True, "log_every": n} for n in (100, 10, 1)}}.items():
            never = {} if change else {"log_every": 1_000_000}
            rows += [
                Row(f"Fulgur, {name}", "fulgur", base | never | change),
                Row(f"PyTorch by hand, {name}", "torch", base | never | change | EAGER, over="PyTorch by hand, nothing logged"),
                Row(f"Lightning, {name}", "torch", base | never | change | {"way": "lightning", "fused": True}, over="Lightning, nothing logged"),
            ]
        each = base | {"log": True, "log_every": 100, "item": True} | EAGER
        rows.append(Row("PyTorch by hand, .item() each step, written every 100", "torch", each, over="PyTorch by hand, nothing logged"))
        tables.append(Table(title, rows, [MICROSECONDS, WAITS], "Fulgur, nothing logged"))
    return Benchmark(
        "G7", "What logging costs", "The loss logged in each step and written to a CSV file every n steps (`log()`, `self.log`, or `.item()` by hand).", tables, counts_waits=True
    )


def g8(quick, device):
    nets = {"a small net": (_resnet(quick, 256) | {"width": 8, "depths": [1, 1]}, (8, 16)), "ResNet-50's shape": (_resnet(quick, 256), (8,))}
    tables = []
    for title, (base, workers) in nets.items():
        base = base | {"kind": "input", "pool": 8 if quick else 4096} | _length(quick, 10, 15, 3)
        rows = []
        for count in (2,) if quick else workers:
            rows += [
                Row(f"Fulgur, pinned, {count} workers", "fulgur", base | {"pinned": True, "workers": count}),
                Row(f"Fulgur, pageable, {count} workers", "fulgur", base | {"pinned": False, "workers": count}),
                Row(f"DataLoader, pinned, {count} workers", "torch", base | {"pinned": True, "workers": count, "prefetch": False}, over=f"Fulgur, pinned, {count} workers"),
                Row(
                    f"DataLoader, pinned, copied ahead on a stream, {count} workers",
                    "torch",
                    base | {"pinned": True, "workers": count, "prefetch": True},
                    over=f"Fulgur, pinned, {count} workers",
                ),
            ]
        columns = [
            MILLISECONDS,
            RATE,
            Column("compute_s", "computation, ms", lambda s, case: 1e3 * s),
            Column("copy_s", "copy, ms", lambda s, case: 1e3 * s),
            Column("overlap", "overlap: max(computation, copy) / step", digits=3, most=True),
        ]
        tables.append(Table(title, rows, columns, rows[0].title))
    return Benchmark(
        "G8", "Images from the host", "224 x 224 bytes in memory of the host, shuffled, batch 256; converted and trained with on the device, bf16-mixed, channels innermost.", tables
    )


def g9(quick):
    base = _resnet(quick, 128) | {"precision": "bf16-mixed", "matmul": "high"} | _length(quick, 6, 8, 3)
    rows = []
    for last in (False, True):
        for tried in (False, True):
            for bias in (True, False):
                name = f"{'channels_last' if last else 'contiguous'}, benchmark {'on' if tried else 'off'}, {'with' if bias else 'without'} biases"
                case = base | {"memory_format": "channels_last" if last else "contiguous", "benchmark": tried, "bias": bias}
                rows += [Row(f"Fulgur, {name}", "fulgur", case), Row(f"PyTorch by hand, {name}", "torch", case | EAGER, over=f"Fulgur, {name}")]
    return Benchmark(
        "G9",
        "Memory format, cuDNN's choice, biases",
        "ResNet-50's shape, 224 x 224, batch 128, bf16-mixed, SGD; biases of convolutions before norms do nothing but cost.",
        [Table("224 x 224, batch 128", rows, [MILLISECONDS, RATE, PEAK, RESERVED], rows[0].title)],
    )


def g10(quick):
    tables = []
    for title, sizes in {"350M, batch 16 x 1024": (16, 1024, 24, 1024, 16), "1.3B, batch 8 x 1024": (8, 1024, 24, 2048, 16)}.items():
        base = _gpt(quick, *sizes) | _length(quick, 5, 4, 2)
        rows = []
        for way in ("none", "every_2", "all"):
            # Peaks of one case only.
            rows.append(Row(f"Fulgur, {way}", "fulgur", base | {"checkpointing": way}, f"{title} {way}"))
            rows.append(Row(f"torch.utils.checkpoint, {way}", "torch", base | {"checkpointing": way} | EAGER, f"{title} {way}", f"Fulgur, {way}"))
        tables.append(Table(title, rows, [PEAK, RESERVED, TOKENS, MILLISECONDS], "Fulgur, none"))
    return Benchmark("G10", "Activation checkpointing", "GPT blocks computed again in backward: none, every second, all; bf16-mixed, AdamW.", tables)


def benchmarks(quick, device):
    made = [g1(quick), g2(quick, device), g3(quick), g4(quick), g5(quick), g6(quick, device), g7(quick), g8(quick, device), g9(quick), g10(quick)]
    return {each.name: each for each in made}
