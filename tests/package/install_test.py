#!/usr/bin/env python3
"""`cmake --install` after `cmake --build --target trainer` alone: what it installs from the build tree is built by that target.

    install_test.py NINJA BUILD_DIR
"""
import os
import re
import subprocess
import sys

ninja, build = sys.argv[1], os.path.realpath(sys.argv[2])
inputs = subprocess.run([ninja, "-C", build, "-t", "inputs", "trainer"], capture_output=True, text=True, check=True).stdout.split("\n")
built = {os.path.realpath(os.path.join(build, name)) for name in inputs} | {os.path.join(build, "bin", "trainer")}

with open(os.path.join(build, "cmake_install.cmake"), encoding="utf-8") as file:
    installed = re.findall(r'"(/[^"]*/(?:lib|bin)/[^"/]+)"', file.read())
programs = {os.path.realpath(name) for name in installed if os.path.realpath(name).startswith(build + os.sep)}
if len(programs) < 3:
    sys.exit(f"FAILED: expected the library, fulgur_main and trainer among what is installed; found {sorted(programs)}")
missing = sorted(programs - built)
if missing:
    sys.exit("FAILED: installed, but not built by the target trainer: " + ", ".join(missing))
print("installed and built:", *sorted(os.path.relpath(name, build) for name in programs))
