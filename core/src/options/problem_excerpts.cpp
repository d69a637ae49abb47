#include "fulgur/core/options/problem_excerpts.h"

#include <algorithm>

#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"

namespace fulgur {
namespace {

constexpr const char* kIndent = "    ";
constexpr int64_t kIndentColumns = 4;
constexpr const char* kCut = "…";  // one column

/// The end of `text` that fits into `columns`.
std::string end_of(const std::string& text, int64_t columns) {
  size_t begin = 0;
  while (columns_of(std::string_view(text).substr(begin)) > columns) {
    const int64_t surplus = columns_of(std::string_view(text).substr(begin)) - columns;
    // A wide character has two columns, so half the surplus is never too much.
    const size_t bytes = fit_columns(std::string_view(text).substr(begin), std::max<int64_t>(1, surplus / 2)).bytes;
    begin += bytes > 0 ? bytes : fit_columns(std::string_view(text).substr(begin), 2).bytes;
  }
  return text.substr(begin);
}

/// The line with a caret under the byte `at`, which may be its end.
std::string with_caret(const std::string& line, size_t at, int64_t columns) {
  at = std::min(at, line.size());
  std::string before = escape_controls(std::string_view(line).substr(0, at));
  std::string after = escape_controls(std::string_view(line).substr(at));
  const int64_t width = std::max<int64_t>(columns - kIndentColumns, 20);
  if (columns_of(before) + columns_of(after) > width) {
    // Most of the room is for what follows the caret.
    const int64_t most = std::max(width / 3, width - columns_of(after));
    if (columns_of(before) > most) before = kCut + end_of(before, most - 1);
    const int64_t left = width - columns_of(before);
    if (columns_of(after) > left) after = after.substr(0, fit_columns(after, left - 1).bytes) + kCut;
  }
  return cat(kIndent, before, after, "\n", kIndent, std::string(static_cast<size_t>(columns_of(before)), ' '), "^\n");
}

std::string message_of(const Problem& problem) {
  constexpr size_t kLongestPath = 80;
  std::string path = escape_controls(problem.path);
  if (path.size() > kLongestPath) path = path.substr(0, fit_columns(path, kLongestPath).bytes) + kCut;
  return cat(path, path.empty() ? "" : ": ", escape_controls(problem.message));
}

}  // namespace

std::string problem_excerpts(const BadConfig& error, int64_t columns) {
  constexpr size_t kMost = 20;
  const auto& problems = error.problems().items();
  std::string out = problems.size() == 1 ? "[config]\n" : cat("[config] ", problems.size(), " problems:\n");
  for (size_t i = 0; i < std::min(problems.size(), kMost); ++i) {
    const Problem& problem = problems[i];
    const auto line = error.problems().line_at(problem.where);
    const std::string place = problem.where.text();
    if (!line || problem.where.column <= 0) {
      out += cat(place, place.empty() ? "" : ": ", message_of(problem), "\n");
      continue;
    }
    out += cat(place, ":\n", with_caret(*line, static_cast<size_t>(problem.where.column - 1), columns), "  ",
               message_of(problem), "\n");
  }
  if (problems.size() > kMost) out += cat("… and ", problems.size() - kMost, " more\n");
  out.pop_back();
  return out + error.hint();
}

}  // namespace fulgur
