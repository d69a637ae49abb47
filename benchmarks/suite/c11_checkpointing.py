"""C11: what activation checkpointing saves, and what it costs."""

from pathlib import Path

from checks import values_agree
from spec import Benchmark, Check, Metric, Peer, Target

LAYERS, WIDTH, HEADS, SAMPLES, LENGTH = 6, 384, 6, 2, 256
# How many blocks each way checkpoints: the first of every N. `whole`: all, and the recompute continues to the block's end.
WAYS = {"none": 0, "every_2": 3, "all": 6, "whole": 6}
TITLES = {"none": "none", "every_2": "every 2", "all": "all", "whole": "all, no early stop"}
# Floats that a block keeps for each position; a checkpointed one keeps its input, WIDTH. peers/c11_torch.py has the blocks.
KEPT = {"GPT": 16 * WIDTH + 4 + HEADS, "MLP": 5 * WIDTH}


def case(kind, way):
    return f"{kind} blocks, {TITLES[way]}"


def saved_bytes(kind, way):
    return 4 * SAMPLES * LENGTH * ((LAYERS - WAYS[way]) * KEPT[kind] + WAYS[way] * WIDTH)


def make_inputs(folder: Path):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    shapes = {
        "GPT": {
            "ln_1.weight": (WIDTH,), "ln_1.bias": (WIDTH,), "ln_2.weight": (WIDTH,), "ln_2.bias": (WIDTH,),
            "attn.c_attn.weight": (3 * WIDTH, WIDTH), "attn.c_attn.bias": (3 * WIDTH,),
            "attn.c_proj.weight": (WIDTH, WIDTH), "attn.c_proj.bias": (WIDTH,),
            "mlp.c_fc.weight": (4 * WIDTH, WIDTH), "mlp.c_fc.bias": (4 * WIDTH,),
            "mlp.c_proj.weight": (WIDTH, 4 * WIDTH), "mlp.c_proj.bias": (WIDTH,),
        },
        "MLP": {
            "in.weight": (4 * WIDTH, WIDTH), "in.bias": (4 * WIDTH,), "out.weight": (WIDTH, 4 * WIDTH), "out.bias": (WIDTH,),
        },
    }  # fmt: skip
    tensors = {name: torch.randn(SAMPLES, LENGTH, WIDTH) for name in ("x", "dy")}
    for kind, parameters in shapes.items():
        for i in range(LAYERS):
            for name, shape in parameters.items():
                scale = (2 / shape[1]) ** 0.5 if len(shape) == 2 else 0.1
                tensors[f"{kind}.{i}.{name}"] = scale * torch.randn(shape) + (1 if name.endswith(".weight") and len(shape) == 1 else 0)
    save_file(tensors, folder / "blocks.safetensors")


def check(results):
    checks = values_agree(results, "torch", "gradients", 1e-3)
    for row in ("fulgur", "torch"):
        wrong = [
            f"{name} {found} for {saved_bytes(kind, way)}"
            for report in results.reports[row]
            for kind in KEPT
            for way in WAYS
            for name in [case(kind, way)]
            for found in report["saved"][name]
            if found != saved_bytes(kind, way)
        ]
        checks.append(Check(f"saved bytes of {row} are those of the formula", not wrong, ", ".join(wrong[:3]) or "equal"))
    return checks


def benchmark(quick: bool) -> Benchmark:
    common = ["--layers", str(LAYERS), "--heads", str(HEADS), "--inputs", "{inputs}", "--report", "{report}"]
    common += ["--steps", "2" if quick else "6"]

    def over_none(row, kind, way, key, aim=None):
        def value(results, statistic):
            return results.statistic(row, key, statistic, case(kind, way)) / results.statistic(row, key, statistic, case(kind, "none"))

        what = {"cpu_s": "step over one without", "saved_mib": "saved bytes over those without"}[key]
        return Target(f"{case(kind, way)}: {what}, {row}", value, aim, at_least=False)

    def torch_over_ours(kind, way):
        return Target.ratio(f"{case(kind, way)}: PyTorch over Fulgur", "torch", "fulgur", "cpu_s", 1.0, case(kind, way))

    ways = [way for way in WAYS if way != "none"]
    return Benchmark(
        name="C11",
        title="Activation checkpointing",
        about=f"Forward and backward of {LAYERS} blocks of width {WIDTH} on {SAMPLES} x {LENGTH} positions: GPT blocks without dropout ({HEADS} heads), and MLP "
        "blocks (Linear, ReLU, Linear; four times as wide inside), whose backward takes twice their forward. Saved: bytes of the different storages that "
        "the graph keeps for backward, without parameters.",
        peers=[
            Peer("fulgur", "Fulgur", ["{bin}/c11_fulgur", *common]),
            Peer("torch", "PyTorch, torch.utils.checkpoint", ["{python}", "{peers}/c11_torch.py", *common]),
        ],
        metrics=[
            Metric("cpu_s", "CPU ms a step", of=lambda seconds, name: 1e3 * seconds, digits=1),
            Metric("wall_s", "wall ms a step", of=lambda seconds, name: 1e3 * seconds, digits=1),
            Metric("saved_mib", "saved MiB"),
        ],
        targets=[
            *(over_none("fulgur", kind, way, "cpu_s", None if way == "whole" else 1.33) for kind in KEPT for way in ways),
            *(over_none("fulgur", kind, way, "saved_mib") for kind in KEPT for way in ("every_2", "all")),
            *(over_none("torch", kind, way, "cpu_s") for kind in KEPT for way in ways),
            *(torch_over_ours(kind, way) for kind in KEPT for way in WAYS),
        ],
        rounds=2 if quick else 5,
        make_inputs=make_inputs,
        check=check,
    )
