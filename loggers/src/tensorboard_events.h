#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fulgur/core/log_options.h"

/// Events of TensorBoard as protobuf messages (tensorflow/core/util/event.proto,
/// tensorflow/core/framework/summary.proto). `wall_time` is in seconds since 1970. Texts that are no UTF-8, which
/// protobuf demands, are mended.
namespace fulgur::tensorboard {

/// The first event of each file.
std::string version_event(double wall_time);
/// Tells TensorBoard to drop what it read of `step` and later.
std::string session_start_event(double wall_time, int64_t step);
/// Scalars of one step, each named `prefix` and its own name.
std::string scalars_event(double wall_time, int64_t step, const Metrics& metrics, std::string_view prefix);
/// Data of a plug-in under `tag`, at step 0.
std::string plugin_event(double wall_time, std::string_view tag, std::string_view plugin, const std::string& content);

/// `text`, with U+FFFD where it is no UTF-8.
std::string as_utf8(std::string_view text);

}  // namespace fulgur::tensorboard
