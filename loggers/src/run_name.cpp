#include "run_name.h"

#include <algorithm>

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"

namespace fulgur {

std::string checked_run_name(std::string_view component, const std::string& name) {
  constexpr size_t kLongest = 255;  // bytes of a file name on common file systems
  const char* what = nullptr;
  if (name.empty()) what = "it is empty";
  else if (name == "." || name == "..") what = "it means another folder";
  else if (name.find('/') != std::string::npos) what = "it has a '/'";
  else if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; })) what = "it has control characters";
  else if (name.size() > kLongest) what = "it is longer than 255 bytes";
  if (what == nullptr) return name;
  throw ConfigError(cat("[loggers.", component, "] name must be a plain folder name; ", what, ": '", escape_controls(std::string_view(name).substr(0, 80)),
                        name.size() > 80 ? "…" : "", "'. Choose the folder with trainer.default_root_dir and give a name without path."));
}

}  // namespace fulgur
