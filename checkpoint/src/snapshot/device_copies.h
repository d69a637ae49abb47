#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <vector>

#include "fulgur/core/device/pinned_slabs.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur::detail {

/// True for a tensor that is not written before `before_writes`.
using IsLate = std::function<bool(const Tensor&)>;

/// Copies of CUDA tensors in pinned memory, made on a side stream that neither the host nor the current stream waits
/// for.
///
/// Small tensors are first packed on the device, on the current stream: one kernel per dtype and one copy per device,
/// and from then on the tensors may change. Large ones are copied directly. The current stream waits immediately for
/// the copies of those that may change at any time (`IsLate` false), and in `before_writes` for the rest.
class DeviceCopies {
 public:
  /// Clears the previous snapshot, whose copies are done.
  void clear();
  /// Takes a CUDA tensor, which `start` replaces by its copy. False for any other.
  bool add(Tensor& tensor);
  bool add(StateTree& leaf);
  /// Starts all copies. Reuses the memory of the previous call.
  void start(const IsLate& is_late);
  /// Later work on the current streams waits for the copies. May be called any number of times, on the thread of
  /// `start`.
  void before_writes();
  /// Waits for the copies. May be called on another thread.
  void finish();

 private:
  struct Item {
    Tensor source;
    Tensor* tensor = nullptr;  // this or `leaf`
    StateTree* leaf = nullptr;
    int64_t bytes() const { return static_cast<int64_t>(source.nbytes()); }
    void replace(Tensor copy) const;
  };
  struct Device {
    explicit Device(c10::Stream stream) : side(stream), copied(stream.device_type()) {}
    c10::Stream side;
    c10::Event copied;
    bool used = false, has_late = false;  // of this snapshot
    std::vector<const Item*> small, late, urgent;
    int64_t packed_bytes() const;
  };
  bool add(const Tensor& source, Tensor* tensor, StateTree* leaf);
  Device& device_of(const Tensor& tensor);
  Tensor pack(Device& device) const;
  void copy_large(const Item& item, const PinnedSlabs::Place& place);

  std::vector<Item> items_;
  // Keeps sources alive until their copies are done, so that their memory is not reused before. record_stream would do
  // that too, but freeing such memory throws on a failed device, and a module frees its parameters in a destructor.
  std::vector<Tensor> held_;
  std::vector<Device> devices_;
  PinnedSlabs slabs_;
  bool under_way_ = false, waited_ = false;
};

}  // namespace fulgur::detail
