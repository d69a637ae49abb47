"""Starts the program with the LibTorch of this environment's package torch, which is found without importing it."""
import importlib.metadata
import importlib.util
import os
import pathlib
import sys

TORCH = "@TORCH_SERIES@"


def torch_folder():
    """The folder of the package torch. Ends the program with 2 if torch is not installed, or has another version."""
    spec = importlib.util.find_spec("torch")
    places = list(spec.submodule_search_locations or []) if spec else []
    folder = next((pathlib.Path(one) for one in places if (pathlib.Path(one) / "lib" / "libtorch_cpu.so").exists()), None)
    if folder is None:
        fail(f"this environment has no torch {TORCH}")
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        version = TORCH + ".?"  # one without metadata
    if not version.startswith(TORCH + "."):
        fail(f"fulgur needs torch {TORCH}, and this environment has torch {version}")
    return folder


def fail(what):
    print(f"trainer: {what} ({sys.prefix}). Install it: {sys.executable} -m pip install 'torch=={TORCH}.*'", file=sys.stderr)
    sys.exit(2)


def main():
    program = pathlib.Path(__file__).resolve().parent / "bin" / "trainer"
    paths = [str(torch_folder() / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = ":".join(one for one in paths if one)
    os.execv(program, ["trainer", *sys.argv[1:]])
