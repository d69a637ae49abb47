#pragma once

#include <stdexcept>

namespace fulgur::detail {

/// Bytes that are not an image that can be decoded, or a file that has none. The message is a reason without the file's
/// name, as the end of a sentence without its full stop.
struct BadImage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace fulgur::detail
