#include "snapshot/tensor_snapshot.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <sys/mman.h>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr uint64_t kBufferKeptFor = 4;

bool same_form(const Tensor& buffer, const Tensor& tensor) {
  return buffer.defined() && buffer.sizes() == tensor.sizes() && buffer.scalar_type() == tensor.scalar_type();
}

Tensor make_buffer(const Tensor& tensor) {
  Tensor buffer = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()));
  // The first copy touches every page: large pages are a few times faster. Advice only.
  constexpr uintptr_t kPage = 2u << 20;
  const auto start = reinterpret_cast<uintptr_t>(buffer.const_data_ptr());
  const uintptr_t first = (start + kPage - 1) / kPage * kPage, end = (start + buffer.nbytes()) / kPage * kPage;
  if (end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
  return buffer;
}

}  // namespace

Tensor TensorSnapshot::copy(const std::string& place, const Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_cuda() || tensor.is_meta()) return tensor;
  Buffer& buffer = buffers_[place];
  buffer.last_used = count_;
  if (!same_form(buffer.tensor, tensor)) {
    buffer.tensor = Tensor();  // before the next one allocates
    buffer.tensor = make_buffer(tensor);
  }
  if (tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_neg()) {
    if (tensor.nbytes() > 0)
      plain_.push_back({buffer.tensor.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes()});
  } else {
    buffer.tensor.copy_(tensor);
  }
  return buffer.tensor;
}

void TensorSnapshot::copy_tree(const std::string& place, StateTree& tree) {
  if (tree.is_tensor()) {
    if (!devices_.add(tree)) tree = StateTree(copy(place, tree.tensor()));
  } else if (tree.is_map()) {
    for (auto& [key, value] : tree.as_map()) copy_tree(cat(place, "/", key), value);
  } else if (tree.is_list()) {
    size_t index = 0;
    for (StateTree& value : tree.as_list()) copy_tree(cat(place, "/", index++), value);
  }
}

CheckpointContent TensorSnapshot::take(const CheckpointContent& content, StateTree* facts, const IsLate& is_late) {
  const at::NoGradGuard no_grad;
  ++count_;
  plain_.clear();
  devices_.clear();
  CheckpointContent copies = content;
  for (auto& [name, tensor] : copies.module)
    if (!devices_.add(tensor)) tensor = copy("module/" + name, tensor);
  for (size_t i = 0; i < copies.parts.size(); ++i)
    if (Tensor& values = copies.parts[i].values; !devices_.add(values)) values = copy(cat("parts/", i), values);
  copy_tree("optimizers", copies.optimizers);
  copy_tree("state", copies.state);
  if (facts) copy_tree("facts", *facts);
  devices_.start(is_late);
  copy_memory(plain_);
  std::erase_if(buffers_, [&](const auto& item) { return item.second.last_used + kBufferKeptFor <= count_; });
  return copies;
}

}  // namespace fulgur::detail
