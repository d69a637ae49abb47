#pragma once

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "support/temporary_folder.h"

/// What the tests share that compare killed runs with one that was left alone.
namespace fulgur::test {

/// FULGUR_TEST_KILLS, or the usual number.
inline int kills(int usual) {
  const char* text = std::getenv("FULGUR_TEST_KILLS");
  return text ? std::atoi(text) : usual;
}

/// The newest run folder: a run that is killed before its first checkpoint begins again in the next one.
inline std::filesystem::path newest_run(const std::filesystem::path& root) {
  const std::filesystem::path runs = root / "fulgur_logs";
  int version = 0;
  while (std::filesystem::exists(runs / ("version_" + std::to_string(version + 1)))) ++version;
  for (int earlier = 0; earlier < version; ++earlier)
    CHECK(list_checkpoints(runs / ("version_" + std::to_string(earlier)) / "checkpoints").empty());
  return runs / ("version_" + std::to_string(version));
}

/// Compares the bytes of the last checkpoint `last` and the loss of each step: the batches, in their order.
inline void compare_runs(const std::filesystem::path& whole, const std::filesystem::path& killed,
                         const std::filesystem::path& last) {
  for (const auto& entry : std::filesystem::directory_iterator(whole / "checkpoints" / last)) {
    if (entry.path().extension() != ".safetensors") continue;
    CAPTURE(entry.path());
    CHECK((read_text(entry.path()) == read_text(killed / "checkpoints" / last / entry.path().filename())));
  }
  const auto names = [](const std::filesystem::path& in) {
    std::set<std::string> all;  // hidden ones too
    for (const auto& entry : std::filesystem::directory_iterator(in)) all.insert(entry.path().filename().string());
    return all;
  };
  CHECK(names(whole / "checkpoints") == names(killed / "checkpoints"));
  for (const char* file : {"metrics.csv", "metrics.jsonl"}) {
    CAPTURE(file);
    CHECK((read_text(whole / file) == read_text(killed / file)));
  }
}

}  // namespace fulgur::test
