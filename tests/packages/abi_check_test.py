#!/usr/bin/env python3
"""What scripts/abi_check.sh says about two small libraries.

    abi_check_test.py COMPILER
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILER = "c++"
OLD = """
namespace fulgur {
struct Options { int steps = 0; };
class Trainer { public: virtual ~Trainer(); virtual int fit(const Options&); };
Trainer::~Trainer() {}
int Trainer::fit(const Options& options) { return options.steps; }
int removed_later() { return 1; }
}
"""
REMOVED = OLD.replace("int removed_later() { return 1; }", "")
ADDED = OLD.replace("int removed_later", "int added() { return 2; }\nint removed_later")
ARGUMENT = OLD.replace("removed_later()", "removed_later(int)")
LAYOUT = OLD.replace("int steps = 0;", "double rate = 0; int steps = 0;")


class AbiCheck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.old = self.library("old", OLD)

    def library(self, name, text, soname="libfulgur.so.0.1"):
        folder = Path(self.folder.name) / name
        folder.mkdir()
        (folder / "a.cpp").write_text(text)
        out = folder / "libfulgur.so.0.1.0"
        subprocess.run([COMPILER, "-g", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", out, folder / "a.cpp"], check=True)
        return out

    def check(self, *arguments):
        return subprocess.run(["bash", ROOT / "scripts/abi_check.sh", *arguments], capture_output=True, text=True)

    def both(self):
        """The modes that this machine has."""
        return [["--symbols"]] + ([[]] if shutil.which("abidiff") else [])

    def test_an_addition_is_compatible(self):
        new = self.library("new", ADDED)
        for mode in self.both():
            done = self.check(*mode, self.old, new)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("compatible", done.stdout)

    def test_a_function_that_is_missing_or_takes_other_arguments_is_not(self):
        for name, text in (("removed", REMOVED), ("argument", ARGUMENT)):
            new = self.library(name, text)
            for mode in self.both():
                done = self.check(*mode, self.old, new)
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                self.assertIn("fulgur::removed_later()", done.stdout)
                self.assertIn("same SONAME, libfulgur.so.0.1", done.stderr)

    def test_another_soname_allows_it(self):
        new = self.library("next", REMOVED, soname="libfulgur.so.0.2")
        for mode in self.both():
            done = self.check(*mode, self.old, new)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("so does the SONAME (libfulgur.so.0.1, libfulgur.so.0.2)", done.stdout)

    def test_folders_are_searched(self):
        done = self.check("--symbols", self.old.parent, self.old.parent)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(str(self.old), done.stdout)
        empty = Path(self.folder.name) / "empty"
        empty.mkdir()
        done = self.check(empty, self.old)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no libfulgur.so", done.stderr)

    def test_names_are_compared_without_abidiff(self):
        path = Path(self.folder.name) / "bin"
        path.mkdir()
        for tool in ("bash", "sed", "dirname", "readelf", "nm", "awk", "sort", "comm", "wc", "c++filt", "head", "tail", "mktemp", "rm", "find"):
            (path / tool).symlink_to(shutil.which(tool))
        done = subprocess.run(["bash", ROOT / "scripts/abi_check.sh", self.old, self.library("new", REMOVED)],
                              capture_output=True, text=True, env={**os.environ, "PATH": str(path)})
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("abidiff is missing", done.stdout)
        self.assertIn("missing: fulgur::removed_later()", done.stdout)

    @unittest.skipUnless(shutil.which("abidiff"), "needs abidiff")
    def test_abidiff_sees_another_layout(self):
        done = self.check(self.old, self.library("layout", LAYOUT))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("Options", done.stdout)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        COMPILER = sys.argv.pop(1)
    unittest.main()
