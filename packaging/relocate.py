#!/usr/bin/env python3
"""Makes an installation independent of the folders of the machine that built it.

    relocate.py tarball|deb|wheel PREFIX --torch FOLDER --patchelf PROGRAM

PREFIX is an installation (`cmake --install`), which is changed; --torch is the LibTorch that it was built with.

  programs and libraries   find each other, and a LibTorch beside, through paths that begin at $ORIGIN
  tarball, wheel           get the libraries of the system that LibTorch does not bring, with their licences
  the CMake package        looks for LibTorch where the package may have it, not where it was at build time
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

# Libraries of the compiler and the C library, which must be those of the machine.
OF_MACHINE = re.compile(r"(ld-linux|linux-vdso|libc|libm|libdl|librt|libpthread|libutil|libgcc_s|libstdc\+\+)[.-]")
# The LibTorch beside the package, from its prefix.
BESIDE = {"tarball": "torch", "deb": None, "wheel": "../torch"}


def elf_files(folder):
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def libraries_of_system(library, torch):
    """Name and path of each library that `library` loads and that neither the machine nor LibTorch brings."""
    shown = subprocess.run(["ldd", library], capture_output=True, text=True, check=True,
                           env={"LD_LIBRARY_PATH": str(torch / "lib"), "PATH": "/usr/bin:/bin"}).stdout
    for name, path in re.findall(r"^\s*(\S+) => (\S.*?) \(0x", shown, re.MULTILINE):
        if path == "not":
            sys.exit(f"relocate.py: {library} needs {name}, which is not on this machine")
        if not OF_MACHINE.match(name) and torch.parent not in pathlib.Path(path).parents:
            yield name, pathlib.Path(path)
    if missing := re.findall(r"^\s*(\S+) => not found", shown, re.MULTILINE):
        sys.exit(f"relocate.py: {library} needs {', '.join(missing)}, which are not on this machine")


def copy_licence(library, folder):
    """Debian's file about the package of a library; other systems have no common place for it."""
    for name in (library, library.resolve(), pathlib.Path("/usr") / str(library).lstrip("/"), pathlib.Path("/usr") / str(library.resolve()).lstrip("/")):
        found = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True) if shutil.which("dpkg-query") else None
        if found is not None and found.returncode == 0:
            package = found.stdout.split(":")[0].split(",")[0]
            source = pathlib.Path("/usr/share/doc") / package / "copyright"
            if source.exists():
                shutil.copyfile(source, folder / f"{package}.txt")
                return
    print(f"relocate.py: no licence file was found for {library}", file=sys.stderr)


def bundle(prefix, torch):
    """Copies the libraries of the system to lib/fulgur/libs."""
    folder, licences = prefix / "lib/fulgur/libs", prefix / "share/fulgur/licenses"
    folder.mkdir(parents=True)
    licences.mkdir(parents=True)
    for name, path in libraries_of_system(prefix / "lib/libfulgur.so", torch):
        shutil.copyfile(path, folder / name)
        (folder / name).chmod(0o755)
        copy_licence(path, licences)


def run_paths(kind, prefix, path):
    """Where the ELF file looks for libraries."""
    up = pathlib.PurePath(*[".."] * len(path.parent.relative_to(prefix).parts))
    folder = path.parent.relative_to(prefix).as_posix()
    if folder in ("lib/fulgur/libs", "lib/fulgur/simulated_cuda"):
        return "$ORIGIN"
    paths = ["$ORIGIN"] if folder == "lib" else [f"$ORIGIN/{up}/lib"]
    if kind != "deb" and folder == "lib":
        paths.append("$ORIGIN/fulgur/libs")
    if BESIDE[kind]:
        paths.append(f"$ORIGIN/{up}/{BESIDE[kind]}/lib")
        if path.name == "libfulgur_cuda.so":
            paths.append(f"$ORIGIN/{up}/{BESIDE[kind]}/../nvidia/cu13/lib")
    return ":".join(paths)


def relocate_cmake(kind, prefix, bundled):
    config = prefix / "lib/cmake/fulgur/fulgurConfig.cmake"
    text = config.read_text("utf-8")
    where = f"${{PACKAGE_PREFIX_DIR}}/{BESIDE[kind]}" if BESIDE[kind] else ""
    text, count = re.subn(r'(?m)^# The LibTorch that this.*\nset\(FULGUR_TORCH_ROOT_AT_BUILD ".*"\)$',
                          f'# A LibTorch beside the package comes first.\nset(FULGUR_TORCH_ROOT_AT_BUILD "{where}")', text)
    if count != 1:
        sys.exit(f"relocate.py: {config} does not set FULGUR_TORCH_ROOT_AT_BUILD as expected")
    if bundled:
        # The linker follows libfulgur.so to the libraries that it loads.
        targets = 'include("${CMAKE_CURRENT_LIST_DIR}/fulgurTargets.cmake")\n'
        text = text.replace(targets, targets + 'set_property(TARGET fulgur::fulgur APPEND PROPERTY INTERFACE_LINK_OPTIONS\n'
                            '  "-Wl,-rpath-link,${PACKAGE_PREFIX_DIR}/lib/fulgur/libs")\n')
    config.write_text(text, "utf-8")


def flatten_links(prefix):
    """A wheel has no links: the library has the name that programs load, and libfulgur.so is a text for the linker."""
    lib = prefix / "lib"
    soname = next(path for path in lib.glob("libfulgur.so.*") if path.is_symlink())
    real = soname.resolve()
    soname.unlink()
    real.rename(soname)
    (lib / "libfulgur.so").unlink()
    (lib / "libfulgur.so").write_text(f"INPUT({soname.name})\n", "utf-8")
    for targets in (lib / "cmake/fulgur").glob("fulgurTargets-*.cmake"):
        targets.write_text(targets.read_text("utf-8").replace(f"/lib/{real.name}\"", f"/lib/{soname.name}\""), "utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("tarball", "deb", "wheel"))
    parser.add_argument("prefix", type=pathlib.Path)
    parser.add_argument("--torch", type=pathlib.Path, required=True)
    parser.add_argument("--patchelf", required=True)
    given = parser.parse_args()
    prefix, torch = given.prefix.resolve(), given.torch.resolve()
    if given.kind != "deb":
        bundle(prefix, torch)
    if given.kind != "wheel":
        # The launcher takes its place.
        (prefix / "libexec/fulgur").mkdir(parents=True)
        (prefix / "bin/trainer").rename(prefix / "libexec/fulgur/trainer")
    for path in elf_files(prefix):
        subprocess.run([given.patchelf, "--set-rpath", run_paths(given.kind, prefix, path), path], check=True)
    relocate_cmake(given.kind, prefix, bundled=given.kind != "deb")
    if given.kind == "wheel":
        flatten_links(prefix)


if __name__ == "__main__":
    main()
