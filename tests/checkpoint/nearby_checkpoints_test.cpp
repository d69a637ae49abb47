#include "nearby_checkpoints.h"

#include <ATen/ops/arange.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace nearby_checkpoints_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
namespace fs = std::filesystem;

namespace {

fs::path save(const fs::path& path, int64_t step) {
  CheckpointContent content;
  content.module = {{"w", at::arange(4)}};
  content.state["progress"] = StateTree::map({{"global_step", step}, {"epoch", 0}});
  return write_checkpoint(path, content);
}

std::string refusal(const fs::path& path) {
  return message_of<CheckpointError>([&] { read_checkpoint(path); });
}

}  // namespace

TEST_CASE("a checkpoint that does not exist: the nearest ones are named, at most three") {
  const TemporaryFolder folder;
  const fs::path logs = folder / "logs", run = logs / "version_7", checkpoints = run / "checkpoints";
  CHECK_THAT(refusal(checkpoints / "step=5.ckpt"), ContainsSubstring("step=5.ckpt does not exist. Give the path of"));
  CHECK_THAT(refusal("bset"), ContainsSubstring("bset does not exist; did you mean 'best'?"));
  for (const std::string word : {"last", "best"}) {
    CAPTURE(word);
    CHECK_THAT(refusal(word),
               ContainsSubstring(cat("there is no ", word, "; the words last and best are for ckpt_path.")) &&
                   ContainsSubstring("links last.ckpt and best.ckpt") && !ContainsSubstring("did you mean"));
  }
  for (const int64_t step : {9, 20, 100, 3}) save(checkpoints / cat("step=", step, ".ckpt"), step);
  fs::create_directory_symlink("step=9.ckpt", checkpoints / "best.ckpt");
  fs::create_directories(checkpoints / "half.ckpt");  // no manifest
  const std::string nearby = cat("Checkpoints nearby: ", checkpoints / "step=100.ckpt", ", ",
                                 checkpoints / "step=20.ckpt", ", ", checkpoints / "step=9.ckpt", ", and 1 more.");
  // Beside it, and from a folder above it, with or without the slash that completion adds.
  for (const char* wrong : {"logs/version_7/checkpoints/step=5.ckpt", "logs/version_7/step=9.ckpt",
                            "logs/version_8/checkpoints/step=9.ckpt", "logs/version_8/", "logs/version_8"}) {
    CAPTURE(wrong);
    CHECK_THAT(refusal(folder / wrong), ContainsSubstring("does not exist. " + nearby));
  }
  // From a run folder without checkpoints, and from a folder of run folders.
  fs::create_directories(logs / "version_9/checkpoints");
  for (const char* wrong : {"logs/version_9", "logs/version_9/checkpoints", "logs"}) {
    CAPTURE(wrong);
    CHECK_THAT(refusal(folder / wrong), ContainsSubstring("is not a checkpoint: manifest.json is missing. " + nearby));
  }
  // A link without a target.
  fs::create_directory_symlink("gone.ckpt", checkpoints / "last.ckpt");
  CHECK_THAT(refusal(checkpoints / "last.ckpt"),
             ContainsSubstring("is a link to a path that does not exist. " + nearby));
  // A file of a checkpoint.
  CHECK_THAT(refusal(checkpoints / "step=9.ckpt/model.safetensors"),
             ContainsSubstring(cat("It belongs to the checkpoint ", checkpoints / "step=9.ckpt")));
  CHECK_THAT(refusal(checkpoints / "half.ckpt"), EndsWith("is an incomplete checkpoint: manifest.json is missing."));
}

}  // namespace nearby_checkpoints_test
