#!/usr/bin/env python3
"""Checks the blocks of code and the commands of README, docs/ and the READMEs of examples/.

    check_blocks.py ROOT FORK_SERVER [--plugin FILE.so] [PAGE…]

FORK_SERVER is the program `trainer` for many commands (fork_server.cpp); the plug-in has the classes of the C++ blocks (tests/docs/blocks.cpp), without which configs that
use them are left out. Prints one line per breach, FILE:LINE: RULE; exits 1 if there is any.

  yaml            is part of a config that `trainer fit --print_config` accepts, together with a model, data and an optimizer
  cpp             is compiled by tests/docs/blocks.cpp
  python          can be parsed
  cmake           runs in a script in which the commands of projects do nothing
  sh, console     can be parsed by bash; the verbs and options of `trainer` exist, and its configs are accepted; scripts exist,
                  and so do presets and targets of CMake. So do commands in the text (`trainer …`). Commands that read runs
                  and checkpoints are run in a folder with two runs, if it has the files that they name
"""
import argparse
import ast
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../docs/site")]
from fork_server import ForkServer  # noqa: E402
from markdown_pages import pages_of_project  # noqa: E402

# What a block is merged into.
BASE = "model: MlpClassifier\ndata: SyntheticDataModule\noptimizer: AdamW\ntrainer: {max_epochs: 20}\n"
# Fragments whose keys are options of a component, and the config around them.
FRAGMENTS = {
    "transforms": "data:\n  class_path: ImageFolderDataModule\n  init_args:\n    train_dir: train\n    val_dir: val\n",
}
# Classes of the C++ blocks, which the plug-in has.
OF_PLUGIN = ("WaveData", "Classifier", "TwoLayers", "GradientNoise", "CoarseInputs", "SoftmaxRegression")
# Keys with which the files of `trainer sweep` begin, and what a fragment of one is merged into.
SWEEP_KEYS = ("method", "space", "halving")
SWEEP = "method: grid\nmetric: val_loss\nspace: {optimizer.init_args.lr: [0.1, 0.2]}\n"
# A sweep of this trial starts nothing: it does not exist, or the sweep needs all trials.
NO_TRIAL = ("999", ("--trial is 999", "Remove halving or --trial"))
# What configs in commands are, beside those of the project and the base: the YAML block of that name.
CONFIGS = {
    "docs/models.md:fulgur_logs/version_0/config.yaml": "models.generation_1.1",
    "docs/tables.md:fulgur_logs/version_0/config.yaml": "tables.a_table.1",
    "docs/tables.md:power.yaml": "tables.series.1",
}
# Blocks that are not checked, and why.
EXCEPTIONS = {
    "tuning.learning_rate.1": "output with `…`; the command in its first line is that of the block above",
    "tuning.batch_size.1": "the same",
    "install.inside_another_project.1": "it would download; tests/package/subproject builds such a project",
}
# Indented blocks that begin with one of these are messages or output.
MESSAGES = ("error:", "warning:", "[")
# Programs before a command of `trainer`, which they start.
LAUNCHERS = ("srun", "torchrun", "mpirun", "nsys", "vtune")
# Programs of the system and of other projects, whose arguments are not checked.
OTHERS = {"git", "pip", "apt-get", "dnf", "export", "source", "sbatch", "grep", "python3", "nsys", "vtune", "sudo", "echo", "tar", "ln", "docker", "conan", "vcpkg"}
# Programs that a reader builds from a block or an example; tests/package runs them.
BUILT = {"softmax", "custom_module", "inference", "gpu_test", "classifier", "two_layers"}
# `trainer new` writes them into CMakeUserPresets.json (tests/package/run_new_project.sh).
PRESETS_OF_NEW = {"local", "local-debug"}
# Verbs that are run, and pages whose runs are others (with adapters).
RUN_VERBS = ("export", "inspect", "runs", "compare", "report", "watch", "list", "describe", "schema")
OTHER_RUNS = ("docs/adapters.md",)
# Verbs that read a config, and print it with --print_config.
CONFIG_VERBS = ("fit", "validate", "test", "predict", "config", "tune", "sweep")


class Trainer:
    def __init__(self, program, plugin, folder):
        self.server, self.folder = ForkServer(program), folder
        self.plugin = ["--plugin", plugin] if plugin else []
        self.helps = {}
        self.verbs = set(re.findall(r"^  ([a-z]+) {3,}", self.help(""), re.MULTILINE)) - {"main"}

    def plugin_of(self, arguments):
        return self.plugin if "--plugin" in arguments else []

    def run(self, *arguments, env=None, folder=None):
        return self.server.run(*arguments, env=env, folder=folder or self.folder)

    def help(self, verb):
        if verb not in self.helps:
            self.helps[verb] = self.run(*([verb] if verb else []), "--help-all").stdout
        return self.helps[verb]

    def refusal(self, *arguments, env=None):
        """What the program says of a config, or nothing."""
        done = self.run(*arguments, *self.plugin, "--print_config", env=env)
        return "" if done.returncode == 0 else done.stderr.strip().replace("\n", " ")

    def unknown(self, arguments):
        """Why a command cannot be right, by the names of its verb and options, or nothing."""
        verb = next((one for one in arguments if one in self.verbs), None)
        if verb is None:
            first = next((one for one in arguments if not one.startswith("-")), None)
            return f"there is no verb '{first}'" if first and re.fullmatch(r"[a-z_]+", first) else ""
        known = set(re.findall(r"(?<![\w-])(--?[a-zA-Z_-]+)", self.help(verb) + ("" if verb in ("list",) else self.help(""))))
        for one in arguments:
            name = one.split("=")[0].rstrip("+")
            if one.startswith("--") and "." not in name and name not in known and name not in self.keys():
                return f"{verb} has no option {name}"
        return ""

    def keys(self):
        if not hasattr(self, "keys_"):
            self.keys_ = {"--" + key for key in json.loads(self.run("schema").stdout)["properties"]}
        return self.keys_


def commands_of(block):
    """The text for bash, without output."""
    if block.language != "console" and not block.text.lstrip().startswith("$ "):
        return block.text
    lines, more = [], False
    for line in block.text.split("\n"):
        if line.startswith("$ ") or more:
            lines.append(line.removeprefix("$ "))
            more = line.endswith("\\")
        else:
            lines.append("")
    return "\n".join(lines)


def split(text):
    """Simple commands with the number of their line: words, and variables before them."""
    found, number, lines = [], 0, text.split("\n")
    while number < len(lines):
        first, line = number, lines[number]
        while line.endswith("\\") and number + 1 < len(lines):
            number += 1
            line = line[:-1] + " " + lines[number].strip()
        number += 1
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words, sequence = [], []
        for word in list(lexer) + [";"]:
            if set(word) <= set("&|;"):
                sequence.append(words)
                words = []
            else:
                words.append(word)
        for words in sequence:
            variables = {}
            while words and re.match(r"[A-Za-z_]\w*=", words[0]):
                key, _, value = words.pop(0).partition("=")
                variables[key] = value
            if words:
                found.append((first, variables, words))
    return found


class Checker:
    def __init__(self, root, trainer, folder, pages):
        self.root, self.trainer, self.folder = root, trainer, folder
        self.pages, self.breaches, self.counts = pages, [], {}
        self.presets = {one["name"] for kind in ("configurePresets", "buildPresets", "testPresets", "workflowPresets")
                        for path in (root / "CMakePresets.json", *root.glob("examples/*/CMakePresets.json"))
                        for one in json.loads(path.read_text("utf-8")).get(kind, [])} | PRESETS_OF_NEW
        lists = [path for depth in ("", "*/", "*/*/") for path in root.glob(depth + "CMakeLists.txt") if path.relative_to(root).parts[0] != "build"]
        self.targets = "\n".join(path.read_text("utf-8") for path in lists)
        self.own_cmake = sorted({name for path in root.glob("cmake/*.cmake") for name in re.findall(r"^(?:function|macro)\((\w+)", path.read_text("utf-8"), re.MULTILINE)})
        self.included = set(re.findall(r'#include "([^"]+)\.inc"', (pathlib.Path(HERE) / "blocks.cpp").read_text("utf-8")))

    def report(self, name, line, rule):
        self.breaches.append(f"{name}:{line}: {rule}")

    def check(self):
        for page in self.pages.values():
            for block in page.blocks:
                kind = block.language or self.kind_of_indented(block)
                self.counts[kind] = self.counts.get(kind, 0) + 1
                if kind == "":
                    self.report(block.page, block.line, "an indented block is commands or messages; give others a fence with a language, such as text")
                elif block.name not in EXCEPTIONS:
                    getattr(self, "check_" + {"bash": "sh", "console": "sh"}.get(kind, kind))(block)
            for line, span in page.spans:
                if re.match(r"trainer [a-z]+( |$)", span) and "…" not in span:
                    self.check_span(page.name, line, span)

    def kind_of_indented(self, block):
        text = block.text.lstrip()
        if text.startswith(MESSAGES):
            return "text"
        try:
            first = next(iter(split(commands_of(block))), None)
        except ValueError:
            return ""
        known = first and (self.program_of(first[2]) is not None or first[2][0] in OTHERS)
        return "sh" if known else ""

    def check_text(self, block):
        pass

    def check_cpp(self, block):
        if block.name not in self.included:
            self.report(block.page, block.line, f'no test compiles this block: tests/docs/blocks.cpp does not include "{block.name}.inc"')

    def check_python(self, block):
        try:
            ast.parse(block.text.replace("…", "..."))
        except SyntaxError as error:
            self.report(block.page, block.line + (error.lineno or 1) - 1, f"Python cannot parse this: {error.msg}")

    def check_cmake(self, block):
        stubs = ["cmake_minimum_required", "project", "find_package", "add_executable", "add_library", "target_link_libraries", "enable_testing",
                 "add_subdirectory", "add_test", *self.own_cmake]
        script = "".join(f"function({name})\nendfunction()\n" for name in stubs) + block.text
        file = self.folder / "block.cmake"
        file.write_text(script, "utf-8")
        done = subprocess.run([os.environ.get("CMAKE_COMMAND", "cmake"), "-P", file], capture_output=True, text=True)
        if done.returncode != 0:
            self.report(block.page, block.line, "CMake cannot run this: " + " ".join(done.stderr.split())[:300])

    def check_yaml(self, block):
        if not self.trainer.plugin and re.search(rf"\b({'|'.join(OF_PLUGIN)})\b", block.text):
            return
        keys = re.findall(r"^(\w+):", block.text, re.MULTILINE) or re.findall(r"^ +(\w+):", block.text, re.MULTILINE)
        if keys and keys[0] in SWEEP_KEYS:
            self.check_sweep(block, keys)
            return
        text = block.text
        if keys and keys[0] in FRAGMENTS:
            margin = min(len(line) - len(line.lstrip()) for line in text.split("\n") if line.strip())
            text = FRAGMENTS[keys[0]] + "".join(f"    {line[margin:]}\n" for line in text.split("\n"))
        (self.folder / "base.yaml").write_text(BASE, "utf-8")
        (self.folder / "block.yaml").write_text(text, "utf-8")
        for name in re.findall(r"^plugin: \[([\w./-]+)\]", text, re.MULTILINE):  # that of the test takes its place
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if self.trainer.plugin and not file.exists():
                file.symlink_to(self.trainer.plugin[1])
        said = self.trainer.refusal("fit", "--config", "base.yaml", "--config", "block.yaml")
        if said:
            self.report(block.page, block.line, "trainer refuses this config: " + said[:400])
            return
        sources = re.findall(r"^ +[\w.]+: data\.(\w+)\??(?: *#.*)?$", text, re.MULTILINE)
        if sources:
            shown = self.trainer.run("fit", "--config", "base.yaml", "--config", "block.yaml", *self.trainer.plugin, "--print_config").stdout
            data = re.search(r"^data:\n  class_path: (\w+)", shown, re.MULTILINE)[1]
            provided = re.search(r"Provides for link, as data.NAME: (.*)", self.trainer.run("describe", data, *self.trainer.plugin).stdout)
            for source in sources:
                # A class of a block need not say what it provides.
                if provided and source not in re.findall(r"\w+", provided[1]):
                    self.report(block.page, block.line, f"{data} provides no data.{source}, but " + provided[1])

    def check_sweep(self, block, keys):
        """A sweep of one process that has no such trial reads and checks everything, and starts nothing."""
        text = block.text + "".join(f"{line}\n" for line in SWEEP.split("\n") if line and line.split(":")[0] not in keys)
        base = BASE
        if "folds" in keys:
            base = base.replace("SyntheticDataModule", "{class_path: TableDataModule, init_args: {paths: [table.csv], target: [y]}}")
        (self.folder / "base.yaml").write_text(base, "utf-8")
        # With halving, the points are not checked: one process must start all trials.
        for part in dict.fromkeys([text, re.sub(r"^halving:.*\n", "", text, flags=re.MULTILINE)]):
            (self.folder / "sweep.yaml").write_text(part, "utf-8")
            done = self.trainer.run("sweep", "--config", "base.yaml", "--sweep", "sweep.yaml", "--dir", f"sweep{len(part)}", "--trial", NO_TRIAL[0])
            if done.returncode == 0 or not any(one in done.stderr for one in NO_TRIAL[1]):
                self.report(block.page, block.line, "trainer refuses this sweep: " + done.stderr.strip().replace("\n", " ")[:400])

    def program_of(self, words):
        """The arguments of `trainer` in a command that starts it, or its words; None for an unknown program."""
        name = pathlib.PurePosixPath(words[0]).name
        if name == "trainer":
            return ["trainer", *words[1:]]
        if name in LAUNCHERS or name in ("simulated_gpu.sh", "fulgur-simulated-gpu"):
            for number, word in enumerate(words[1:], 1):
                if pathlib.PurePosixPath(word).name == "trainer":
                    return ["trainer", *words[number + 1:]]
        if name in BUILT or name in ("cmake", "ctest", "simulated_gpu.sh", "fulgur-simulated-gpu", "measure.sh"):
            return words
        if words[0].startswith("build/") and re.search(rf"\b{re.escape(name)}\b", self.targets):
            return words
        if "/" in words[0] and (self.root / words[0].removeprefix("./")).exists():
            return words
        return None

    def check_sh(self, block):
        text = commands_of(block)
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        if done.returncode != 0:
            self.report(block.page, block.line, "bash cannot parse this: " + done.stderr.strip())
            return
        for number, variables, words in split(text):
            self.check_command(block.page, block.line + number, variables, words)

    def check_command(self, name, line, variables, words):
        if "…" in words:
            words = words[:words.index("…")]
        program = self.program_of(words)
        if program is None:
            if words[0] not in OTHERS and words[0] not in LAUNCHERS:
                self.report(name, line, f"there is no program {words[0]} in this project, and it is not one of OTHERS of check_blocks.py")
            return
        if program[0] == "trainer":
            self.check_trainer(name, line, variables, program[1:])
        elif program[0] in ("cmake", "ctest"):
            for key, value in zip(program, program[1:]):
                if key == "--preset" and value not in self.presets:
                    self.report(name, line, f"there is no preset {value}")
                if key == "--target" and not re.search(rf"\b{value}\b", self.targets):
                    self.report(name, line, f"there is no target {value}")
        # A compiled program is no text in which its options could be found.
        elif not program[0].startswith("build/") and (self.root / program[0].removeprefix("./")).is_file():
            script = (self.root / program[0].removeprefix("./")).read_text("utf-8")
            for one in program[1:]:
                option = one.split("=")[0]
                if option.startswith("--") and option not in script:
                    self.report(name, line, f"{program[0]} has no option {option}")

    def check_trainer(self, name, line, variables, arguments):
        why = self.trainer.unknown(arguments)
        if why:
            self.report(name, line, "trainer: " + why)
            return
        verb = next((one for one in arguments if one in self.trainer.verbs), None)
        if verb in RUN_VERBS and name not in OTHER_RUNS:
            self.check_run(name, line, arguments)
        if verb not in CONFIG_VERBS:
            return
        arguments = [self.available(name, re.sub(r"^\$\w+$", "0", one)) for one in arguments]
        if "--plugin" in arguments:  # that of the test takes its place
            del arguments[arguments.index("--plugin"):arguments.index("--plugin") + 2]
        # The place among other machines is not that of this test.
        env = {key: value for key, value in variables.items() if key.startswith("FULGUR_")}
        said = self.trainer.refusal(*arguments, *([] if any(one in ("-c", "--config", "--model") for one in arguments) else ["--config", "c.yaml"]), env=env)
        if said:
            self.report(name, line, "trainer refuses this command: " + said[:400])

    def check_run(self, name, line, arguments):
        runs = self.two_runs()
        named = [one for one, before in zip(arguments, ["", *arguments]) if before not in ("--output", "--plugin")]
        if any(not (runs / one).exists() for one in named if "/" in one or one.endswith((".ckpt", ".pt"))):
            return
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(runs, folder, symlinks=True, dirs_exist_ok=True)
            done = self.trainer.run(*(one for one in arguments if one != "--plugin" and not one.endswith(".so")), *self.trainer.plugin_of(arguments), folder=folder)
        self.counts["commands run"] = self.counts.get("commands run", 0) + 1
        if done.returncode != 0:
            self.report(name, line, f"trainer ends with {done.returncode}: " + done.stderr.strip().replace("\n", " ")[:400])

    def two_runs(self):
        """A folder with fulgur_logs/version_0 and version_1, which are small, and a copy as `logs`."""
        folder = self.folder / "runs"
        if not folder.exists():
            folder.mkdir()
            (folder / "c.yaml").write_text(BASE.replace("20", "1"), "utf-8")
            for rate in ("0.1", "0.01"):
                done = self.trainer.run("fit", "--config", "c.yaml", "--optimizer.lr", rate, "--data.num_train", "256", "--seed_everything", "1", folder=folder)
                if done.returncode != 0:
                    sys.exit("check_blocks.py: a fit failed: " + done.stderr)
            shutil.copytree(folder / "fulgur_logs", folder / "logs", symlinks=True)
        return folder

    def available(self, page, argument):
        """Configs that a command names exist: those of the project, and others that are like the base."""
        if argument.endswith(".yaml"):
            file, source = self.folder / argument, self.root / argument
            file.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text("utf-8") if source.exists() else BASE
            if (block := CONFIGS.get(f"{page}:{argument}")) is not None:
                text = next(one.text for one in self.pages[page].blocks if one.name == block and one.language == "yaml")
                keys = re.findall(r"^(\w+):", text, re.MULTILINE)
                text += "".join(f"{line}\n" for line in BASE.split("\n") if line and line.split(":")[0] not in keys)
            file.write_text(text, "utf-8")
        return argument

    def check_span(self, name, line, span):
        try:
            words = next(iter(split(span)))[2]
        except (ValueError, StopIteration):
            return
        if words[1] in ("fit", "validate", "test", "predict") and len(words) > 2 and not words[2].startswith("-"):
            return
        why = self.trainer.unknown(words[1:])
        if why:
            self.report(name, line, f"`{span}`: {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("server")
    parser.add_argument("--plugin")
    parser.add_argument("pages", nargs="*")
    options = parser.parse_intermixed_args()
    root = options.root.resolve()
    pages = {name: page for name, page in pages_of_project(root).items() if not options.pages or name in options.pages}
    with tempfile.TemporaryDirectory() as folder:
        plugin = os.path.abspath(options.plugin) if options.plugin else None
        trainer = Trainer(os.path.abspath(options.server), plugin, folder)
        works = trainer.run("list", *trainer.plugin)
        if works.returncode != 0:
            sys.exit("check_blocks.py: the program or the plug-in does not work: " + works.stderr)
        checker = Checker(root, trainer, pathlib.Path(folder), pages)
        checker.check()
    names = {block.name for page in pages_of_project(root).values() for block in page.blocks}
    for name in sorted((EXCEPTIONS.keys() | checker.included) - names - {"includes"}):
        checker.report("tests/docs", 1, f"there is no block {name}")
    print("\n".join(checker.breaches) if checker.breaches else f"{len(pages)} pages, no breach")
    print("blocks: " + ", ".join(f"{count} {kind or 'other'}" for kind, count in sorted(checker.counts.items())))
    sys.exit(1 if checker.breaches or not pages else 0)


if __name__ == "__main__":
    main()
