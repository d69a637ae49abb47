#!/usr/bin/env python3
"""Makes the wheel of a relocated installation (relocate.py wheel PREFIX). Prints its path.

    make_wheel.py PREFIX OUTPUT --version X.Y.Z --torch-version X.Y.Z

The tag names the newest glibc that a file in it needs (PEP 600): pip refuses the wheel on an older system.
"""
import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import subprocess
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent

METADATA = """\
Metadata-Version: 2.4
Name: fulgur
Version: {version}
Summary: Training orchestrator for C++ on LibTorch
License-Expression: Apache-2.0
License-File: LICENSE
Classifier: Programming Language :: C++
Classifier: Operating System :: POSIX :: Linux
Requires-Python: >=3.10
Requires-Dist: torch=={torch}.*
Description-Content-Type: text/markdown

Trains LibTorch models from a YAML config: `trainer fit --config c.yaml`. The wheel contains the program `trainer`, the library
`libfulgur.so`, its headers, its CMake package, and configs. LibTorch is that of the package torch in the same environment, for CPU or CUDA.
"""


def newest_glibc(prefix):
    needed = {(2, 17)}
    for path in prefix.rglob("*"):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            shown = subprocess.run(["readelf", "-V", path], capture_output=True, text=True, check=True).stdout
            needed |= {tuple(map(int, found)) for found in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", shown)}
    return max(needed)


def files_of(prefix, values):
    """Path in the wheel, bytes and mode."""
    for path in sorted((HERE / "wheel").glob("*.py")):
        text = path.read_text("utf-8")
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        yield f"fulgur/{path.name}", text.encode(), 0o644
    for path in sorted(prefix.rglob("*")):
        if path.is_file():
            yield "fulgur/" + path.relative_to(prefix).as_posix(), path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("prefix", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--torch-version", required=True)
    given = parser.parse_args()
    series = ".".join(given.torch_version.split(".")[:2])
    tag = "py3-none-manylinux_{}_{}_{}".format(*newest_glibc(given.prefix), platform.machine())
    name, info = f"fulgur-{given.version}-{tag}.whl", f"fulgur-{given.version}.dist-info"
    # The same files make the same wheel.
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]
    record = []
    given.output.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(given.output / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(path, data, mode=0o644, listed=True):
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}" if listed else f"{path},,")

        for path, data, mode in files_of(given.prefix, {"VERSION": given.version, "TORCH_SERIES": series}):
            add(path, data, mode)
        add(f"{info}/METADATA", METADATA.format(version=given.version, torch=series).encode())
        add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: fulgur\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
        add(f"{info}/entry_points.txt", b"[console_scripts]\ntrainer = fulgur.launcher:main\n")
        add(f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
        record.append(f"{info}/RECORD,,")
        add(f"{info}/RECORD", ("\n".join(record) + "\n").encode(), listed=False)
    print(given.output / name)


if __name__ == "__main__":
    main()
