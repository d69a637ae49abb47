"""Builds the source tree in which this recipe is:

    Torch_DIR=FOLDER/torch/share/cmake/Torch conan create packaging/conan --build=missing

LibTorch 2.11 and Gloo are in no remote: LibTorch is named by Torch_DIR (or by the configuration user.fulgur:torch_dir), and
Gloo's headers are those of the system (Debian's libgloo-dev) or in user.fulgur:gloo_include.
"""
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class FulgurConan(ConanFile):
    name = "fulgur"
    description = "Training orchestrator for C++ on LibTorch"
    license = "Apache-2.0"
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    # Libraries that the project finds by name have no targets that would bring their own dependencies.
    default_options = {"libzip/*:shared": True, "libarchive/*:shared": True, "libwebp/*:shared": True, "utf8proc/*:shared": True}

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        text = load(self, os.path.join(self._root, "CMakeLists.txt"))
        self.version = self.version or re.search(r"project\(fulgur VERSION ([0-9.]+)", text)[1]

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "*/CMakeLists.txt", "*.cmake", "*.cmake.in", "*.h", "*.cpp", "configs/*.yaml",
                        "benchmarks/*.py", "scripts/*.sh", "simulated_cuda/*.py", "examples/template_project/*"):
            copy(self, pattern, self._root, self.export_sources_folder, excludes=("build/*", "packaging/*", "tests/*", ".git/*"))
        copy(self, "tests/support/host_waits.*", self._root, self.export_sources_folder)  # a benchmark counts with it

    def requirements(self):
        # From the versions of Debian 12 on.
        for reference in ("yaml-cpp/[>=0.7 <1]", "spdlog/[>=1.10 <2]", "nlohmann_json/[>=3.11 <4]", "cli11/[>=2.3 <3]", "zlib/[>=1.2.13 <2]",
                          "libzip/[>=1.7.3 <2]", "libarchive/[>=3.6.2 <4]", "libpng/[>=1.6.39 <2]", "libjpeg-turbo/[>=2.1.5 <4]", "libwebp/[>=1.2.4 <2]",
                          "utf8proc/[>=2.8 <3]", "libcurl/[>=7.88 <9]", "xxhash/[>=0.8.1 <1]", "protozero/[>=1.7.1 <2]"):
            self.requires(reference)
        self.requires("boost/[>=1.74 <2]", options={"header_only": True})

    def layout(self):
        cmake_layout(self)

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("fulgur runs on Linux only")

    def _torch_dir(self):
        folder = self.conf.get("user.fulgur:torch_dir", default=os.environ.get("Torch_DIR"))
        if not folder:
            raise ConanInvalidConfiguration("fulgur needs LibTorch 2.11: set Torch_DIR, or -c user.fulgur:torch_dir=FOLDER/torch/share/cmake/Torch")
        return folder

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        includes = [folder for name in ("xxhash", "boost", "protozero") for folder in self.dependencies[name].cpp_info.includedirs]
        toolchain.cache_variables.update({
            "Torch_DIR": self._torch_dir(),
            "CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES": ";".join(includes),
            "FULGUR_BUILD_EXAMPLES": False,
            "FULGUR_BUILD_TESTS": False,
            "FULGUR_SIMULATED_CUDA": False,
            "FULGUR_WARNINGS_AS_ERRORS": False,
        })
        if gloo := self.conf.get("user.fulgur:gloo_include"):
            toolchain.cache_variables["FULGUR_GLOO_INCLUDE"] = gloo
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build(target="trainer")

    def package(self):
        CMake(self).install()

    def package_info(self):
        # Consumers use the project's own CMake package.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs.append(os.path.join("lib", "cmake", "fulgur"))
        self.cpp_info.libs = ["fulgur"]
        self.buildenv_info.append_path("PATH", os.path.join(self.package_folder, "bin"))
        self.runenv_info.append_path("PATH", os.path.join(self.package_folder, "bin"))
