#pragma once

#include <c10/core/Event.h>

#include <memory>

#include "fulgur/core/state/media.h"

namespace fulgur::detail {

/// A record of media whose tensor has the values from the time of the construction. From a GPU, it is copied through
/// pinned memory on the current stream, and the host does not wait.
class LateMedia {
 public:
  explicit LateMedia(MediaRecord record);
  /// The record as loggers receive it; waits for the copy. Call it once.
  MediaRecord take();

 private:
  MediaRecord record_;
  std::shared_ptr<c10::Event> copied_;  // nullptr: nothing to wait for
};

}  // namespace fulgur::detail
