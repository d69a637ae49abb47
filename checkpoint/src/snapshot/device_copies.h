#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <vector>

#include "fulgur/core/state_tree.h"
#include "snapshot/pinned_slabs.h"

namespace fulgur::detail {

/// True for a tensor that nobody writes before `before_writes`.
using IsLate = std::function<bool(const Tensor&)>;

/// Copies of tensors of CUDA devices in pinned memory, made on a side stream that neither the host nor the
/// current stream waits for.
///
/// What is small is first put together on the device, on the current stream: one kernel for each dtype and one copy for
/// each device, and from then on the tensors may change. What is large is copied from where it is. The current stream
/// waits at once for the copies of those that may change at any time (`IsLate` false), and in `before_writes` for the
/// rest.
class DeviceCopies {
 public:
  /// Of the snapshot before, whose copies are done.
  void clear();
  /// Takes a tensor that lies on a CUDA device; `start` replaces it by its copy. False for any other.
  bool add(Tensor& tensor);
  bool add(StateTree& leaf);
  /// Begins all copies. The memory is that of the call before.
  void start(const IsLate& is_late);
  /// What the current streams do from now on waits for the copies. For any number of calls, on the thread of `start`.
  void before_writes();
  /// Waits for the copies. May be called on another thread.
  void finish();

 private:
  struct Item {
    Tensor source;
    Tensor* tensor = nullptr;  // either
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
  // Sources until their copies are done, so that their memory is not used again before. record_stream would do that
  // too, but freeing such memory throws on a device that has failed, and a module frees its parameters in a destructor.
  std::vector<Tensor> held_;
  std::vector<Device> devices_;
  PinnedSlabs slabs_;
  bool under_way_ = false, waited_ = false;
};

}  // namespace fulgur::detail
