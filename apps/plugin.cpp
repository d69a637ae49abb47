#include "plugin.h"

#include <dlfcn.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::cli {

void load_plugin(const std::filesystem::path& path) {
  // A name without a slash would be searched for only in the system's folders.
  const std::string file = path.has_parent_path() ? path.string() : "./" + path.string();
  if (::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const char* why = ::dlerror();
  throw ConfigError(cat("[cli] --plugin '", path, "' cannot be loaded: ", why != nullptr ? why : "unknown reason"));
}

}  // namespace fulgur::cli
