#!/usr/bin/env python3
"""Runs check_tidy.py in small trees made for it, with the .clang-tidy of ROOT: what must be reported is, and what did not
change is not checked again.

    check_tidy_test.py ROOT      exits 1 with a message at the first failure, 4 without clang-tidy
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_tidy  # noqa: E402

CLEAN = "int one() { return 1; }\n"
MOVED = """#include <string>
#include <utility>
std::string twice(std::string text) {
  std::string moved = std::move(text);
  return moved + text;
}
"""
LOCAL = "namespace { int helper() { return 1; } }\nint %s() { return helper(); }\n"
# (name, {file: text}, exit code, words of the output, words that are not in it)
CASES = [
    ("clean", {"core/src/a.cpp": CLEAN}, 0, ["0 findings"], ["unchanged"]),
    ("use after move", {"core/src/a.cpp": MOVED}, 1, ["core/src/a.cpp:5: 'text' used after it was moved [bugprone-use-after-move]"], []),
    ("one folder", {"core/src/a.cpp": MOVED, "data/src/a.cpp": CLEAN}, 0, ["1 targets, 0 findings"], []),
    ("header", {"core/src/a.cpp": '#include "a.h"\n', "core/include/a.h": "inline int* none() { return 0; }\n"}, 1,
     ["core/include/a.h:1: use nullptr [modernize-use-nullptr]"], []),
    ("warning of clang", {"core/src/a.cpp": "int one(int a) { int b; return a; }\n"}, 1, ["core/src/a.cpp:1:", "[clang-diagnostic-unused-variable]"], []),
    ("not C++", {"core/src/a.cpp": "int one( { return 1; }\n"}, 1, ["core/src/a.cpp:1:", "[clang-diagnostic-error]"], []),
    ("names in two units", {"core/src/a.cpp": LOCAL % "one", "core/src/b.cpp": LOCAL % "two"}, 0,
     ["its 2 units are checked one by one", "core/src/b.cpp:1: redefinition of 'helper'", "0 findings"], []),
    ("tests are left out", {"core/src/a.cpp": CLEAN, "tests/a.cpp": MOVED}, 0, ["1 targets, 0 findings"], []),
]


def write(tree, files):
    for name, text in files.items():
        path = os.path.join(tree, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    commands = [{"directory": os.path.join(tree, "build"), "file": os.path.join(tree, name),
                 "command": f"c++ -I{tree}/core/include -std=c++20 -O3 -Werror -o {name.split('/')[0]}/CMakeFiles/all.dir/{name}.o -c {tree}/{name}"}
                for name in files if name.endswith(".cpp")]
    with open(os.path.join(tree, "build", "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(commands, file)


def run(tree, *folders, required="1"):
    environment = {**os.environ, "FULGUR_REQUIRE_CLANG_TIDY": required, "XDG_CACHE_HOME": os.path.join(tree, "cache")}
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_tidy.py")
    done = subprocess.run([sys.executable, script, tree, os.path.join(tree, "build"), *folders], env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def expect(name, result, code, words, absent=()):
    if result[0] != code or any(word not in result[1] for word in words) or any(word in result[1] for word in absent):
        sys.exit(f"{name}: expected {code} with {words} and without {list(absent)}; got {result[0]} with\n{result[1]}")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: check_tidy_test.py ROOT")
    if check_tidy.find_llvm_tool("clang-tidy", check_tidy.VERSION)[0] is None:
        print(f"no clang-tidy {check_tidy.VERSION}")
        sys.exit(1 if os.environ.get("FULGUR_REQUIRE_CLANG_TIDY") else 4)

    def tree_of(folder, files):
        tree = os.path.realpath(folder)
        os.makedirs(os.path.join(tree, "build"))
        shutil.copy(os.path.join(sys.argv[1], ".clang-tidy"), tree)
        write(tree, files)
        return tree

    for name, files, code, words, absent in CASES:
        with tempfile.TemporaryDirectory() as folder:
            expect(name, run(tree_of(folder, files), *(["data"] if name == "one folder" else [])), code, words, absent)

    with tempfile.TemporaryDirectory() as folder:
        files = {"core/src/a.cpp": '#include "a.h"\n', "core/include/a.h": CLEAN}
        tree = tree_of(folder, files)
        expect("first", run(tree), 0, ["0 findings"], ["unchanged"])
        expect("again", run(tree), 0, ["1 files, unchanged since they were found clean"])
        write(tree, {**files, "core/include/a.h": "inline int* none() { return 0; }\n"})
        for _ in range(2):
            expect("changed header", run(tree), 1, ["core/include/a.h:1:"], ["unchanged"])
        write(tree, files)
        expect("changed back", run(tree), 0, ["unchanged"])
        with open(os.path.join(tree, ".clang-tidy"), "a", encoding="utf-8") as file:
            file.write("# another text\n")
        expect("changed .clang-tidy", run(tree), 0, ["0 findings"], ["unchanged"])
        expect("folder without sources", run(tree, "data"), 1, ["nothing was checked"])
        expect("not required", run(tree, required=""), 4, ["FULGUR_REQUIRE_CLANG_TIDY=1"])
    print(f"{len(CASES)} trees, and one that changes")


if __name__ == "__main__":
    main()
