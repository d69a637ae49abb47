#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fulgur/core/tensor.h"

namespace fulgur::detail {

/// Scalars of float64 on devices, many in one block, so that the host gets all of them by one copy from each block.
class DeviceScalars {
 public:
  struct Place {
    size_t block = 0;
    int64_t index = 0;
  };
  /// A scalar that was not there before: a view into a block, whose value is undefined. Its address stays the same, so
  /// that recorded work may write to it.
  Tensor add(at::Device device, Place& place);

  /// Values as they were when the reading began: work that the device is given later does not change them.
  class Reading {
   public:
    /// True if `wait` would not wait.
    bool there() const;
    /// From a GPU, waits for the copy.
    void wait() const;
    /// After `wait`.
    double at(Place place) const;

   private:
    friend class DeviceScalars;
    std::vector<Tensor> on_host_;  // of each block
    std::vector<std::shared_ptr<c10::Event>> copied_;
  };
  /// Begins to copy all values to the host. From a GPU it does not wait for the copy, which goes through pinned memory
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
