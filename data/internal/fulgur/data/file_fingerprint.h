#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// XXH3-64 of `bytes`, as 16 hexadecimal digits.
FULGUR_API std::string fingerprint_of(std::string_view bytes);

/// A hash of a file's size and contents, which tells whether it is the file that a checkpoint was saved with: of all
/// bytes up to 1 MiB, and of 16 blocks of 64 KiB that are spread over a longer file. Its name and times do not matter.
/// A file that cannot be read has the fingerprint "absent": its reader reports the error.
FULGUR_API std::string file_fingerprint(const std::filesystem::path& path);

/// The fingerprint of several files and of their order. Files whose sizes and times are those of the last call are not
/// read again.
class FULGUR_API FileFingerprints {
 public:
  explicit FileFingerprints(std::vector<std::filesystem::path> paths);
  std::string current();

 private:
  struct Seen {
    int64_t bytes = -1, seconds = 0, nanoseconds = 0;
    uint64_t device = 0, number = 0;
    bool operator==(const Seen&) const = default;
  };
  static Seen look_at(const std::filesystem::path& path);

  std::vector<std::filesystem::path> paths_;
  std::vector<Seen> seen_;
  std::vector<std::string> fingerprints_;
};

/// The fingerprint of the paths of several files and of their order. The folder that contains all of them does not
/// matter, so that the files may be moved together.
FULGUR_API std::string fingerprint_of_names(const std::vector<std::filesystem::path>& paths);

}  // namespace fulgur::detail
