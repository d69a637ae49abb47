#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// float64 scalars on devices, many per block, so that the host reads all of them with one copy per block.
class DeviceScalars {
 public:
  struct Place {
    size_t block = 0;
    int64_t index = 0;
  };
  /// Adds a scalar: a view into a block, with undefined value. Its address stays the same, so that recorded work may
  /// write to it.
  Tensor add(at::Device device, Place& place);

  /// Values at the start of the read: later device work does not change them.
  class Reading {
   public:
    /// True if `wait` would not block.
    bool there() const;
    /// Waits for the copy from a GPU.
    void wait() const;
    /// Call after `wait`.
    double at(Place place) const;

   private:
    friend class DeviceScalars;
    std::vector<Tensor> on_host_;  // of each block
    std::vector<std::shared_ptr<c10::Event>> copied_;
  };
  /// Copies of all values, on their devices.
  using Values = std::vector<Tensor>;
  Values values() const;
  void restore(const Values& values);

  /// Starts copying all values to the host. From a GPU it does not wait for the copy, which goes through pinned memory
  /// on the current stream.
  Reading read() const;

 private:
  struct Block {
    Tensor values;
    int64_t used = 0;
  };
  std::vector<Block> blocks_;
};

}  // namespace fulgur::detail
