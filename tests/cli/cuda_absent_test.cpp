// `accelerator: auto` on a machine whose driver has a GPU that the program cannot use.
#include <catch2/catch_test_macros.hpp>
#include <filesystem>

#include "fulgur/core/device/accelerator.h"
#include "process.h"

namespace cuda_absent_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

/// `trainer` with a driver whose cuInit returns `code`; `cuda` false: with a libfulgur.so that has no libfulgur_cuda.so
/// besides it.
Finished with_driver(const std::string& code, const std::string& accelerator, bool cuda = false) {
  const TemporaryFolder folder;
  const fs::path library = FULGUR_LIBRARY;
  fs::create_directory(folder / "lib");
  if (!cuda) fs::copy_file(library, folder / "lib" / library.filename());
  const std::vector<std::string> fit{"fit",
                                     "--model",
                                     "MlpClassifier",
                                     "--data",
                                     "SyntheticDataModule",
                                     "--optimizer",
                                     "SGD",
                                     "--optimizer.lr",
                                     "0.1",
                                     "--trainer.fast_dev_run",
                                     "true",
                                     "--trainer.accelerator",
                                     accelerator};
  const std::string libraries = (folder / "lib").string() + ":" FULGUR_FAKE_DRIVER;
  return trainer(
      fit, {.folder = folder.path(), .environment = {"LD_LIBRARY_PATH=" + libraries, "FULGUR_FAKE_CUINIT=" + code}});
}

}  // namespace

TEST_CASE("accelerator auto does not train on the CPU silently if there is a GPU") {
  const Finished run = with_driver("0", "auto");
  INFO(run.err << run.out);
  CHECK(says(run.err,
             "has an NVIDIA driver, but the program cannot use its GPUs: libfulgur_cuda.so could not be loaded"));
  CHECK(says(run.err, "FULGUR_LIBTORCH=cuda scripts/setup.sh"));
  if (fulgur::built_for_cpu()) {
    CHECK(run.exit_code == 0);
    CHECK(says(run.err, "[trainer.built_for_cpu]"));
    CHECK(says(run.err, "devices: 1 × cpu (built for the CPU: GPUs are not used)"));
  } else {
    CHECK(run.exit_code == 2);
    CHECK(says(run.err, "Set trainer.accelerator: cpu"));
  }
}

TEST_CASE("a driver that the CUDA runtime cannot use is an error of accelerator auto") {
  const Finished run = with_driver("0", "auto", /*cuda=*/true);
  INFO(run.err);
  CHECK(run.exit_code == (fulgur::built_for_cpu() ? 0 : 2));
  CHECK(says(run.err, "has an NVIDIA driver, but the program cannot use its GPUs"));
}

TEST_CASE("accelerator cuda says what is missing and how to get it") {
  const Finished run = with_driver("0", "cuda");
  INFO(run.err);
  CHECK(run.exit_code == 2);
  CHECK(says(run.err, "'cuda' is not available: 0 GPUs are visible; libfulgur_cuda.so could not be loaded"));
  CHECK(says(run.err, "FULGUR_LIBTORCH=cuda scripts/setup.sh"));
}

TEST_CASE("accelerator cpu does not query the driver") {
  const Finished run = with_driver("0", "cpu");
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(says(run.err, "devices: 1 × cpu ·"));
}

TEST_CASE("accelerator auto is the CPU if the driver shows no device") {
  const Finished run = with_driver("100", "auto");
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(says(run.err, "devices: 1 × cpu ·"));
  const Finished cuda = with_driver("100", "cuda");
  CHECK(cuda.exit_code == 2);
  CHECK(says(cuda.err, "lists no device"));
}

}  // namespace cuda_absent_test
