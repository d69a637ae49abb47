#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "distributed/shard_groups.h"
#include "fulgur/core/device/pinned_slabs.h"
#include "sharding/bit_checksum.h"
#include "sharding/flat_unit.h"

namespace fulgur::detail {

/// Copies of this rank's parts of the units, which optimizers step in place of the parts: float32 copies of those in
/// half precision, and copies in host memory.
///
/// In host memory, they and their gradients are pinned. Copies between them and the device are ordered by its current
/// stream, and only `wait` waits for them.
class SteppedParts {
 public:
  /// Whole float32 copies, by the addresses of parameters.
  using Copies = std::unordered_map<const void*, Tensor>;
  /// Makes the parts of units whose parameters have copies, and with `in_host_memory` of all units that optimizers
  /// step, `is_stepped`. `whole_values` returns a copy, or the one for which it stands, in the same order on all ranks.
  /// `units` must outlive this.
  SteppedParts(const std::vector<std::unique_ptr<FlatUnit>>& units, const Copies& copies,
               const std::vector<bool>& is_stepped, bool in_host_memory, at::Device device,
               const std::function<Tensor(const Tensor&)>& whole_values);

  bool has(size_t unit) const { return parts_[unit].values.defined(); }
  /// Whether the unit has a float32 copy of values in half precision.
  bool is_master(size_t unit) const { return parts_[unit].is_master; }
  bool in_host_memory() const { return in_host_memory_; }
  /// Of a parameter, as a view [count]; its unit `has` a part.
  Tensor own_elements(size_t unit, size_t index) const;
  /// Copies averages of gradients, which have the length of the part, to host memory, where they are after `wait`. The
  /// result shares memory with that of the last call for the unit.
  Tensor take_gradients(size_t unit, const Tensor& averages);
  /// The part of the unit's gradients in host memory that belongs to a parameter, for copies that `wait` awaits.
  Tensor gradient_place(size_t unit, size_t index);
  /// Waits for copies between the device and host memory.
  void wait();
  /// Rounds the part to the values that the module has.
  void write_back(size_t unit);
  /// Takes the values that the module has in units which anything else has written to since `write_back`; not those of
  /// float32 copies. Waits for the device.
  void take_changed_values(const std::vector<size_t>& units);
  /// Of float32 copies.
  int64_t master_bytes() const;
  /// The parts of all ranks that share the unit, in a buffer that is as long. All of them must call it.
  Tensor gather(size_t unit, ShardGroups& groups) const;

 private:
  struct Part {
    Tensor values, gradients;  // undefined if the unit has none; gradients are those in host memory
    Tensor written;            // the checksum of the values that the module was given, on the device
    bool is_master = false;
  };
  bool is_checked(size_t unit) const { return in_host_memory_ && has(unit) && !is_master(unit); }
  Tensor of_module(size_t unit) const;

  const std::vector<std::unique_ptr<FlatUnit>>& units_;
  at::Device device_;
  bool in_host_memory_;
  PinnedSlabs memory_;
  BitChecksum checksum_;
  std::vector<Part> parts_;  // of each unit
  bool copies_ = false;      // to or from the device, since the last `wait`
};

}  // namespace fulgur::detail
