#!/usr/bin/env python3
"""Checks that every C++ file is as clang-format leaves it.

    check_format.py ROOT [--fix]    prints the files that are not; exits 1 if there is any, 4 without clang-format 14

Versions of clang-format differ in details, so it is always version 14: `clang-format-14`, `clang-format`, or the one
beside FULGUR_TEST_PYTHON (from tests/requirements.txt). With FULGUR_REQUIRE_CLANG_FORMAT=1 its absence is a failure.
"""
import os
import subprocess
import sys

VERSION = 14
sys.dont_write_bytecode = True
for folder in ("architecture", "support"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", folder))
from check_architecture import CODE, tracked_files  # noqa: E402
from llvm_tool import find_llvm_tool  # noqa: E402


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--fix"]
    if len(arguments) != 1 or not os.path.isfile(os.path.join(arguments[0], ".clang-format")):
        sys.exit("usage: check_format.py ROOT [--fix] (ROOT: a folder with .clang-format)")
    root = arguments[0]
    tool, _ = find_llvm_tool("clang-format", VERSION)
    if tool is None:
        print(f"no clang-format {VERSION}: pip install clang-format=={VERSION}.0.6")
        sys.exit(1 if os.environ.get("FULGUR_REQUIRE_CLANG_FORMAT") else 4)
    files = [name for name in tracked_files(root) if name.endswith(CODE)]
    if not files:
        sys.exit("no source files found: nothing was checked")
    mode = ["-i"] if "--fix" in sys.argv else ["--dry-run", "-Werror"]
    bad = []
    for begin in range(0, len(files), 50):
        some = files[begin:begin + 50]
        if subprocess.run([tool, *mode, *some], cwd=root, capture_output=True).returncode == 0:
            continue
        bad += [name for name in some if subprocess.run([tool, *mode, name], cwd=root, capture_output=True).returncode != 0]
    for name in bad:
        print(f"{name}: not formatted; run {os.path.relpath(os.path.abspath(__file__), root)} . --fix")
    print(f"{len(files)} source files, {len(bad)} not formatted")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
