#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fulgur::cli {

/// What `doctor` has found about one thing.
struct Finding {
  enum class Level { ok, note, warning, problem };
  std::string about;  ///< `cuda`, `disk`, …
  Level level = Level::ok;
  std::string text;
  std::string fix = {};  ///< what to do; of warnings and problems
};
using Findings = std::vector<Finding>;

/// `ok`, `note`, `warning` or `problem`.
const char* word_of(Finding::Level level);

/// One line per finding, with its fix below it, and a sum at the end.
std::string findings_text(const Findings& findings);

/// True if no finding is a problem.
bool all_well(const Findings& findings);

}  // namespace fulgur::cli
