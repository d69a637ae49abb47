#include "fulgur/core/options/form_hints.h"

#include <algorithm>
#include <vector>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

bool is_name_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; }
bool is_name_digit(char c) { return c >= '0' && c <= '9'; }

/// `{monitor: val_loss, mode: min}`, or `{…}` if it is long or has lists or maps.
std::string short_map(const ConfigNode& map) {
  constexpr size_t kLongest = 60;
  std::vector<std::string> parts;
  for (const auto& [key, value] : map.entries()) {
    if (!value.is_scalar()) return "{…}";
    const char* quote = value.quoted() ? "'" : "";
    parts.push_back(cat(key, ": ", quote, value.text(), quote));
  }
  const std::string text = join(parts);
  return text.size() > kLongest ? "{…}" : cat("{", text, "}");
}

}  // namespace

std::string missing_space_hint(std::string_view text) {
  const auto* const end =
      std::ranges::find_if_not(text, [](char c) { return is_name_letter(c) || is_name_digit(c) || c == '.'; });
  const size_t colon = static_cast<size_t>(end - text.begin());
  if (colon == 0 || !is_name_letter(text.front()) || colon + 1 >= text.size() || text[colon] != ':') return {};
  const std::string_view rest = text.substr(colon + 1);
  // An address, a path, a name with a scope, or a key as it should be.
  if (std::string_view("/\\: \t\n").find(rest.front()) != std::string_view::npos) return {};
  const std::string_view value = rest.substr(0, rest.find_first_of(" \t\n"));
  return cat("write '", text.substr(0, colon), ": ", value, "', with a space after the colon");
}

bool looks_like_class(std::string_view key) {
  return !key.empty() && key.front() >= 'A' && key.front() <= 'Z' &&
         std::ranges::all_of(key, [](char c) { return is_name_letter(c) || is_name_digit(c); });
}

std::string component_form(std::string_view name, const ConfigNode& options) {
  const ConfigNode* arguments = options.find("init_args");
  if (arguments == nullptr) arguments = &options;
  const bool has_options = arguments->is_map() && !arguments->entries().empty();
  return cat("{class_path: ", name, has_options ? cat(", init_args: ", short_map(*arguments)) : std::string(), "}");
}

std::string component_list_form(const ConfigNode& map) {
  if (const ConfigNode* name = map.find("class_path"); name != nullptr && name->is_scalar()) {
    const ConfigNode* arguments = map.find("init_args");
    return cat("[", component_form(name->text(), arguments != nullptr ? *arguments : ConfigNode()), "]");
  }
  std::vector<std::string> forms;
  for (const auto& [key, value] : map.entries())
    if (looks_like_class(key)) forms.push_back(component_form(key, value));
  return forms.empty() ? std::string() : cat("[", join_some(forms, 2), "]");
}

}  // namespace fulgur::detail
