#!/usr/bin/env python3
"""What benchmarks/harness/compare.py says of two builds: with test programs in their places, so that it needs no build."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# As step_overhead: a report with rows. Process N of a build takes `base` plus some of the noise.
PROGRAM = """#!{python}
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
given = json.load(open(os.path.join(here, "numbers")))
count = os.path.join(here, "count")
n = int(open(count).read()) if os.path.exists(count) else 0
open(count, "w").write(str(n + 1))
noise = 1 + given["noise"] * ((n * 7) % 5 - 2)
row = [{{"cpu_s": given["cpu_s"] * noise, "added_s": given["added_s"]}}] * 3
json.dump({{"rows": {{"trainer": row, "added": [{{"added_s": given["added_s"]}}]}}}}, open(sys.argv[sys.argv.index("--report") + 1], "w"))
"""


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def build(self, name, cpu_s, noise=0.0, added_s=1.0):
        folder = self.path / name / "bin"
        folder.mkdir(parents=True)
        program = folder / "step_overhead"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        (folder / "numbers").write_text(json.dumps({"cpu_s": cpu_s, "noise": noise, "added_s": added_s}))
        return self.path / name

    def compare(self, a, b, *more):
        rows = self.path / "rows.json"
        script = ROOT / "benchmarks/harness/compare.py"
        command = [sys.executable, "-B", str(script), "C1", "--a", str(a), "--b", str(b), "--json", str(rows), *more]
        done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
        return done, {(r["row"], r["number"]): r for r in json.loads(rows.read_text())} if rows.exists() else {}

    def test_equal_builds_are_the_same(self):
        done, rows = self.compare(self.build("a", 1.0, 0.01), self.build("b", 1.0, 0.01))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({row["verdict"] for row in rows.values()}, {"same"})
        self.assertIn("0 slower, 0 faster", done.stdout)

    def test_a_slower_build_fails(self):
        done, rows = self.compare(self.build("a", 1.0, 0.01), self.build("b", 1.2, 0.01))
        self.assertEqual(done.returncode, 1)
        slower = rows["trainer", "cpu_s"]
        self.assertEqual(slower["verdict"], "slower")
        self.assertAlmostEqual(slower["ratio"], 1.2, delta=0.03)
        self.assertTrue(1.1 < slower["low"] <= slower["ratio"] <= slower["high"] < 1.3)
        self.assertEqual(rows["added", "added_s"]["verdict"], "same")

    def test_a_faster_build_passes(self):
        done, rows = self.compare(self.build("a", 1.0, 0.01), self.build("b", 0.8, 0.01))
        self.assertEqual(done.returncode, 0)
        self.assertEqual(rows["trainer", "cpu_s"]["verdict"], "faster")

    def test_a_difference_within_the_noise_is_none(self):
        done, rows = self.compare(self.build("a", 1.0, 0.10), self.build("b", 1.05, 0.10))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(rows["trainer", "cpu_s"]["verdict"], "same")

    def test_a_difference_within_the_tolerance_is_none(self):
        builds = self.build("a", 1.0), self.build("b", 1.05)
        self.assertEqual(self.compare(*builds, "--tolerance", "0.1")[0].returncode, 0)
        self.assertEqual(self.compare(*builds)[0].returncode, 1)

    def test_wrong_arguments(self):
        builds = self.build("a", 1.0), self.build("b", 1.0)
        self.assertEqual(self.compare(*builds, "--rounds", "2")[0].returncode, 2)
        self.assertEqual(self.compare(*builds, "C99")[0].returncode, 2)

    def test_a_program_that_fails_is_named(self):
        broken = self.build("b", 1.0)
        (broken / "bin/step_overhead").write_text("#!/bin/sh\necho no such file >&2\nexit 3\n")
        done, _ = self.compare(self.build("a", 1.0), broken)
        self.assertEqual(done.returncode, 1)
        self.assertIn("ended with code 3", done.stderr)
        self.assertIn("no such file", done.stderr)


class Script(unittest.TestCase):
    def run_script(self, *arguments):
        return subprocess.run(["bash", str(ROOT / "scripts/compare.sh"), *arguments], capture_output=True, text=True)

    def test_it_explains_itself_and_refuses_what_it_cannot_compare(self):
        helped = self.run_script("--help")
        self.assertEqual(helped.returncode, 0)
        self.assertIn("scripts/compare.sh main HEAD", helped.stdout)
        self.assertEqual(self.run_script("main").returncode, 2)
        for missing in ("no-such-commit", "."), (".", "no-such-commit"):
            refused = self.run_script(*missing)
            self.assertEqual(refused.returncode, 2)
            self.assertIn("there is no commit 'no-such-commit'", refused.stderr)
        self.assertIn("the same commit", self.run_script(".", ".").stderr)


if __name__ == "__main__":
    unittest.main()
