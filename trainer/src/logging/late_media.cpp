#include "logging/late_media.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace fulgur::detail {
namespace {

/// The record's tensor; nullptr if it has none.
Tensor* tensor_of(MediaRecord& record) {
  if (auto* image = std::get_if<ImageRecord>(&record)) return &image->pixels;
  if (auto* histogram = std::get_if<HistogramRecord>(&record)) return &histogram->values;
  return nullptr;
}

}  // namespace

LateMedia::LateMedia(MediaRecord record) : record_(std::move(record)) {
  Tensor* tensor = tensor_of(record_);
  if (!tensor) return;
  const at::NoGradGuard no_grad;
  const c10::InferenceMode normal(false);
  const Tensor values = tensor->detach();
  if (!values.is_cuda()) {
    *tensor = values.is_cpu() ? values.clone() : values.cpu();
    return;
  }
  // A copy between layouts would first make a contiguous copy in unpinned memory.
  const Tensor dense = values.contiguous();
  Tensor on_host = at::empty(dense.sizes(), dense.options().device(at::kCPU).pinned_memory(true));
  on_host.copy_(dense, /*non_blocking=*/true);
  copied_ = std::make_shared<c10::Event>(dense.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(dense.device().type()).getStream(dense.device()));
  *tensor = std::move(on_host);
}

MediaRecord LateMedia::take() {
  if (copied_) copied_->synchronize();
  return as_logged(std::move(record_));
}

}  // namespace fulgur::detail
