"""C16: parameters divided among two processes over Gloo."""

from checks import values_agree
from c10_ddp import BATCH, LAYERS, RANKS, WIDTH, make_inputs
from spec import Benchmark, Metric, Peer, Target


def benchmark(quick: bool) -> Benchmark:
    common = ["--inputs", "{inputs}", "--report", "{report}", "--blocks", "2" if quick else "5", "--steps", "4" if quick else "8"]

    def torch(variant, note):
        return Peer(f"torch_{variant}", f"PyTorch fully_shard, {variant}", ["{python}", "{peers}/ranks.py", str(RANKS), "{python}", "{peers}/c16_torch.py", "--variant", variant, *common], note, row="torch")

    def fulgur(variant):
        return Peer(f"fulgur_{variant}", f"Fulgur fsdp, sharding: {variant}", ["{python}", "{peers}/ranks.py", str(RANKS), "{bin}/c16_fulgur", "--variant", variant, *common], row="fulgur")

    return Benchmark(
        name="C16",
        title="Divided parameters of two processes over Gloo",
        about=f"The network of C10: {LAYERS} × Linear({WIDTH}), each a unit, {LAYERS * (WIDTH + 1) * WIDTH * 4 / 1e6:.1f} MB of parameters, batch {BATCH} on each of "
        f"{RANKS} ranks with one thread each on this machine, SGD; wall time of a step by rank 0's clock.",
        peers=[
            torch("parameters", "As by default: gathered for the forward and again for the backward pass."),
            fulgur("parameters"),
            torch("gradients", "reshard_after_forward=False: gathered once in a step."),
            fulgur("gradients"),
        ],
        rows={
            "torch_parameters": "PyTorch, fully_shard",
            "fulgur_parameters": "Fulgur, fsdp with sharding: parameters",
            "torch_gradients": "PyTorch, fully_shard with reshard_after_forward=False",
            "fulgur_gradients": "Fulgur, fsdp with sharding: gradients",
        },
        metrics=[Metric("wall_s", "wall s a step", digits=4), Metric("cpu_s", "CPU s a step", digits=4)],
        targets=[
            Target.ratio("PyTorch fully_shard over Fulgur, parameters", "torch_parameters", "fulgur_parameters", "wall_s", 1.0),
            Target.ratio("PyTorch fully_shard over Fulgur, gathered once", "torch_gradients", "fulgur_gradients", "wall_s", 1.0),
        ],
        rounds=1 if quick else 3,
        make_inputs=make_inputs,
        check=lambda results: values_agree(results, "torch", "losses", 1e-5),
    )
