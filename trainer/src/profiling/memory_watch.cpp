#include "profiling/memory_watch.h"

#include <ATen/core/ivalue.h>

#include <algorithm>

namespace fulgur::detail {

using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

namespace {

// A view of a parameter, such as the transposed weight of a linear layer, has the storage of the parameter.
const void* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

std::unique_ptr<at::ObserverContext> see_operation_of_thread(const at::RecordFunction& operation) {
  auto* const info = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  if (auto* const watch = dynamic_cast<MemoryWatch*>(info)) watch->see_operation(operation);
  return nullptr;
}

}  // namespace

MemoryWatch::MemoryWatch()
    : ProfilerStateBase(
          ProfilerConfig(ProfilerState::Disabled, /*report_input_shapes=*/false, /*profile_memory=*/true)) {}

void MemoryWatch::watch_layers(const LightningModule& module, at::Device device) {
  const std::lock_guard lock(mutex_);
  layer_device_ = device;
  layers_.clear();
  layer_of_data_.clear();
  for (const auto& part : module.named_modules("", /*include_self=*/true)) {
    const auto parameters = part.value()->named_parameters(/*recurse=*/false);
    if (parameters.is_empty()) continue;
    const size_t layer = layers_.size();
    layers_.push_back({.name = part.key().empty() ? "the module itself" : part.key()});
    for (const auto& parameter : parameters)
      if (const void* data = storage_of(parameter.value())) layer_of_data_.emplace(data, layer);
  }
  held_.assign(layers_.size(), 0);
}

void MemoryWatch::set_phase(Phase phase) {
  const std::lock_guard lock(mutex_);
  // With manual optimization a step has several forwards, and each begins with what the backwards have left.
  if (phase_ == Phase::forward && phase != Phase::forward)
    for (size_t i = 0; i < layers_.size(); ++i) layers_[i].kept = std::max(layers_[i].kept, held_[i]);
  if (phase != phase_) layer_.reset();
  phase_ = phase;
}

void MemoryWatch::end_step() {
  const std::lock_guard lock(mutex_);
  ++step_;
  std::ranges::fill(held_, 0);
  layer_of_node_.clear();
}

MemoryLevel MemoryWatch::take_peak(size_t device) {
  const std::lock_guard lock(mutex_);
  return std::exchange(peak_[device], now_[device]);
}

size_t MemoryWatch::index_of(c10::Device device) {
  const auto found = std::ranges::find(devices_, device);
  if (found != devices_.end()) return static_cast<size_t>(found - devices_.begin());
  devices_.push_back(device);
  now_.emplace_back();
  peak_.emplace_back();
  return devices_.size() - 1;
}

void MemoryWatch::reportMemoryUsage(void* address, int64_t bytes, size_t total_allocated, size_t total_reserved,
                                    c10::Device device) {
  const std::lock_guard lock(mutex_);
  // What was there before was not counted either.
  const auto known = blocks_.find(address);
  if (device.is_cpu() && bytes < 0 && known == blocks_.end()) return;
  const size_t index = index_of(device);
  MemoryLevel& now = now_[index];
  // If the address is allocated again, another thread has released it, which is not reported to this one.
  const int64_t before = known == blocks_.end() ? 0 : known->second.bytes;
  now.allocated =
      device.is_cpu() ? now.allocated - before + std::max<int64_t>(bytes, 0) : static_cast<int64_t>(total_allocated);
  now.reserved = static_cast<int64_t>(total_reserved);
  peak_[index].allocated = std::max(peak_[index].allocated, now.allocated);
  peak_[index].reserved = std::max(peak_[index].reserved, now.reserved);
  const bool of_layers = device.type() == layer_device_.type() && (device.is_cpu() || device == layer_device_);
  if (of_layers || device.is_cpu())
    count_block(address, bytes, of_layers ? std::optional(now.allocated) : std::nullopt);
}

void MemoryWatch::count_block(void* address, int64_t bytes, std::optional<int64_t> allocated) {
  if (const auto known = blocks_.find(address); known != blocks_.end()) {
    const Block& gone = known->second;
    if (gone.layer && gone.step == step_) held_[*gone.layer] -= gone.bytes;
    blocks_.erase(known);
  }
  if (bytes < 0) return;
  Block block{.bytes = bytes, .layer = {}, .step = step_};
  if (allocated && layer_ && phase_ != Phase::other) {
    Layer& layer = layers_[*layer_];
    if (phase_ == Phase::forward) {
      block.layer = layer_;
      held_[*layer_] += bytes;
      layer.forward_peak = std::max(layer.forward_peak, *allocated);
    } else {
      layer.backward_peak = std::max(layer.backward_peak, *allocated);
    }
  }
  blocks_.emplace(address, block);
}

std::optional<size_t> MemoryWatch::layer_of(const at::Tensor& tensor) const {
  const auto found = layer_of_data_.find(storage_of(tensor));
  return found == layer_of_data_.end() ? std::nullopt : std::optional(found->second);
}

void MemoryWatch::see_operation(const at::RecordFunction& operation) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::other) return;
  if (operation.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    // Nodes that accumulate gradients have no such number; their gradient was allocated before.
    if (const auto found = layer_of_node_.find(operation.seqNr()); found != layer_of_node_.end())
      layer_ = found->second;
    return;
  }
  for (const c10::IValue& input : operation.inputs()) {
    std::optional<size_t> layer;
    if (input.isTensor()) {
      layer = layer_of(input.toTensor());
    } else if (input.isTensorList()) {  // the weights of a recurrent layer
      for (const at::Tensor& tensor : input.toTensorVector())
        if (!layer) layer = layer_of(tensor);
    }
    if (!layer) continue;
    layer_ = layer;
    break;
  }
  if (phase_ == Phase::forward && layer_ && operation.seqNr() >= 0) layer_of_node_[operation.seqNr()] = *layer_;
}

InstalledMemoryWatch::InstalledMemoryWatch(std::shared_ptr<MemoryWatch> watch, bool sees_operations)
    : guard_(c10::DebugInfoKind::PROFILER_STATE, std::move(watch)) {
  if (!sees_operations) return;
  operations_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&see_operation_of_thread)
                                     .needsInputs(true)
                                     .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

InstalledMemoryWatch::~InstalledMemoryWatch() {
  if (operations_) at::removeCallback(*operations_);
}

}  // namespace fulgur::detail
