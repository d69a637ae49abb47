"""C5: JPEG files, decoded and augmented into batches."""

import os
import tarfile
from pathlib import Path

from spec import Benchmark, Check, Metric, Peer, Results, Target

CLASSES = 10
ARCHIVE = Path(os.environ.get("FULGUR_TRIAL_DATA", "")) / "cifar10-jpg" / "cifar10-jpg-tree.tar.gz"
# Augmentation is random: an epoch's mean and deviation of normalised pixels vary by less than this.
TOLERANCE = 0.03


def made_picture(random, height: int, width: int):
    """Noise of several scales, so that its JPEG has about the bytes per pixel of a photo."""
    import numpy as np
    from PIL import Image

    picture = np.zeros((height, width, 3))
    for cells in (2, 4, 8, 16, 32, 64, 128):
        if cells > width:
            break
        noise = random.normal(0, 1, (max(cells * height // width, 1), cells, 3)).astype(np.float32)
        channels = [Image.fromarray(noise[..., c]).resize((width, height), Image.BICUBIC) for c in range(3)]
        picture += np.stack([np.asarray(channel) for channel in channels], axis=-1) * 48 / cells**0.5
    picture += random.normal(0, 9, picture.shape)
    return Image.fromarray(np.clip(picture + random.uniform(90, 160), 0, 255).astype(np.uint8))


def make_pictures(folder: Path, count: int, height: int, width: int):
    import numpy as np

    random = np.random.default_rng(5)
    for i in range(count):
        of_class = folder / f"class{i % CLASSES}"
        of_class.mkdir(parents=True, exist_ok=True)
        made_picture(random, height, width).save(of_class / f"{i:05}.jpg", quality=90)


def make_inputs(folder: Path, small: int, photos: int):
    """`cifar`: `small` of CIFAR-10's test images as JPEG files, or made ones if the trial data are absent; `photos`: made
    ones of 500 x 375."""
    if ARCHIVE.is_file():
        with tarfile.open(ARCHIVE) as archive:
            files = [m for m in archive if m.isfile() and m.name.removeprefix("./").startswith("test/")]
            files.sort(key=lambda member: (Path(member.name).name, member.name))
            for member in files[:small]:
                target = folder / "cifar" / Path(member.name).parent.name / Path(member.name).name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.extractfile(member).read())
    else:
        make_pictures(folder / "cifar", small, 32, 32)
    make_pictures(folder / "photos", photos, 375, 500)


def check(results: Results) -> list[Check]:
    expected = {}
    for reports in results.reports.values():
        for case, contents in reports[0]["contents"].items():
            expected.setdefault(case, contents)
    checks = []
    for peer, reports in results.reports.items():
        counts = all(
            contents[key] == expected[case][key]
            for report in reports
            for case, contents in report["contents"].items()
            for key in ("images", "classes")
        )
        checks.append(Check(f"images and labels of {peer}", counts, "equal" if counts else "differ"))
        worst = max(
            abs(contents[key] - expected[case][key])
            for report in reports
            for case, contents in report["contents"].items()
            for key in ("mean", "deviation")
        )
        detail = f"mean and deviation differ by {worst:.3f} at most (limit {TOLERANCE})"
        checks.append(Check(f"pixels of {peer}", worst <= TOLERANCE, detail))
    return checks


def benchmark(quick: bool) -> Benchmark:
    small, photos = (1_000, 100) if quick else (10_000, 1_000)
    epochs = 1 if quick else 2
    sets = {"cifar": ("CIFAR, 32 x 32", small, 128), "photos": ("500 x 375", photos, 64)}
    images = {title: count for title, count, _ in sets.values()}
    peers = []

    def row(name, title, program, options, workers, chosen, note=""):
        for key in chosen:
            case, _, batch = sets[key]
            command = [*program, *options, "--workers", str(workers), "--case", key, "--title", case]
            command += ["--batch", str(batch), "--epochs", str(epochs), "--inputs", "{inputs}", "--report", "{report}"]
            shown = f"{title}, {workers} workers"
            peers.append(Peer(f"{name}_{workers}:{key}", shown, command, note, row=f"{name}_{workers}"))
            note = ""

    fulgur, torch = ["{bin}/c5_fulgur"], ["{python}", "{peers}/c5_torch.py"]
    ways = {
        "pil": ("torchvision, PIL", "ImageFolder's default: PIL images until they are tensors, transforms v2."),
        "tensor": ("torchvision, tensors", "Decoded by torchvision.io to uint8, transforms v2, normalised one by one."),
        "batch": ("torchvision, tensors, normalised in batches", "The same, normalised after default_collate."),
    }
    for workers in (0, 2):
        first = workers == 0
        note = "JPEG decoded at 1/2, 1/4 or 1/8 if the crop needs no more, as by default." if first else ""
        row("fulgur", "Fulgur", fulgur, ["--decode", "scaled"], workers, sets, note)
        note = "scaled_decode: false; torchvision has no scaled decode." if first else ""
        row("fulgur_full", "Fulgur, full decode", fulgur, ["--decode", "full"], workers, ["photos"], note)
        for mode, (title, note) in ways.items():
            row(f"torch_{mode}", title, torch, ["--mode", mode], workers, sets, note if first else "")

    def over(title, ours, workers, case, key, aim=None):
        """torchvision's best way over ours."""

        def value(results, statistic):
            best = min(results.statistic(f"torch_{way}_{workers}", key, statistic, case) for way in ways)
            return best / results.statistic(f"{ours}_{workers}", key, statistic, case)

        return Target(f"{case}: {title}", value, aim)

    targets = []
    for title in images:
        targets.append(over("CPU time, torchvision's best over Fulgur, 0 workers", "fulgur", 0, title, "cpu_s", 1.5))
        targets.append(over("CPU time, torchvision's best over Fulgur, 2 workers", "fulgur", 2, title, "cpu_s", 1.5))
        targets.append(over("wall time, torchvision's best over Fulgur, 2 workers", "fulgur", 2, title, "wall_s"))
    photo = sets["photos"][0]
    targets.append(over("CPU time, torchvision's best over Fulgur with full decode, 0 workers", "fulgur_full", 0, photo, "cpu_s"))

    source = "10,000 of CIFAR-10's test images" if ARCHIVE.is_file() else "made images of CIFAR's size"
    return Benchmark(
        name="C5",
        title="JPEG files",
        about=f"An epoch of JPEG files in folders, shuffled, to batches of normalised float32: {source} (padded crop, flip, normalise; "
        f"batches of 128), and {photos:,} made pictures of 500 x 375 (RandomResizedCrop 224, flip, normalise; batches of 64). The files are in "
        "the page cache. CPU time is that of all threads and processes; Python's workers count in steps of 10 ms.",
        peers=peers,
        metrics=[
            Metric("cpu_s", "images/s a core", of=lambda s, case: images[case] / s, digits=0),
            Metric("wall_s", "images/s, wall", of=lambda s, case: images[case] / s, digits=0),
        ],
        targets=targets,
        rounds=1 if quick else 3,
        make_inputs=lambda folder: make_inputs(folder, small, photos),
        check=check,
    )
