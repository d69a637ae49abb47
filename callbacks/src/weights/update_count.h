#pragma once

#include <cstdint>

#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor.h"
#include "steps/late_numbers.h"

namespace fulgur::detail {

/// How often an average was updated. A step that the device skips gives no update, and only the device knows of it:
/// from the first such update on, the count is there. Nothing waits for the device, except `value`.
class UpdateCount {
 public:
  void set_device(at::Device device) { late_.set_device(device); }
  /// Sets a count that the host knows.
  void set(int64_t count);
  /// Counts an update that was made.
  void add();
  /// Counts an update if `counts`, a scalar on the device, is nonzero.
  void add_if(const Tensor& counts);
  /// A training batch has ended: the host may learn that there was an update.
  void end_batch();

  /// Whether the host knows of an update. False does not mean that there was none.
  bool is_known() const { return known_ > 0; }
  /// Whether there was no update so far, as a scalar on the device of `on`.
  Tensor is_zero(const Tensor& on) const;
  /// The weight of the next update in an equal average, 1 / (count + 1): float64, on the device of `on`.
  Tensor equal_weight(const Tensor& on) const;
  /// The same on the host, if it counts.
  double equal_weight() const { return 1.0 / static_cast<double>(known_ + 1); }

  /// The count; waits for the device if only it knows.
  int64_t value() const;
  /// The count for a saved state; does not wait.
  StateTree state() const;

 private:
  Tensor on(const Tensor& like) const;

  int64_t known_ = 0;  ///< updates that the host knows of; all of them while `on_device_` is undefined
  Tensor on_device_;   ///< all updates, float64
  LateNumbers late_;
};

}  // namespace fulgur::detail
