#pragma once

#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// Numbers of training steps on their way from the device to the host. From a GPU they arrive `kLater` batches later:
/// the Trainer keeps the host from being further ahead, so no step waits for them, and the batch in which they arrive
/// does not depend on the speed of the device. From other devices they are there at once.
class LateNumbers {
 public:
  static constexpr int64_t kLater = 5;

  struct Number {
    Tensor value;  ///< a later change of the tensor is not seen
    int64_t step = 0;
    int64_t age = 0;  ///< batches that have ended since it was added
  };

  /// Numbers are late if the run is on a GPU, also those that a resume adds.
  void set_device(at::Device device) { late_ = device.is_cuda(); }
  void clear() { pending_.clear(); }
  /// Starts the copy of `value` to the host.
  void add(const Tensor& value, int64_t step, int64_t age = 0);
  /// A batch has ended.
  void end_batch();
  /// The oldest number, with its value on the CPU, if it has arrived. With `waits`, waits for the device.
  std::optional<Number> take(bool waits = false);
  /// What has not arrived, oldest first, for a saved state.
  std::deque<Number> pending() const;

 private:
  struct Copy {
    Number number;
    Tensor on_host;
    std::shared_ptr<c10::Event> copied;  // of a GPU
  };
  std::deque<Copy> pending_;
  bool late_ = false;
};

}  // namespace fulgur::detail
