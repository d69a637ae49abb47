#include "profiling/profile_path.h"

#include <cstdint>
#include <system_error>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {

std::filesystem::path free_profile_path(const std::filesystem::path& folder, const std::string& stem) {
  std::filesystem::path path = folder / cat(stem, ".json");
  std::error_code unknown;
  // A link whose target is missing takes its name too.
  for (int64_t version = 1; std::filesystem::exists(std::filesystem::symlink_status(path, unknown)); ++version)
    path = folder / cat(stem, "-v", version, ".json");
  return path;
}

}  // namespace fulgur::detail
