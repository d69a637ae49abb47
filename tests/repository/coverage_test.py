#!/usr/bin/env python3
"""What scripts/coverage.py says of a small program that is compiled with counters."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HEADER = """#pragma once
inline int twice(int x) {
  if (x > 100) return 0;
  return 2 * x;
}
"""
USED = """#include "twice.h"
int used(int x) {
  if (x > 3)
    return twice(x);
  return 7;
}
"""
UNUSED = """int unused(int x) {
  return x + 1;
}
"""
MAIN = """int used(int);
int main() { return used(MAIN_ARGUMENT) == 0; }
"""


@unittest.skipUnless(shutil.which("g++") and shutil.which("gcov"), "needs g++ and gcov")
class Coverage(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        for name, text in {
            "core/include/twice.h": HEADER,
            "core/src/used.cpp": USED,
            "data/src/unused.cpp": UNUSED,
            "tests/main.cpp": MAIN,
        }.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        self.build = self.root / "build"
        self.build.mkdir()
        self.objects = {}
        for name in ["core/src/used", "data/src/unused"]:
            self.objects[name] = self.compile(name)

    def tearDown(self):
        self.folder.cleanup()

    def compile(self, name, *more):
        target = self.build / (Path(name).name + ".o")
        source = self.root / f"{name}.cpp"
        include = f"-I{self.root}/core/include"
        subprocess.run(["g++", "-O0", "--coverage", include, *more, "-c", source, "-o", target], check=True)
        return target

    def run_program(self, argument):
        main = self.compile("tests/main", f"-DMAIN_ARGUMENT={argument}")
        program = self.build / "program"
        subprocess.run(["g++", "--coverage", main, *self.objects.values(), "-o", program], check=True)
        subprocess.run([program], check=True)
        # As an object whose process never ran.
        (self.build / "unused.gcda").unlink(missing_ok=True)

    def report(self, *more):
        details = self.root / "details"
        command = [sys.executable, "-B", ROOT / "scripts/coverage.py", "--build", self.build, "--root", self.root]
        done = subprocess.run([*command, "--details", details, *more], capture_output=True, text=True)
        return done, details.read_text() if details.exists() else ""

    def test_lines_are_counted_once_and_only_those_of_the_product(self):
        self.run_program(5)
        done, details = self.report()
        self.assertEqual(done.returncode, 0, done.stderr)
        # core: 3 of 4 lines of used.cpp and all 3 of twice.h; data: none of 2.
        self.assertIn("core              85.7 %  6 of 7", done.stdout)
        self.assertIn("data               0.0 %  0 of 2", done.stdout)
        self.assertIn("lines of the product that tests run: 66.7 % (6 of 9)", done.stdout)
        self.assertNotIn("\ntests ", done.stdout)
        self.assertEqual(details, "core/src/used.cpp: 5\ndata/src/unused.cpp: 1-2\n")

    def test_counts_of_several_runs_add_up(self):
        self.run_program(5)
        self.run_program(1)
        self.assertIn("core             100.0 %  7 of 7", self.report()[0].stdout)

    def test_too_little_is_a_failure(self):
        self.run_program(5)
        self.assertEqual(self.report("--least", "66")[0].returncode, 0)
        done, _ = self.report("--least", "67")
        self.assertEqual(done.returncode, 1)
        self.assertIn("less than 67 %", done.stderr)

    def test_a_build_without_counts_is_a_failure(self):
        done, _ = self.report()
        self.assertEqual(done.returncode, 1)
        self.assertIn("no counts", done.stderr)


if __name__ == "__main__":
    unittest.main()
