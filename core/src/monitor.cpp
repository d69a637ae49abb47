#include "fulgur/core/monitor.h"

#include <algorithm>
#include <cctype>

#include "fulgur/core/text.h"

namespace fulgur {
namespace {

std::string_view first_word(std::string_view name) { return name.substr(0, name.find_first_of("_/.-")); }

std::string without_digits(std::string_view name) {
  std::string letters(name);
  std::erase_if(letters, [](unsigned char c) { return std::isdigit(c) != 0; });
  return letters;
}

}  // namespace

std::string monitor_not_logged(std::string_view monitor, const std::vector<std::string>& names) {
  const std::string hint = did_you_mean(monitor, names);
  return cat("monitor '", monitor, "' was not logged; there are: ", names.empty() ? "none" : join(names),
             hint.empty() ? "." : hint);
}

bool misspells_validation_metric(std::string_view monitor, const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), monitor) != names.end()) return false;
  const std::vector<std::string> near = nearest_names(monitor, names);
  return std::any_of(near.begin(), near.end(), [&](const std::string& name) {
    const size_t longer = std::max(name.size(), monitor.size()), shorter = std::min(name.size(), monitor.size());
    return longer - shorter <= 2 && first_word(name) == first_word(monitor) && first_word(name).size() < shorter &&
           without_digits(name) != without_digits(monitor);
  });
}

}  // namespace fulgur
