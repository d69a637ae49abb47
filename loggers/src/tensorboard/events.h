#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fulgur/core/options/log_options.h"
#include "media/histogram.h"

/// Events of TensorBoard as protobuf messages (tensorflow/core/util/event.proto,
/// tensorflow/core/framework/summary.proto). `wall_time` is in seconds since 1970. Strings that are not UTF-8, as
/// protobuf requires, are repaired.
namespace fulgur::tensorboard {

/// The first event of each file.
std::string version_event(double wall_time);
/// Makes TensorBoard drop what it has read of `step` and later.
std::string session_start_event(double wall_time, int64_t step);
/// Scalars of one step, each named `prefix` followed by its own name.
std::string scalars_event(double wall_time, int64_t step, const Metrics& metrics, std::string_view prefix);
struct EncodedImage {
  int64_t height = 0, width = 0, channels = 0;
  std::string file;  ///< PNG
};
std::string image_event(double wall_time, int64_t step, std::string_view tag, const EncodedImage& encoded);
/// `values` has at least one finite value.
std::string histogram_event(double wall_time, int64_t step, std::string_view tag, const Histogram& values);
/// Markdown, for the text plug-in.
std::string text_event(double wall_time, int64_t step, std::string_view tag, std::string_view text);
/// Data of a plug-in under `tag`, at step 0.
std::string plugin_event(double wall_time, std::string_view tag, std::string_view plugin, const std::string& content);

/// `text`, with U+FFFD in place of invalid UTF-8.
std::string as_utf8(std::string_view text);

}  // namespace fulgur::tensorboard
