#!/usr/bin/env python3
"""Breaks each rule once in a tree of its own and expects it to be reported; keeps each once and expects silence."""
import os
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_architecture  # noqa: E402

HEADER = "#pragma once\n"

NCCL = "simulated_cuda/src/nccl/"
INTERNAL = "core/internal/fulgur/core/hidden.h"
# Files of each tree.
FILES = {
    INTERNAL: HEADER,
    "data/src/loading/pool.h": HEADER + '#include "loading/task.h"\nclass Pool final {\n};\n',
    "data/src/loading/task.h": HEADER,
}
# (file, text, words that the report must have; None: no report)
CASES = [
    ("core/src/a.cpp", 'void f() { log::warn(\n    "core.unknown", "x"); }\n', "docs/errors.md has the warning core.unknown"),
    ("callbacks/src/a.cpp", '#include "fulgur/core/contracts/module.h"\n', None),
    ("callbacks/src/a.cpp", '#include "fulgur/trainer/trainer.h"\n', "callbacks/ does not include trainer/"),
    ("callbacks/src/a.cpp", '#include <fulgur/strategies/single_device.h>\n', "callbacks/ does not include strategies/"),
    ("strategies/src/a.cpp", '  #  include "fulgur/callbacks/progress_bar.h"\n', "strategies/ does not include callbacks/"),
    ("trainer/src/a.cpp", '#include "fulgur/models/classifier.h"\n', "trainer/ does not include models/"),
    ("core/src/a.cpp", '#include "fulgur/data/samplers.h"\n', "core/ does not include data/"),
    ("apps/a.cpp", '#include "fulgur/models/classifier.h"\n', None),
    ("trainer/src/loops/a.cpp", '#include "fulgur/trainer/trainer.h"\n', "does not include the Trainer"),
    ("trainer/src/trainer.cpp", '#include "fulgur/trainer/trainer.h"\n', None),
    ("apps/a.cpp", '#include "fulgur/nonsense/x.h"\n', "there is no folder 'nonsense'"),
    ("models/src/a.cpp", '#include "fulgur/optim/adam.h"\n', "models/ does not include optim/"),
    ("simulated_cuda/src/runtime/a.cpp", '#include "fulgur/core/contracts/module.h"\n', "simulated_cuda/ does not include core/"),
    ("simulated_cuda/src/runtime/a.cpp", '#include <cuda_runtime.h>\n#include "fulgur/simulated_cuda/simulated_cuda.h"\n', None),
    (NCCL + "ranks/a.h", '#include "work/job.h"\n', "simulated_cuda/src/nccl/ranks/ does not include work/"),
    (NCCL + "work/a.h", '#include "ranks/report.h"\n', None),
    (NCCL + "a.cpp", '#include "work/job.h"\n', None),
    ("apps/a.cpp", '#include "fulgur/simulated_cuda/simulated_cuda.h"\n', "apps/ does not include simulated_cuda/ (it may: all except"),
    ("docs/a.md", "`core/nothing.h`", "there is no file core/nothing.h"),
    ("docs/a.md", "`fulgur/core/nothing.h`", "there is no file fulgur/core/nothing.h"),
    ("docs/a.md", "(docs/b.md)", "there is no file docs/b.md"),
    ("docs/a.md", "`core/hidden.h`, fulgur/core/hidden.h, [a](docs/a.md), core/internal/fulgur/core/hidden.h.\n", None),
    ("docs/a.md", "FOLDER/core/nothing.h core/NAME.h torch/nothing.h https://core.org/core/nothing.h ../core/nothing.h\n", None),
    ("core/src/a.cpp", "int a;  ///< see core/nothing.h\n", "there is no file core/nothing.h"),
    ("core/src/a.cpp", 'const char* const a = "core/nothing.h";\n', None),
    ("scripts/a.sh", "true # as core/nothing.py\n", "there is no file core/nothing.py"),
    ("scripts/a.sh", "compile data/src/loading/{pool,nothing}.h\n", "there is no file data/src/loading/nothing.h"),
    ("scripts/a.sh", "compile data/src/loading/{pool,task}.h\n", None),
    ("CHANGELOG.md", "`core/nothing.h` is new\n", None),
    ("core/src/a.cpp", '#include <yaml-cpp/yaml.h>\n', None),
    ("core/include/fulgur/core/a.h", HEADER + "#include <yaml-cpp/yaml.h>\n", "a public header does not include <yaml-cpp/yaml.h>"),
    ("core/include/fulgur/core/a.h", HEADER + "#include <spdlog/spdlog.h>\n", "a public header does not include <spdlog/spdlog.h>"),
    ("core/include/fulgur/core/a.h", HEADER + "#include <CLI/CLI.hpp>\n", "a public header does not include <CLI/CLI.hpp>"),
    ("core/include/fulgur/core/a.h", HEADER + "#include <nlohmann/json.hpp>\n", "a public header does not include <nlohmann/json.hpp>"),
    ("core/include/fulgur/core/a.h", HEADER + "#include <zip.h>\n", "a public header does not include <zip.h>"),
    ("core/include/fulgur/core/a.h", HEADER + '#include "text_impl.h"\n', "public headers only"),
    ("core/include/fulgur/core/a.h", HEADER + '#include "fulgur/core/hidden.h"\n', "does not include an internal one"),
    ("core/src/a.cpp", '#include "fulgur/core/hidden.h"\n', None),
    ("core/include/fulgur/core/a.h", "#include <string>\n", "#pragma once"),
    ("core/include/fulgur/core/a.h", "/* why */\n" + HEADER, None),
    ("core/include/fulgur/data/a.h", HEADER, "lie in core/include/fulgur/core/"),
    ("tests/core/a.cpp", "#include <torch/torch.h>\n", "<torch/torch.h> is never included"),
    ("tests/core/a.cpp", "// #include <torch/torch.h>\n", None),
    ("trainer/src/a.cpp", "#include <c10/cuda/CUDAStream.h>\n", "only cuda/ includes"),
    ("cuda/src/a.cpp", "#include <c10/cuda/CUDAStream.h>\n", None),
    ("trainer/src/a.cpp", "#include <torch/csrc/distributed/c10d/Store.hpp>\n", "only strategies/ and cuda/ include"),
    ("data/src/a.cpp", '#include "../../core/src/x.h"\n', "no '..' in an include"),
    ("data/src/sampling/a.cpp", '#include "loading/collate.h"\n', "data/src/sampling/ does not include loading/"),
    ("data/src/loading/a.cpp", '#include "sampling/permutation.h"\n', None),
    ("data/src/a.cpp", '#include "modules/mnist.h"\n', None),
    ("data/src/loading/task.cpp", '#include "loading/pool.h"\n', "in a ring: data/src/loading/pool, data/src/loading/task"),
    ("data/src/loading/pool.cpp", '#include "loading/pool.h"\n', None),
    ("data/src/reading/a.h", HEADER + "class Pool;\n", "no declaration of Pool"),
    ("data/src/modules/a.h", HEADER + "class Pool;\nstruct Other;\n", None),
    ("core/src/text/a.h", HEADER + "class Pool;\n", None),
    ("core/src/text/a.cpp", '#include "fulgur/core/state/batch.h"\n', "core/src/text/ does not include state/"),
    ("core/include/fulgur/core/state/a.h", HEADER + '#include "fulgur/core/contracts/module.h"\n', "does not include contracts/"),
    ("core/include/fulgur/core/contracts/a.h", HEADER + '#include "fulgur/core/state/batch.h"\n#include "fulgur/core/export.h"\n', None),
    ("checkpoint/src/a.cpp", "void f() { torch::save(x, path); }\n", "torch::save"),
    ("checkpoint/src/a.cpp", "void f() { torch::load (x, path); }\n", "torch::save and torch::load"),
    ("checkpoint/src/a.cpp", "/* torch::save(x) is\n unsafe: torch::load(x) */ int a;\n", None),
    ("data/src/a.cpp", "torch::data::Example<> e;\n", "torch::data"),
    ("tests/core/a.cpp", 'TEST_CASE("on a GPU, it\\"s right", "[gpu]") {\n  require_gpus(1);\n}\n', None),
    ("tests/core/a.cpp", 'TEST_CASE("F53: on two GPUs, it ends") {}\n', "has the tag [gpu]"),
    ("tests/core/a.cpp", 'TEST_CASE(\n    "steps "\n    "on a GPU", "[slow]") {}\n', "has the tag [gpu]"),
    ("tests/core/a.cpp", 'if (!find_accelerator("cuda")) SKIP("none: " << why_no_cuda());\n', "require_gpus"),
    ("docs/a.md", "see /" + "root/.cache/x\n", "no path of one machine"),
    ("docs/a.md", "see `/" + "work/main`\n", "no path of one machine"),
    ("scripts/a.sh", 'cd "/home/me"\n', "no path of one machine"),
    ("docs/a.md", "a/" + "work/b, ~/" + "work, $HOME/" + "work, the /" + "workspace, net/" + "root\n", None),
    ("scripts/a.sh", f"ls ../{check_architecture.SIBLING}/data\n", "only .ci/run names the folder"),
    (".ci/run", f"ls ../{check_architecture.SIBLING}/data\n", None),
]


def main():
    failures = []
    for name, text, expected in CASES:
        with tempfile.TemporaryDirectory() as root:
            for path, content in (FILES | {name: text}).items():
                path = os.path.join(root, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content)
            found = check_architecture.check(root)
        good = not found if expected is None else len(found) >= 1 and any(expected in line for line in found)
        if not good:
            failures.append(f"{name}: {text!r}\n  expected: {expected}\n  found: {found}")
    print("\n".join(failures) if failures else f"{len(CASES)} cases as expected")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
