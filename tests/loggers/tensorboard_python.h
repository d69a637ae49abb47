#pragma once

#include <sys/wait.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "fulgur/core/text/text.h"
#include "support/temporary_folder.h"

namespace fulgur::test {

/// What TensorBoard itself reads from `folder`; see read_events.py, which also gets `lists`. Skips the test if there is
/// no Python with TensorBoard.
inline nlohmann::json tensorboard_reads(const std::filesystem::path& folder, const std::string& lists = "") {
  const char* python = std::getenv("FULGUR_TEST_PYTHON");
  if (python == nullptr)
    SKIP("FULGUR_TEST_PYTHON names no Python with tensorboard (scripts/test.sh makes one beside the CUDA LibTorch)");
  const TemporaryFolder out;
  const std::string extra = lists.empty() ? "" : cat(" '", lists, "'");
  const int status = std::system(
      cat("'", python, "' '", FULGUR_READ_EVENTS, "' '", folder, "'", extra, " > '", out / "read.json", "'").c_str());
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) SKIP("the Python of FULGUR_TEST_PYTHON has no tensorboard (tests/requirements.txt)");
  REQUIRE(WEXITSTATUS(status) == 0);
  return nlohmann::json::parse(read_text(out / "read.json"));
}

}  // namespace fulgur::test
