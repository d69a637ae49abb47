"""Fulgur: a training orchestrator for C++ on LibTorch. The program is `trainer`, also `python -m fulgur`.

The C++ library, its headers and its CMake package are in `prefix`; CMake finds them with
-Dfulgur_DIR=$(python -c "import fulgur; print(fulgur.cmake_dir)") -DTorch_DIR=$(python -c "import fulgur; print(fulgur.torch_dir())").
"""
import pathlib

__version__ = "@VERSION@"

#: The folder with bin/, lib/, include/ and share/.
prefix = pathlib.Path(__file__).resolve().parent
#: The folder of fulgurConfig.cmake.
cmake_dir = prefix / "lib" / "cmake" / "fulgur"


def torch_dir():
    """The folder of TorchConfig.cmake of this environment's torch, which is not imported."""
    from .launcher import torch_folder

    return torch_folder() / "share" / "cmake" / "Torch"
