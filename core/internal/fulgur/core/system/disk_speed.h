#pragma once

#include <cstdint>
#include <filesystem>

#include "fulgur/core/export.h"

namespace fulgur {

/// How fast a folder takes files that survive a power failure, as checkpoints do.
struct FULGUR_API DiskSpeed {
  double bytes_per_s = 0;  ///< of one large file, with its fsync
  double sync_s = 0;       ///< of a file of one block
  int64_t free_bytes = 0;  ///< that this user may still write
};

/// Writes two files of `bytes` and of 4 KiB to `folder`, syncs them and removes them. Throws an Error with path and
/// reason if the folder does not take them.
FULGUR_API DiskSpeed measure_disk(const std::filesystem::path& folder, int64_t bytes);

}  // namespace fulgur
