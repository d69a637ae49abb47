#!/usr/bin/env python3
"""Checks the rules of docs/architecture.md that can be seen in the text of the files.

    check_architecture.py ROOT      prints one line per breach, FILE:LINE: RULE; exits 1 where there is any
"""
import os
import re
import subprocess
import sys

# Which folders a folder may include, beside itself; None: all except simulated_cuda. The order is that of the dependencies.
MAY_INCLUDE = {
    "core": set(),
    "data": {"core"},
    "text": {"core", "data"},
    "images": {"core", "data"},
    "optim": {"core"},
    "nn": {"core"},
    "capture": {"core"},
    "metrics": {"core"},
    "models": {"core", "metrics", "nn", "checkpoint"},
    "strategies": {"core", "nn", "capture"},
    "cuda": {"core", "strategies"},
    "virtual_devices": {"core"},
    "simulated_cuda": set(),
    "checkpoint": {"core"},
    "tables": {"core", "data", "checkpoint"},
    "callbacks": {"core", "checkpoint"},
    "loggers": {"core"},
    "trainer": {"core", "data", "text", "optim", "nn", "capture", "strategies", "virtual_devices", "checkpoint", "callbacks", "loggers"},
    "history": {"core", "checkpoint", "trainer"},
    "apps": None,
}

# The sub-folders of FOLDER/src in the order of their dependencies; files beside them come last. A file includes its own
# sub-folder and those before it. The headers of core have the same sub-folders. src/nccl of simulated_cuda is a
# separate library with sub-folders.
SUBFOLDERS = {
    "core": ["text", "system", "options", "state", "device", "contracts"],
    "strategies": ["cluster", "launch", "distributed", "precision", "operations", "sharding", "creation", "tensor", "pipeline"],
    "data": ["sampling", "reading", "loading", "datasets", "modules"],
    "text": ["unicode", "words", "tokenizers", "training", "files", "modules"],
    "images": ["kernels", "decoding", "datasets", "modules"],
    "checkpoint": ["io", "formats", "snapshot"],
    "tables": ["reading", "columns", "arrays"],
    "callbacks": ["steps", "weights", "batches"],
    "history": ["reading", "drawing", "sweep"],
    "loggers": ["files", "media", "tensorboard", "mlflow"],
    "models": ["parts", "vision", "generative", "tabular", "language", "python"],
    "simulated_cuda/src/nccl": ["ranks", "work"],
    "trainer": [
        "config",
        "process",
        "logging",
        "profiling",
        "services",
        "saving",
        "run",
        "checkpointing",
        "context",
        "predictions",
        "capture",
        "loops",
        "failures",
        "setup",
    ],
}

CODE = (".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# Never in a public header: users would need these packages, or pay for them in every file.
NOT_IN_HEADERS = re.compile(r"^(yaml-cpp|spdlog|fmt|CLI|nlohmann|catch2|protozero|boost|curl)/|^(zlib|zip|xxhash|png|utf8proc|jpeglib|webp/decode)\.h$|^torch/all\.h$")
# Never at all: 12 s a file.
NOT_ANYWHERE = re.compile(r"^torch/torch\.h$")
# What needs CUDA's headers is libfulgur_cuda.so.
ONLY_IN_CUDA = re.compile(r"^(cuda|cuda_runtime|cuda_runtime_api|nccl|cudnn|cublas_v2)\.h$|^(c10|ATen|torch/csrc)/(.*/)?cuda/|ProcessGroupNCCL")
# Process groups belong to the strategies.
ONLY_IN_STRATEGIES = re.compile(r"^torch/csrc/distributed/")

# LibTorch's own, which this project replaces: unsafe files, and a loader that cannot be resumed.
NOT_USED = [
    (re.compile(r"\btorch::(save|load)\s*\("), "torch::save and torch::load write and read unsafe files; use checkpoint/"),
    (re.compile(r"\btorch::data\b"), "torch::data cannot be resumed; use data/"),
    (re.compile(r"\btorch::serialize\b|\bat::pickle_|\btorch::pickle_"), "archives of LibTorch are not used; use checkpoint/"),
]

# A test that needs a GPU is found by its tag, and never skips where FULGUR_REQUIRE_GPU forbids it.
GPU_HELPER = "tests/support/gpu.h"
NOT_IN_TESTS = re.compile(r"\bno CUDA device\b|\bSKIP\([^;]*\bwhy_no_cuda\b")
TEST_CASE = re.compile(r'\bTEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)(?:,\s*"([^"]*)"\s*)?\)')
NEEDS_GPU = re.compile(r"\bon (a|several|two)?\s*GPUs?\b", re.IGNORECASE)

# Programs of LibTorch's own that Fulgur is compared with.
PEER = re.compile(r"^benchmarks/cpp/[^/]*libtorch[^/]*$")

# A file that names a machine's folders works on that machine only. (Text after `env:` or `~` is a user's own.)
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(root|work|home)(/|\b(?=[\s\"'`:;,)]|$))")
SIBLING = "shared"  # the folder beside the repository that only .ci/run may name
SHARED_PATH = re.compile(rf"\.\./{SIBLING}\b")
MAY_NAME_SHARED = {".ci/run"}
# This test spells out what it looks for.
OWN = "tests/architecture/"


# The path of a file of this project in Markdown or in a comment, whole or from any folder on. A path with capitals, such
# as FOLDER/src/name.cpp, is a placeholder.
MENTION = re.compile(r"(?<![\w./~$}{*@+-])((?:[a-z_][a-z0-9_-]*/)+[a-z0-9_.-]+\.(?:h|hpp|cpp|py|sh|md))(?![\w/*])")
# The changelog names files as they were, and tests those of a tree that they make.
NAMES_OTHER_FILES = {"CHANGELOG.md", "tests/docs/check_docs_test.py", "tests/tidy/check_tidy_test.py"}
COMMENT = {".h": "//", ".hpp": "//", ".cpp": "//", ".cu": "//", ".py": "#", ".sh": "", ".cmake": "#", ".txt": "#", ".yaml": "#", ".md": ""}
# FOLDER/{one,two}.cpp, as shells expand it.
BRACES = re.compile(r"((?:[a-z_][a-z0-9_-]*/)+)\{([a-z0-9_,]+)\}(\.(?:h|hpp|cpp|py|sh|md))")

# At the beginning of a line, since namespaces are not indented.
DEFINITION = re.compile(r"(?:class|struct) (?:[A-Z_]+ )?(\w+)\b[^;]*$")
DECLARATION = re.compile(r"(?:class|struct) (\w+);")

WARNING = re.compile(r'log::warn\(\s*"([a-z_.0-9]+)"')


def tracked_files(root):
    """Files under version control, or all but build folders where there is none (a tarball)."""
    try:
        # The folder may belong to another user than the one that tests.
        listed = subprocess.run(["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z"], capture_output=True, check=True).stdout
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
        if names:
            return [name for name in names if os.path.isfile(os.path.join(root, name)) and not os.path.islink(os.path.join(root, name))]
    except (OSError, subprocess.CalledProcessError):
        pass
    names = []
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in (".git", "build", "install", "fulgur_logs", "__pycache__")]
        names += [os.path.relpath(os.path.join(folder, name), root) for name in files]
    return names


def lines_of(root, name):
    """Numbered lines; none of a binary file."""
    with open(os.path.join(root, name), "rb") as file:
        data = file.read()
    if b"\0" in data:
        return []
    return list(enumerate(data.decode("utf-8", "replace").splitlines(), 1))


def without_comments(lines):
    """Lines of C++ without what stands behind // and between /* and */. Strings with // in them lose their end: no rule
    looks there."""
    out, inside = [], False
    for number, line in lines:
        text, rest = "", line
        while rest:
            if inside:
                end = rest.find("*/")
                rest, inside = (rest[end + 2:], False) if end >= 0 else ("", True)
                continue
            slash, star = rest.find("//"), rest.find("/*")
            if slash >= 0 and (star < 0 or slash < star):
                text, rest = text + rest[:slash], ""
            elif star >= 0:
                text, rest, inside = text + rest[:star], rest[star + 2:], True
            else:
                text, rest = text + rest, ""
        out.append((number, text))
    return out


def subfolder_of(name):
    """The key of SUBFOLDERS for the file and the number of its sub-folder there; None if it has none."""
    parts = name.split("/")
    if parts[0] == "core" and parts[1:4] in (["include", "fulgur", "core"], ["internal", "fulgur", "core"]):
        parts = ["core", "src"] + parts[4:]
    if parts[:3] == ["simulated_cuda", "src", "nccl"]:
        parts = ["simulated_cuda/src/nccl", "src"] + parts[3:]
    if len(parts) < 3 or parts[1] != "src" or parts[0] not in SUBFOLDERS:
        return None
    order = SUBFOLDERS[parts[0]]
    return parts[0], order.index(parts[2]) if len(parts) > 3 and parts[2] in order else len(order)


def check_subfolders(name, path, number, report):
    """The order inside FOLDER/src: `path` is a quoted include of the file `name`."""
    place = subfolder_of(name)
    if not place:
        return
    folder, own = place
    order = SUBFOLDERS[folder]
    if folder == "core" and path.startswith("fulgur/core/"):
        path = path[len("fulgur/core/"):]
    if folder == "trainer" and path == "fulgur/trainer/trainer.h" and own < order.index("setup"):
        report(name, number, "what lies below trainer/src/setup/ does not include the Trainer: take components.h")
    other = path.split("/")[0] if "/" in path else None
    if other in order and order.index(other) > own:
        report(name, number, f"{os.path.dirname(name)}/ does not include {other}/, which comes after it")


def check_declarations(code, report):
    """`code`: lines by file. No header declares a class that a later sub-folder of its component defines."""
    defined = {}
    for name, lines in code.items():
        for _, line in lines if subfolder_of(name) else []:
            if match := DEFINITION.match(line):
                defined.setdefault(match.group(1), set()).add(subfolder_of(name))
    for name, lines in code.items():
        for number, line in lines if subfolder_of(name) and name.endswith(".h") else []:
            match = DECLARATION.match(line)
            places = [place for place in defined.get(match.group(1), ()) if place[0] == subfolder_of(name)[0]] if match else []
            if places and min(places) > subfolder_of(name):
                report(name, number, f"no declaration of {match.group(1)}, which a later sub-folder defines: move one of the two")


def check_rings(code, report):
    """`code`: lines by file. No files of a component include each other in a ring, where x.h and x.cpp of one folder count
    as one file. Public headers, which include no other files, are in no ring with them."""
    stem = {name: os.path.splitext(name)[0] for name in code}
    includes = {}
    for name, lines in code.items():
        folders = name.split("/")[:-1]
        for number, line in lines:
            if not (match := INCLUDE.match(line)) or match.group(1) != '"':
                continue
            paths = ["/".join(folders[:depth] + [match.group(2)]) for depth in range(len(folders), 0, -1)]
            path = next((path for path in paths if path in code), name)
            if stem[path] != stem[name]:
                includes.setdefault(stem[name], {}).setdefault(stem[path], (name, number))

    def reached(begin):
        seen, left = set(), [begin]
        while left:
            left += (new := includes.get(left.pop(), {}).keys() - seen)
            seen |= new
        return seen

    reach = {file: reached(file) for file in includes}
    rings = {frozenset(other for other in seen if file in reach.get(other, ())) for file, seen in reach.items() if file in seen}
    for ring in rings:
        first = min(ring)
        name, number = min(place for path, place in includes[first].items() if path in ring)
        report(name, number, "files include each other in a ring: " + ", ".join(sorted(ring)))


def check_code(root, name, report):
    parts = name.split("/")
    folder = parts[0]
    public = len(parts) > 2 and parts[1] == "include"
    lines = without_comments(lines_of(root, name))
    for number, line in lines:
        for pattern, rule in NOT_USED:
            if pattern.search(line) and not PEER.match(name):
                report(name, number, rule)
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, path = match.groups()
        if NOT_ANYWHERE.search(path):
            report(name, number, f"<{path}> is never included: take the narrowest header")
        if public and NOT_IN_HEADERS.search(path):
            report(name, number, f"a public header does not include <{path}>")
        if folder in MAY_INCLUDE and folder not in ("cuda", "simulated_cuda") and ONLY_IN_CUDA.search(path):
            report(name, number, f"only cuda/ includes <{path}>")
        if folder in MAY_INCLUDE and folder not in ("strategies", "cuda") and ONLY_IN_STRATEGIES.search(path):
            report(name, number, f"only strategies/ and cuda/ include <{path}>")
        own = re.match(r"fulgur/(\w+)/", path)
        if own and folder in MAY_INCLUDE:
            other, allowed = own.group(1), MAY_INCLUDE[folder]
            if other not in MAY_INCLUDE:
                report(name, number, f"there is no folder '{other}'")
            elif other != folder and (other == "simulated_cuda" if allowed is None else other not in allowed):
                may = "all except simulated_cuda" if allowed is None else ", ".join(sorted(allowed)) or "nothing"
                report(name, number, f"{folder}/ does not include {other}/ (it may: {may})")
        if quote == '"':
            check_subfolders(name, path, number, report)
        if quote == '"' and ".." in path.split("/"):
            report(name, number, f"no '..' in an include: \"{path}\"")
        if public and os.path.exists(os.path.join(root, path.split("/")[1] if own else "", "internal", path)):
            report(name, number, f"a public header does not include an internal one: \"{path}\"")
        if public and quote == '"' and not own:
            report(name, number, f"a public header includes public headers only: \"{path}\"")
    if public:
        if name.endswith(".h") and parts[2:4] != ["fulgur", folder] and parts[2:] != ["fulgur", "fulgur.h"]:
            report(name, 1, f"public headers of {folder}/ lie in {folder}/include/fulgur/{folder}/")
        first = next((text for _, text in lines if text.strip()), "")
        if first.strip() != "#pragma once":
            report(name, 1, "a header begins with #pragma once")


def check_tests(root, name, report):
    lines = lines_of(root, name)
    for number, line in lines:
        if NOT_IN_TESTS.search(line) and name != GPU_HELPER:
            report(name, number, f"a test asks for a GPU by require_gpus of {GPU_HELPER}")
    text = "\n".join(line for _, line in lines)
    for match in TEST_CASE.finditer(text):
        if NEEDS_GPU.search(match.group(1)) and "[gpu]" not in (match.group(2) or ""):
            report(name, text.count("\n", 0, match.start()) + 1, "a test that needs a GPU has the tag [gpu]")


def check_warnings(root, name, documented, report):
    text = "\n".join(line for _, line in lines_of(root, name))
    for match in WARNING.finditer(text):
        if f"`{match.group(1)}`" not in documented:
            report(name, text.count("\n", 0, match.start()) + 1, f"docs/errors.md has the warning {match.group(1)}")


class KnownPaths:
    """Which mentions of paths mean a file of the project."""

    def __init__(self, names):
        self.paths, self.folders = set(), set()
        for name in names:
            parts = name.split("/")
            self.folders.update(parts[:-1])
            self.paths.update("/".join(parts[begin:]) for begin in range(len(parts)))

    def lacks(self, mention):
        return mention.split("/")[0] in self.folders and mention not in self.paths


def without_braces(line):
    return BRACES.sub(lambda found: " ".join(found[1] + stem + found[3] for stem in found[2].split(",")), line)


def check_mentions(root, name, known, report):
    mark = COMMENT.get(os.path.splitext(name)[1])
    if mark is None or name in NAMES_OTHER_FILES:
        return
    for number, line in lines_of(root, name):
        for mention in MENTION.findall(without_braces(line[line.find(mark):]) if mark in line else ""):
            if known.lacks(mention):
                report(name, number, f"there is no file {mention}")


def check(root):
    breaches = []
    errors = os.path.join(root, "docs/errors.md")
    documented = open(errors, encoding="utf-8").read() if os.path.isfile(errors) else ""

    def report(name, number, rule):
        breaches.append(f"{name}:{number}: {rule}")

    names = sorted(tracked_files(root))
    known = KnownPaths(names)
    code = {
        name: without_comments(lines_of(root, name)) for name in names if name.endswith(CODE) and name.split("/")[0] in MAY_INCLUDE
    }
    check_declarations(code, report)
    check_rings(code, report)
    for name in names:
        if name.startswith(OWN):
            continue
        check_mentions(root, name, known, report)
        if name.endswith(CODE):
            check_code(root, name, report)
            if name.startswith("tests/"):
                check_tests(root, name, report)
            elif not name.startswith(("examples/", "benchmarks/")):
                check_warnings(root, name, documented, report)
        for number, line in lines_of(root, name):
            if MACHINE_PATH.search(line):
                report(name, number, "no path of one machine: " + line.strip()[:80])
            if SHARED_PATH.search(line) and name not in MAY_NAME_SHARED:
                report(name, number, "only .ci/run names the folder beside the repository")
    return breaches


def main():
    if len(sys.argv) != 2 or not os.path.isfile(os.path.join(sys.argv[1], "CMakeLists.txt")):
        sys.exit("usage: check_architecture.py ROOT (a folder with CMakeLists.txt)")
    files = [name for name in tracked_files(sys.argv[1]) if name.endswith(CODE)]
    if not files:
        sys.exit("no source files found: nothing was checked")
    breaches = check(sys.argv[1])
    print("\n".join(breaches) if breaches else f"{len(files)} source files, no breach")
    sys.exit(1 if breaches else 0)


if __name__ == "__main__":
    main()
