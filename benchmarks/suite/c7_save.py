"""C7: how long a save keeps the training thread."""

from spec import Benchmark, Metric, Peer, Target


def benchmark(quick: bool) -> Benchmark:
    parameters, rounds = (12_000_000, 2) if quick else (124_000_000, 5)
    arguments = ["--parameters", str(parameters), "--rounds", str(rounds), "--scratch", "{scratch}", "--report", "{report}"]

    def over(title, slow, fast, aim=None, at_least=True):
        return Target.ratio(title, slow, fast, "wall_s", aim, at_least=at_least)

    return Benchmark(
        name="C7",
        title="Stall of a checkpoint",
        about=f"{parameters / 1e6:.0f} M parameters with Adam state, {12 * parameters / 1e9:.2f} GB, the scratch folder's disk. "
        "`write_checkpoint` has hashes and fsync, `torch.save` has neither.",
        peers=[
            Peer("fulgur", "Fulgur", ["{bin}/c7_fulgur", *arguments]),
            Peer("torch", "PyTorch", ["{python}", "{peers}/c7_torch.py", *arguments]),
        ],
        rows={
            "memcpy": "memcpy of the state into memory that is used again",
            "submit": "Fulgur, stall of an asynchronous save (copied by up to four threads)",
            "write_checkpoint": "Fulgur, write_checkpoint",
            "raw_synced": "write(2) of as many bytes, then fsync",
            "raw": "write(2) of as many bytes",
            "torch_save": "torch.save",
            "torch_save_synced": "torch.save, then fsync",
            "dcp_async": "torch.distributed.checkpoint, stall of async_save",
        },
        metrics=[Metric("wall_s", "wall s", digits=3), Metric("cpu_s", "CPU s", digits=3)],
        targets=[
            over("stall over memcpy", "submit", "memcpy", 1.2, at_least=False),
            over("`torch.save` over the stall", "torch_save", "submit", 8.0),
            over("`torch.save` and fsync over the stall", "torch_save_synced", "submit", 8.0),
            over("stall of dcp.async_save over the stall", "dcp_async", "submit"),
            over("`torch.save` over `write_checkpoint`", "torch_save", "write_checkpoint", 1.5),
            over("`torch.save` and fsync over `write_checkpoint`", "torch_save_synced", "write_checkpoint", 1.5),
        ],
        rounds=1 if quick else 2,
    )
