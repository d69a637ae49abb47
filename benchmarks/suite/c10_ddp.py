"""C10: gradients of two processes over Gloo."""

from pathlib import Path

from checks import values_agree
from spec import Benchmark, Metric, Peer, Target

WIDTH, LAYERS, BATCH, BATCHES, RANKS = 1024, 8, 128, 4, 2


def make_inputs(folder: Path):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    x, y = (torch.randn(BATCHES, RANKS, BATCH, WIDTH) for _ in range(2))
    save_file({"x": x, "y": y}, folder / "data.safetensors")
    weights = {}
    for i in range(LAYERS):
        linear = torch.nn.Linear(WIDTH, WIDTH)
        # He's: the gradients of all layers are of one size, and none is nearly 0.
        torch.nn.init.kaiming_normal_(linear.weight)
        weights |= {f"linear.{i}.weight": linear.weight.detach(), f"linear.{i}.bias": linear.bias.detach()}
    save_file(weights, folder / "weights.safetensors")


def benchmark(quick: bool) -> Benchmark:
    common = ["--inputs", "{inputs}", "--report", "{report}", "--blocks", "2" if quick else "5", "--steps", "4" if quick else "8"]

    def torch(variant, title, note=""):
        return Peer(f"torch_{variant}", title, ["{python}", "{peers}/ranks.py", str(RANKS), "{python}", "{peers}/c10_torch.py", "--variant", variant, *common], note, row="torch")

    def fulgur(variant, title, note=""):
        return Peer(f"fulgur_{variant}", title, ["{python}", "{peers}/ranks.py", str(RANKS), "{bin}/c10_fulgur", "--variant", variant, *common], note, row="fulgur")

    def over(title, slow, fast, aim=None, at_least=True):
        return Target.ratio(title, slow, fast, "wall_s", aim, at_least=at_least)

    ways = {
        "local": "no exchange at all",
        "each": "all-reduce of each gradient after backward",
        "flat": "one all-reduce of all gradients after backward",
        "ddp": "DDP",
        "view": "DDP, gradients in the buckets",
        "no_sync": "DDP, exchange in every fourth step; one micro-batch",
        "bn": "DDP, network with BatchNorm",
    }
    rows = {f"{who}_{way}": f"{name}, {title}" for way, title in ways.items() for who, name in (("fulgur", "Fulgur"), ("torch", "PyTorch"))}
    rows["fulgur_dp"] = "Fulgur, dp on two devices of one process"
    rows["fulgur_sync_bn"] = "Fulgur, DDP, network with BatchNorm over both ranks"
    return Benchmark(
        name="C10",
        title="Two processes over Gloo",
        about=f"{LAYERS} × Linear({WIDTH}), ReLU between them, {LAYERS * (WIDTH + 1) * WIDTH * 4 / 1e6:.1f} MB of gradients, batch {BATCH} on each of "
        f"{RANKS} ranks with one thread each on this machine, SGD; wall time of a step by rank 0's clock, blocks of steps in turn.",
        peers=[
            torch("plain", "PyTorch DDP", "Buckets as they are by default; also what it is compared with: the same steps with collectives by hand."),
            fulgur("plain", "Fulgur ddp", "Buckets as they are by default."),
            torch("view", "PyTorch DDP, bucket views"),
            fulgur("view", "Fulgur ddp, bucket views"),
            torch("bn", "PyTorch DDP, BatchNorm", "Its SyncBatchNorm refuses CPU tensors, so only its results are compared: those of BatchNorm on both ranks' batches in one process."),
            fulgur("bn", "Fulgur ddp, BatchNorm"),
            Peer("fulgur_dp", "Fulgur dp", ["{bin}/c10_dp", *common], "The work of both ranks in one process, on two virtual devices with one thread each; PyTorch's DataParallel is for GPUs only.", row="fulgur"),
            fulgur("sync_bn", "Fulgur ddp, BatchNorm over both ranks"),
        ],
        rows=rows,
        metrics=[Metric("wall_s", "wall s a step", digits=4), Metric("cpu_s", "CPU s a step", digits=4)],
        targets=[
            over("PyTorch DDP over Fulgur", "torch_ddp", "fulgur_ddp", 1.0),
            over("PyTorch DDP over Fulgur, gradients in the buckets", "torch_view", "fulgur_view", 1.0),
            over("flat all-reduce over overlapped, Fulgur", "fulgur_flat", "fulgur_ddp", 1.2),
            over("flat all-reduce over overlapped, PyTorch", "torch_flat", "torch_ddp"),
            over("each step over every fourth, Fulgur", "fulgur_ddp", "fulgur_no_sync", 1.2),
            over("each step over every fourth, PyTorch", "torch_ddp", "torch_no_sync"),
            over("dp over DDP, Fulgur", "fulgur_dp", "fulgur_ddp"),
            over("Fulgur's DDP over no exchange", "fulgur_ddp", "fulgur_local"),
            over("BatchNorm over both ranks over BatchNorm", "fulgur_sync_bn", "fulgur_bn"),
        ],
        rounds=1 if quick else 3,
        make_inputs=make_inputs,
        check=lambda results: values_agree(results, "torch", "losses", 1e-5),
    )
