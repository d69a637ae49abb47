#include "files/prompt_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "unicode/characters.h"

namespace fulgur::detail {
namespace {

std::string text_of_prompt_file(const std::filesystem::path& path, const std::string& shown) {
  std::optional<std::string> text;
  try {
    text = read_regular_file(path);
  } catch (const Error& error) {
    throw DataError(cat("[text.PromptsDataModule] ", error.what()));
  }
  if (!text) throw DataError(cat("[text.PromptsDataModule] the file must exist; ", shown, " does not."));
  if (text->starts_with("\xef\xbb\xbf")) text->erase(0, 3);
  require_utf8(*text, cat("[text.PromptsDataModule] ", shown));
  return std::move(*text);
}

}  // namespace

std::vector<PromptLine> read_prompt_lines(const std::filesystem::path& path, const std::string& text_field) {
  const std::string shown = cat("'", escape_controls(path.string()), "'");
  const std::string text = text_of_prompt_file(path, shown);
  const bool is_json = path.extension() == ".jsonl";
  std::vector<PromptLine> prompts;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (is_json && line.find_first_not_of(" \t") == std::string_view::npos)) continue;
    if (!is_json) {
      prompts.push_back({std::string(line), number});
      continue;
    }
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains(text_field) || !json[text_field].is_string())
      throw DataError(cat("[text.PromptsDataModule] ", shown, ", line ", number,
                          ": a line must be a JSON object with the text '", escape_controls(text_field),
                          "'; it is not one."));
    prompts.push_back({json[text_field].get<std::string>(), number});
  }
  if (prompts.empty())
    throw DataError(cat("[text.PromptsDataModule] a file must have a prompt; ", shown, " has none."));
  return prompts;
}

}  // namespace fulgur::detail
