#!/usr/bin/env python3
"""The recipes of vcpkg, Conan and Docker agree with the project, as far as that can be seen without these tools."""
import ast
import json
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A header or package that the build looks for, and its name in vcpkg and in Conan; None: not there.
NEEDS = {
    "yaml-cpp": ("yaml-cpp", "yaml-cpp"), "spdlog": ("spdlog", "spdlog"), "nlohmann_json": ("nlohmann-json", "nlohmann_json"),
    "ZLIB": ("zlib", "zlib"), "LibZip": ("libzip", "libzip"), "LibArchive": ("libarchive", "libarchive"), "PNG": ("libpng", "libpng"),
    "Utf8proc": ("utf8proc", "utf8proc"), "JPEG": ("libjpeg-turbo", "libjpeg-turbo"), "CURL": ("curl", "libcurl"), "CLI11": ("cli11", "cli11"),
    "gloo/config.h": ("gloo", None), "webp/decode.h": ("libwebp", "libwebp"), "protozero/pbf_builder.hpp": ("protozero", "protozero"),
    "boost/crc.hpp": ("boost-crc", "boost"), "xxhash.h": ("xxhash", "xxhash"),
}
VERSION = re.search(r"(?m)^project\(fulgur VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


class Recipes(unittest.TestCase):
    def test_the_list_of_needs_is_that_of_the_build(self):
        found = set(re.findall(r"(?m)^find_package\((\S+) REQUIRED\)", (ROOT / "CMakeLists.txt").read_text())) - {"Threads"}
        self.assertEqual(found, {name for name in NEEDS if "." not in name})
        for name in NEEDS:
            if "." in name and name != "xxhash.h":
                lists = "".join(path.read_text() for path in ROOT.glob("*/CMakeLists.txt"))
                self.assertIn(name, lists)

    def test_vcpkg(self):
        folder = ROOT / "packaging/vcpkg/fulgur"
        manifest = json.loads((folder / "vcpkg.json").read_text())
        self.assertEqual(manifest["version-semver"], VERSION)
        names = [one if isinstance(one, str) else one["name"] for one in manifest["dependencies"]]
        # `vcpkg format-manifest` sorts them.
        self.assertEqual(names, sorted(names))
        self.assertEqual(set(names) - {"vcpkg-cmake", "vcpkg-cmake-config"}, {vcpkg for vcpkg, _ in NEEDS.values()})
        portfile = (folder / "portfile.cmake").read_text()
        self.options_exist(portfile)
        self.assertTrue((folder / "usage").exists())

    def test_conan(self):
        text = (ROOT / "packaging/conan/conanfile.py").read_text()
        ast.parse(text)
        references = re.findall(r'"([a-z0-9_-]+)/\[>=[0-9. <]+\]"', text)
        self.assertEqual(sorted(references), sorted(conan for _, conan in NEEDS.values() if conan))
        self.options_exist(text)
        if shutil.which("conan"):
            with tempfile.TemporaryDirectory() as home:
                done = subprocess.run(["conan", "export", ROOT / "packaging/conan"], capture_output=True, text=True, env={"CONAN_HOME": home, "PATH": "/usr/bin:/bin:" + str(Path(shutil.which("conan")).parent)})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f"fulgur/{VERSION}", done.stdout + done.stderr)

    def options_exist(self, text):
        lists = "".join(path.read_text() for depth in ("", "*/") for path in ROOT.glob(depth + "CMakeLists.txt"))
        options = re.findall(r"(?:\b|-D)(FULGUR_[A-Z_]+)\b", text)
        self.assertTrue(options)
        for option in options:
            self.assertRegex(lists, rf"(option\({option}|find_path\({option})\b")

    def test_docker(self):
        text = (ROOT / "packaging/docker/Dockerfile").read_text()
        for source in re.findall(r"(?m)^COPY (?!--)(.*) \S+$", text):
            for name in source.split():
                self.assertTrue((ROOT / name).exists(), name)
        version = re.search(r"TORCH_VERSION=([0-9]+\.[0-9]+)", (ROOT / "scripts/common.sh").read_text())[1]
        self.assertIn(f'"torch=={version}.*"', text)
        # Each command, as a shell reads it.
        for command in re.findall(r"(?m)^RUN ((?:.*\\\n)*.*)$", text):
            done = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
