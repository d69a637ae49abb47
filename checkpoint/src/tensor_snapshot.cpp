#include "tensor_snapshot.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>

#include <algorithm>

#include "fulgur/core/text.h"

namespace fulgur::detail {
namespace {

constexpr uint64_t kKeptFor = 4;

bool same_form(const Tensor& buffer, const Tensor& tensor) {
  return buffer.defined() && buffer.sizes() == tensor.sizes() && buffer.scalar_type() == tensor.scalar_type();
}

Tensor make_buffer(const Tensor& tensor) {
  Tensor buffer = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).pinned_memory(tensor.is_cuda()));
  // The first copy touches every page: large pages are a few times faster. Advice only.
  constexpr uintptr_t kPage = 2u << 20;
  const auto start = reinterpret_cast<uintptr_t>(buffer.const_data_ptr());
  const uintptr_t first = (start + kPage - 1) / kPage * kPage, end = (start + buffer.nbytes()) / kPage * kPage;
  if (!tensor.is_cuda() && end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
  return buffer;
}

}  // namespace

const c10::Stream& TensorSnapshot::side_stream(c10::Device device) {
  const auto same = [&](const c10::Stream& stream) { return stream.device() == device; };
  auto found = std::find_if(side_streams_.begin(), side_streams_.end(), same);
  const c10::impl::VirtualGuardImpl streams(device.type());
  if (found == side_streams_.end()) found = side_streams_.insert(side_streams_.end(), streams.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
  const bool started = std::any_of(copied_.begin(), copied_.end(), [&](const c10::Event& event) { return event.device() == device; });
  if (!started) {
    // The first copy from this device: what the current stream has in hand comes before it.
    c10::Event& now = copied_.emplace_back(device.type());
    now.record(streams.getStream(device));
    now.block(*found);
  }
  return *found;
}

void TensorSnapshot::let_current_streams_wait() {
  for (c10::Event& event : copied_) {
    const c10::Device device = event.device();
    event.record(side_stream(device));
    event.block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

Tensor TensorSnapshot::copy(const std::string& place, const Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return tensor;
  Buffer& buffer = buffers_[place];
  buffer.last_used = count_;
  if (!same_form(buffer.tensor, tensor) || buffer.pinned != tensor.is_cuda()) {
    buffer.tensor = Tensor();  // before the next takes memory
    buffer.tensor = make_buffer(tensor);
    buffer.pinned = tensor.is_cuda();
  }
  if (tensor.is_cuda()) {
    const c10::Stream& stream = side_stream(tensor.device());
    const c10::StreamGuard guard(stream);
    buffer.tensor.copy_(tensor, /*non_blocking=*/true);
    tensor.record_stream(stream);
  } else if (tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_neg()) {
    if (tensor.nbytes() > 0) plain_.push_back({buffer.tensor.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes()});
  } else {
    buffer.tensor.copy_(tensor);
  }
  return buffer.tensor;
}

void TensorSnapshot::copy_tree(const std::string& place, StateTree& tree) {
  if (tree.is_tensor()) {
    tree = StateTree(copy(place, tree.tensor()));
  } else if (tree.is_map()) {
    for (auto& [key, value] : tree.as_map()) copy_tree(cat(place, "/", key), value);
  } else if (tree.is_list()) {
    size_t index = 0;
    for (StateTree& value : tree.as_list()) copy_tree(cat(place, "/", index++), value);
  }
}

CheckpointContent TensorSnapshot::take(const CheckpointContent& content) {
  const at::NoGradGuard no_grad;
  ++count_;
  copied_.clear();
  plain_.clear();
  CheckpointContent copies = content;
  for (auto& [name, tensor] : copies.module) tensor = copy("module/" + name, tensor);
  copy_tree("optimizers", copies.optimizers);
  copy_tree("state", copies.state);
  let_current_streams_wait();
  copy_memory(plain_);
  std::erase_if(buffers_, [&](const auto& item) { return item.second.last_used + kKeptFor <= count_; });
  return copies;
}

void TensorSnapshot::finish() {
  for (const c10::Event& event : copied_) event.synchronize();
}

}  // namespace fulgur::detail
