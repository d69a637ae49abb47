#include "fulgur/data/batch_kind.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace fulgur {

BatchKind::BatchKind(const Batch& batch) {
  for (const auto& [name, value] : batch) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (!tensor || !tensor->defined() || tensor->layout() != at::kStrided || !tensor->is_non_overlapping_and_dense()) {
      entries_.clear();
      return;
    }
    entries_.push_back({name, tensor->sizes().vec(), tensor->strides().vec(), tensor->scalar_type(), tensor->is_cpu()});
  }
}

bool BatchKind::fits(const Batch& batch) const {
  return !entries_.empty() && std::ranges::equal(entries_, batch, [](const Entry& mine, const Batch::Entry& theirs) {
    const auto* tensor = std::get_if<Tensor>(&theirs.second);
    return mine.name == theirs.first && tensor && tensor->defined() && tensor->layout() == at::kStrided &&
           tensor->scalar_type() == mine.type && tensor->sizes() == at::IntArrayRef(mine.sizes) &&
           (!mine.on_cpu || !tensor->is_cpu() || tensor->strides() == at::IntArrayRef(mine.strides));
  });
}

}  // namespace fulgur
