#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "fulgur/core/state/media.h"

namespace fulgur {

/// Media as a file in a run folder.
struct MediaFile {
  std::filesystem::path path;  ///< `media/NAME/step=N.png`, relative to the run folder
  std::string content;
};

/// A picture becomes a PNG file, a histogram JSON, a text `.txt` and a table CSV.
MediaFile media_file(const MediaRecord& record, int64_t step);

/// The name of a metric as a path: each part between `/` is a plain file name, in which bytes that file systems or
/// terminals treat specially are written as `%XX`. Different names have different paths.
std::filesystem::path path_of_name(std::string_view name);

/// The step of a file that `media_file` named; nullopt for others.
std::optional<int64_t> step_of_media_file(std::string_view file_name);

}  // namespace fulgur
