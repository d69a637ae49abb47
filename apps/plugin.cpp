#include "plugin.h"

#include <dlfcn.h>
#include <torch/version.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::cli {

namespace {

// The version of LibTorch in the name of the symbol that a plug-in lacks (registry.h), such as `2.10`; empty if it
// lacks something else.
std::string libtorch_of_plugin(std::string_view message) {
  constexpr std::string_view kSymbol = "built_with_libtorch_";
  const size_t found = message.find(kSymbol);
  if (found == std::string_view::npos) return {};
  const std::string_view rest = message.substr(found + kSymbol.size());
  std::string version(rest.substr(0, rest.find_first_not_of("0123456789_")));
  std::ranges::replace(version, '_', '.');
  return version;
}

}  // namespace

void load_plugin(const std::filesystem::path& path) {
  // A name without a slash would be searched for only in the system's folders.
  const std::string file = path.has_parent_path() ? path.string() : "./" + path.string();
  if (::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const char* why = ::dlerror();
  const std::string reason = why != nullptr ? why : "unknown reason";
  if (const std::string other = libtorch_of_plugin(reason); !other.empty())
    throw ConfigError(cat("[cli] --plugin '", path, "' cannot be loaded: it was built with LibTorch ", other,
                          ", and this program with LibTorch ", TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR,
                          ". Build it against the Fulgur of this program."));
  throw ConfigError(cat("[cli] --plugin '", path, "' cannot be loaded: ", reason));
}

}  // namespace fulgur::cli
