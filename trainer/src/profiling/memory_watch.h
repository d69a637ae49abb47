#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/module.h"

namespace fulgur::detail {

/// Bytes of tensors of one device at a moment, or at a peak.
struct MemoryLevel {
  int64_t allocated = 0;
  int64_t reserved = 0;  ///< from the device, with the allocator's cache; 0 on the CPU, which has none
};

/// Counts the bytes that LibTorch's allocators report for the thread that installs it and for its backwards: by phase,
/// and by the layer that is under way. On the CPU these are the bytes that were allocated since then; on a device with
/// a caching allocator, all that the allocator has. On the CPU, a release by another thread is seen when this thread
/// gets the same address again.
///
/// A layer is a module that owns parameters. An operation that gets one of them, or a view of it, belongs to that
/// layer, and so do the operations after it until the next layer; an operation of backward belongs to the layer of the
/// forward operation that it differentiates.
class MemoryWatch final : public torch::profiler::impl::ProfilerStateBase {
 public:
  enum class Phase { other, forward, backward };
  struct Layer {
    std::string name;
    int64_t kept = 0;  ///< bytes that the forwards of a step hold for its backwards, the most at any time
    int64_t forward_peak = 0, backward_peak = 0;  ///< bytes of all tensors while the layer was under way
  };

  MemoryWatch();
  /// Layers are those of this module; allocations are counted for them on `device`.
  void watch_layers(const LightningModule& module, at::Device device);
  /// The phase in which the following operations are. The end of a forward counts what the forwards of this step hold.
  void set_phase(Phase phase);
  /// A forward and its backward are over.
  void end_step();

  /// Devices that have allocated something, in the order of their first allocation, and their bytes now.
  const std::vector<at::Device>& devices() const { return devices_; }
  MemoryLevel now(size_t device) const { return now_[device]; }
  /// The peak since the last call of this function for the device, which begins a new peak at the current bytes.
  MemoryLevel take_peak(size_t device);
  const std::vector<Layer>& layers() const { return layers_; }

  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
  void reportMemoryUsage(void* address, int64_t bytes, size_t total_allocated, size_t total_reserved,
                         c10::Device device) override;
  /// An operation begins: finds its layer.
  void see_operation(const at::RecordFunction& operation);

 private:
  struct Block {
    int64_t bytes;
    std::optional<size_t> layer;  // in whose forward of this step it was allocated
    uint64_t step;
  };
  size_t index_of(c10::Device device);
  std::optional<size_t> layer_of(const at::Tensor& tensor) const;
  /// `allocated`: of the device of the layers; nullopt for another one.
  void count_block(void* address, int64_t bytes, std::optional<int64_t> allocated);

  // Backward runs on a thread for each device.
  std::mutex mutex_;
  std::vector<at::Device> devices_;
  std::vector<MemoryLevel> now_, peak_;
  std::unordered_map<void*, Block> blocks_;
  at::Device layer_device_{at::kCPU};
  std::vector<Layer> layers_;
  std::vector<int64_t> held_;                              // now, by the forwards of this step, for each layer
  std::unordered_map<const void*, size_t> layer_of_data_;  // by the storage of a parameter
  std::unordered_map<int64_t, size_t> layer_of_node_;      // by the number of an operation in the graph of backward
  std::optional<size_t> layer_;                            // under way
  Phase phase_ = Phase::other;
  uint64_t step_ = 0;
};

/// Installs a MemoryWatch in this thread, and removes it again. Both happen in the same thread.
class InstalledMemoryWatch {
 public:
  InstalledMemoryWatch(std::shared_ptr<MemoryWatch> watch, bool sees_operations);
  ~InstalledMemoryWatch();
  InstalledMemoryWatch(const InstalledMemoryWatch&) = delete;
  InstalledMemoryWatch& operator=(const InstalledMemoryWatch&) = delete;

 private:
  c10::DebugInfoGuard guard_;
  std::optional<at::CallbackHandle> operations_;
};

}  // namespace fulgur::detail
