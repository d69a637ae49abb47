#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fulgur::detail {

struct PromptLine {
  std::string text;
  int64_t line = 0;  ///< in the file; the first one is 1
};

/// The lines of a text file that are not empty, or of a `.jsonl` file the texts of `text_field`. Throws a DataError
/// that names file and line, also if there is none.
std::vector<PromptLine> read_prompt_lines(const std::filesystem::path& path, const std::string& text_field);

}  // namespace fulgur::detail
