"""C3: one step of an optimizer."""

from pathlib import Path

from checks import values_agree
from spec import Benchmark, Metric, Peer, Target

SIZES = {(1000, 256): 100, (200, 65536): 30, (148, 840000): 5}  # tensors, elements: steps of each process
# Memory that a step must move, bytes for each parameter: reads and writes of value and state, the read of the gradient.
BYTES = {"AdamW": 28, "Adam": 28, "SGD": 20}


def make_inputs(folder: Path):
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(2)
    most = max(elements for _, elements in SIZES)
    values = random.uniform(-0.5, 0.5, most).astype(np.float32)
    gradients = (0.01 * random.standard_normal(most)).astype(np.float32)
    save_file({"values": values, "gradients": gradients}, folder / "parameters.safetensors")


def benchmark(quick: bool) -> Benchmark:
    sizes = {(1000, 256): 10, (200, 65536): 3} if quick else SIZES
    listed = ",".join(
        f"{kind}:{tensors}:{elements}:{steps}" for kind in BYTES for (tensors, elements), steps in sizes.items()
    )
    common = ["--cases", listed, "--inputs", "{inputs}", "--report", "{report}"]

    def name(kind, size):
        return f"{kind} {size[0]} x {size[1]}"

    gigabytes = {name(kind, size): size[0] * size[1] * each / 1e9 for kind, each in BYTES.items() for size in sizes}

    def over(title, row, kind, size, aim):
        case = name(kind, size)
        return Target(
            f"{case}: {title} over Fulgur", lambda r, statistic: r.ratio(row, "fulgur", "cpu_s", statistic, case), aim
        )

    targets = [
        over(title, row, kind, size, aim)
        for kind in BYTES
        for size in sizes
        for title, row, aim in [
            ("torch::optim", "libtorch", 3.0),
            ("Python fused", "torch_fused", 1.0),
            ("Python default", "torch_default", None),
        ]
    ]

    return Benchmark(
        name="C3",
        title="Optimizer step",
        about="One step on float32 parameters (tensors x elements) whose gradients are there; SGD with momentum 0.9. GB/s count the memory that "
        "must be moved: 28 bytes a parameter for Adam and AdamW, 20 for SGD.",
        peers=[
            Peer("fulgur", "Fulgur", ["{bin}/c3_fulgur", *common]),
            Peer("libtorch", "torch::optim", ["{bin}/c3_libtorch", *common]),
            *(
                Peer(
                    f"torch_{mode}",
                    f"Python, {mode}",
                    ["{python}", "{peers}/c3_torch.py", "--mode", mode, *common],
                    note,
                )
                for mode, note in [("default", "On the CPU a loop over parameters."), ("foreach", ""), ("fused", "")]
            ),
        ],
        metrics=[
            Metric("cpu_s", "CPU ms", of=lambda seconds, case: 1e3 * seconds, digits=3),
            Metric("wall_s", "wall ms", of=lambda seconds, case: 1e3 * seconds, digits=3),
            Metric("cpu_s", "GB/s", of=lambda seconds, case: gigabytes[case] / seconds, digits=1),
        ],
        targets=targets,
        rounds=2 if quick else 5,
        make_inputs=make_inputs,
        check=lambda results: values_agree(results, "torch_default", "parameters", 1e-5),
    )
