#!/usr/bin/env python3
"""What scripts/release.sh does to a repository."""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- One thing.
- Another thing.

## [0.1.0] - 2026-01-01

- The beginning.
"""


@unittest.skipUnless(shutil.which("git"), "needs git")
class Release(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        (self.root / "scripts").mkdir()
        for name in ["release.sh", "common.sh"]:
            shutil.copy(ROOT / "scripts" / name, self.root / "scripts")
        cmake = (ROOT / "CMakeLists.txt").read_text()
        # The script finds the version in the project's own file.
        self.assertRegex(cmake, r"(?m)^project\(fulgur VERSION [0-9]+\.[0-9]+\.[0-9]+ ")
        (self.root / "CMakeLists.txt").write_text(re.sub(r"(?m)^project\(fulgur VERSION \S+", "project(fulgur VERSION 0.1.0", cmake))
        recipe = ROOT / "packaging/vcpkg/fulgur/vcpkg.json"
        self.recipe = self.root / recipe.relative_to(ROOT)
        self.recipe.parent.mkdir(parents=True)
        self.recipe.write_text(re.sub(r'"version-semver": "[0-9.]+"', '"version-semver": "0.1.0"', recipe.read_text()))
        (self.root / "CHANGELOG.md").write_text(CHANGELOG)
        self.git("init", "--quiet")
        self.git("config", "user.name", "Tester")
        self.git("config", "user.email", "tester@example.org")
        self.git("config", "core.hooksPath", "/dev/null")
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", "Begin")

    def tearDown(self):
        self.folder.cleanup()

    def git(self, *arguments):
        done = subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def release(self, *arguments):
        script = self.root / "scripts/release.sh"
        return subprocess.run(["bash", script, *arguments], cwd="/", capture_output=True, text=True)

    def test_a_release_is_a_commit_with_a_tag(self):
        done = self.release("0.2.0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("project(fulgur VERSION 0.2.0 ", (self.root / "CMakeLists.txt").read_text())
        changes = (self.root / "CHANGELOG.md").read_text()
        self.assertRegex(changes, r"## \[Unreleased\]\n\n## \[0\.2\.0\] - \d{4}-\d\d-\d\d\n\n### Added\n\n- One thing\.")
        self.assertIn('"version-semver": "0.2.0"', self.recipe.read_text())
        self.assertEqual(self.git("log", "-1", "--format=%s"), "Release 0.2.0")
        self.assertEqual(self.git("describe"), "v0.2.0")
        self.assertEqual(self.git("status", "--porcelain"), "")

    def test_check_changes_nothing(self):
        done = self.release("--check", "0.2.0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("0.1.0 → 0.2.0, with 2 changes", done.stdout)
        self.assertEqual(self.git("status", "--porcelain"), "")
        self.assertEqual(self.git("tag"), "")

    def refused(self, version, why):
        before = self.git("rev-parse", "HEAD")
        done = self.release(version)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(why, done.stderr)
        self.assertEqual(self.git("rev-parse", "HEAD"), before)

    def test_what_is_missing_is_said(self):
        self.refused("0.0.9", "0.0.9 is not newer than 0.1.0")
        self.refused("0.1.0", "already has a section [0.1.0]")
        self.git("tag", "v0.3.0")
        self.refused("0.3.0", "the tag v0.3.0 exists")
        (self.root / "new").write_text("")
        self.refused("0.2.0", "the working tree has changes")

    def test_an_empty_changelog_is_refused(self):
        (self.root / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-01-01\n\n- The beginning.\n")
        self.git("commit", "--quiet", "-am", "Empty")
        self.refused("0.2.0", "nothing under [Unreleased]")

    def test_wrong_versions_are_errors_of_usage(self):
        for arguments in [[], ["1.2"], ["v0.2.0"], ["0.02.0"], ["0.2.0", "0.3.0"], ["--check"]]:
            self.assertEqual(self.release(*arguments).returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main()
