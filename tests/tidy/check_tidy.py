#!/usr/bin/env python3
"""Runs clang-tidy with the checks of .clang-tidy over the product's sources.

    check_tidy.py ROOT BUILD [FOLDER…]    prints findings, FILE:LINE: TEXT [CHECK], in all folders or in those named;
                                          exits 1 if there is any, 4 if FULGUR_REQUIRE_CLANG_TIDY is not set

The sources are those of BUILD/compile_commands.json, without tests, examples and benchmarks. All sources of a target are
one unit, since LibTorch's headers take most of the time. A unit without findings is noted in ~/.cache/fulgur/tidy, and is
checked again only if its text, headers of this project, its flags, .clang-tidy or clang-tidy change.

Versions of clang-tidy differ in their checks, so it is always version 23: `clang-tidy-23`, `clang-tidy`, or the one
beside FULGUR_TEST_PYTHON (from tests/requirements.txt). It needs minutes, and therefore runs only if
FULGUR_REQUIRE_CLANG_TIDY=1 is set.
"""
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from llvm_tool import find_llvm_tool  # noqa: E402

VERSION = 23
JOBS = 2
NO_PRODUCT = {"benchmarks", "build", "examples", "tests"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)
FINDING = re.compile(r"^(/.+?:\d+):\d+: (?:warning|error): (.*?)(?:,-warnings-as-errors)?(\])$")

DOES_NOT_COMPILE = "[clang-diagnostic-error"


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def clang_flags(command):
    """The flags that clang understands and that matter without generating code. A precompiled header is included as text;
    clang does not have GCC's omp.h."""
    flags = []
    words = iter(shlex.split(command)[1:])
    for word in words:
        if word in ("-o", "-c"):
            next(words)
        elif word == "-include":
            header = next(words)
            # cmake's file is a list of includes.
            flags += [part for name in INCLUDE.findall(read(header)) for part in ("-include", name)]
        elif word in ("-isystem", "-idirafter"):
            flags += [word, next(words)]
        elif not re.match(r"-W|-O|--param|-fpch|-fopenmp|-fno-omit|-fsanitize|.*/cc$|.*c\+\+$", word):
            flags.append(word)
    return flags + ["-Wall", "-Wextra"]


def targets(root, build):
    """[(folder, name, flags, [unit])] of the product's C++ sources; sources with flags of their own are a target too."""
    found = {}
    for entry in json.loads(read(os.path.join(build, "compile_commands.json"))):
        unit = os.path.join(entry["directory"], entry["file"])
        output = re.search(r" -o (\S+?)/CMakeFiles/(\S+?)\.dir/", entry["command"])
        if not output or unit.endswith((".c", "cmake_pch.hxx.cxx")):
            continue
        folder = output.group(1).split("/")[0]
        if folder in NO_PRODUCT or not os.path.isdir(os.path.join(root, folder)):
            continue
        found.setdefault((folder, output.group(2), *clang_flags(entry["command"])), []).append(unit)
    return [(folder, f"{target}_{i}", flags, units) for i, ((folder, target, *flags), units) in enumerate(found.items())]


def sources_of(unit):
    """The sources of a unit of a unity build; any other unit is its own source."""
    return [name for name in INCLUDE.findall(read(unit)) if os.path.isabs(name)] if "/Unity/" in unit else [unit]


def project_files(root, sources, flags):
    """The sources, and all of this project's headers that they include."""
    folders = [flag[2:] for flag in flags if flag.startswith("-I")]
    found, pending = set(), list(sources)
    while pending:
        path = os.path.normpath(pending.pop())
        if path in found or not path.startswith(root + os.sep) or not os.path.isfile(path):
            continue
        found.add(path)
        pending += [os.path.join(folder, name) for name in INCLUDE.findall(read(path)) for folder in [os.path.dirname(path), *folders]]
    return sorted(found)


def clean_note(root, version, sources, flags):
    """The file that exists if exactly this was checked before and nothing was found."""
    key = hashlib.sha256()
    parts = [version, read(os.path.join(root, ".clang-tidy")), read(os.path.abspath(__file__)), *flags]
    for path in project_files(root, sources, flags):
        parts += [path, read(path)]
    for part in parts:
        key.update(part.replace(root, ".").encode() + b"\0")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "fulgur", "tidy", key.hexdigest())


def run(tool, root, build, name, sources, flags):
    """Findings, [(FILE:LINE, text)], and whether the unit compiles."""
    unit = os.path.join(build, "tidy", f"{name}.cpp")
    os.makedirs(os.path.dirname(unit), exist_ok=True)
    with open(unit, "w", encoding="utf-8") as file:
        file.write("".join(f'#include "{source}"\n' for source in sources))
    done = subprocess.run([tool, "--quiet", f"--config-file={os.path.join(root, '.clang-tidy')}", unit, "--", *flags],
                          cwd=build, capture_output=True, text=True)
    findings = []
    for line in done.stdout.splitlines():
        match = FINDING.match(line)
        if match:
            findings.append((os.path.relpath(match.group(1), root), match.group(2) + match.group(3)))
    if done.returncode != 0 and not findings:
        raise RuntimeError(f"clang-tidy ended with {done.returncode} and no finding:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return findings, not any(DOES_NOT_COMPILE in text for _, text in findings)


def check(tool, version, root, build, name, flags, units):
    """Findings of one target."""
    sources = [source for unit in units for source in sources_of(unit)]
    note = clean_note(root, version, sources, flags)
    if os.path.exists(note):
        print(f"{name}: {len(sources)} files, unchanged since they were found clean")
        return []
    print(f"{name}: {len(sources)} files")
    findings, compiles = run(tool, root, build, name, sources, flags)
    if not compiles and len(units) > 1:
        print(f"{name}: does not compile as one unit, so its {len(units)} units are checked one by one, which takes longer. The names in these files must differ:")
        print("".join(f"  {place}: {text}\n" for place, text in findings if DOES_NOT_COMPILE in text), end="")
        findings = []
        for i, unit in enumerate(units):
            findings += run(tool, root, build, f"{name}_{i}", sources_of(unit), flags)[0]
    if not findings:
        os.makedirs(os.path.dirname(note), exist_ok=True)
        with open(note, "w", encoding="utf-8"):
            pass
    return findings


def main():
    if len(sys.argv) < 3 or not os.path.isfile(os.path.join(sys.argv[1], ".clang-tidy")):
        sys.exit("usage: check_tidy.py ROOT BUILD [FOLDER…] (ROOT: a folder with .clang-tidy; BUILD: one with compile_commands.json)")
    root, build = (os.path.realpath(path) for path in sys.argv[1:3])
    if not os.environ.get("FULGUR_REQUIRE_CLANG_TIDY"):
        print("not checked: clang-tidy takes minutes, so it runs only with FULGUR_REQUIRE_CLANG_TIDY=1")
        sys.exit(4)
    tool, version = find_llvm_tool("clang-tidy", VERSION)
    if tool is None:
        sys.exit(f"no clang-tidy {VERSION}: pip install the clang-tidy of tests/requirements.txt")
    found = targets(root, build)
    for folder in sys.argv[3:] or [""]:
        if not any(folder in ("", target[0]) for target in found):
            sys.exit(f"no sources of '{folder}' in {build}/compile_commands.json: nothing was checked")
    # The targets with most units begin first.
    chosen = sorted((target for target in found if not sys.argv[3:] or target[0] in sys.argv[3:]), key=lambda target: -len(target[3]))
    with concurrent.futures.ThreadPoolExecutor(JOBS) as jobs:
        checked = [jobs.submit(check, tool, version, root, build, *target[1:]) for target in chosen]
    findings = {finding for job in checked for finding in job.result()}
    for place, text in sorted(findings):
        print(f"{place}: {text}")
    print(f"{len(chosen)} targets, {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
