"""Finds a tool of LLVM in the version whose results the tests expect."""
import os
import re
import shutil
import subprocess


def find_llvm_tool(name, version):
    """The path of `name-VERSION`, `name`, or the one beside FULGUR_TEST_PYTHON, and its full version; or (None, "")."""
    python = os.environ.get("FULGUR_TEST_PYTHON")
    beside = [os.path.join(os.path.dirname(python), name)] if python else []
    for candidate in [f"{name}-{version}", name, *beside]:
        path = shutil.which(candidate)
        if path is None:
            continue
        shown = re.search(rf"version ({version}\.[0-9.]+)", subprocess.run([path, "--version"], capture_output=True, text=True).stdout)
        if shown:
            return path, shown.group(1)
    return None, ""
