#include "files/run_name.h"

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

/// Why `name` is not a plain folder name, or nullptr.
const char* fault_of(std::string_view name) {
  constexpr size_t kLongest = 255;  // bytes of a file name on common file systems
  if (name.empty()) return "is empty";
  if (name == "." || name == "..") return "means another folder";
  if (name.find('/') != std::string_view::npos) return "has a '/'";
  if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    return "has control characters";
  if (name.size() > kLongest) return "is longer than 255 bytes";
  return nullptr;
}

std::string shown(std::string_view name) {
  return cat("'", escape_controls(name.substr(0, 80)), name.size() > 80 ? "…'" : "'");
}

}  // namespace

std::string checked_run_name(std::string_view component, const std::string& name) {
  const char* fault = fault_of(name);
  if (fault == nullptr) return name;
  throw ConfigError(cat("[loggers.", component, "] name must be a plain folder name; it ", fault, ": ", shown(name),
                        ". Choose the folder with trainer.default_root_dir and give a name without path."));
}

std::string checked_sub_dir(std::string_view component, const std::string& sub_dir) {
  const auto refuse = [&](const char* what, const char* fault) {
    throw ConfigError(cat("[loggers.", component, "] sub_dir must be a folder below the run folder; ", what, fault,
                          ": ", shown(sub_dir), ". Give plain folder names with '/' between them."));
  };
  if (sub_dir.starts_with('/')) refuse("it ", "is absolute");
  for (size_t begin = 0; begin <= sub_dir.size();) {
    const size_t end = std::min(sub_dir.find('/', begin), sub_dir.size());
    if (const char* fault = fault_of(std::string_view(sub_dir).substr(begin, end - begin)))
      refuse("one of its names ", fault);
    begin = end + 1;
  }
  return sub_dir;
}

}  // namespace fulgur
