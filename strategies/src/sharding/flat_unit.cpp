#include "sharding/flat_unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr int64_t kAlignment = 64;  // bytes

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Tensor in_memory_order(const Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

FlatUnit::FlatUnit(std::vector<NamedParameter> parameters, at::Device device, int64_t rank, int64_t ranks,
                   bool reads_values)
    : parameters_(std::move(parameters)), rank_(rank) {
  const at::NoGradGuard no_grad;
  const Tensor first = parameters_.front().value;
  const int64_t step = std::max<int64_t>(kAlignment / first.element_size(), 1);
  int64_t end = 0;
  for (const auto& [name, value] : parameters_) {
    if (!value.is_non_overlapping_and_dense())
      throw ConfigError(cat("[strategies.fsdp] a parameter must be dense in memory; '", escape_controls(name),
                            "' is a view with gaps or overlaps. Make it contiguous."));
    places_.push_back(
        {.begin = end, .numel = value.numel(), .sizes = value.sizes().vec(), .strides = value.strides().vec()});
    end = rounded_up(end + value.numel(), step);
  }
  part_ = rounded_up((end + ranks - 1) / ranks, step);
  numel_ = part_ * ranks;
  buffer_ = at::zeros({numel_}, first.options().device(device).requires_grad(false));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor place = whole(i, buffer_);
    Tensor& value = parameters_[i].value;
    if (reads_values || !stored_values(value)) place.copy_(read_now(value));
    // A gradient of a checkpoint, of an accumulation window.
    const Tensor gradient = std::exchange(value.mutable_grad(), Tensor());
    replace_data(value, place);
    if (gradient.defined()) value.mutable_grad() = gradient.to(device);
  }
}

FlatUnit::Range FlatUnit::own_range(size_t index) const {
  const int64_t begin = places_[index].begin, numel = places_[index].numel;
  const int64_t from = std::clamp<int64_t>(rank_ * part_ - begin, 0, numel);
  const int64_t to = std::clamp<int64_t>((rank_ + 1) * part_ - begin, 0, numel);
  return {from, to - from};
}

void FlatUnit::keep_part() {
  const at::NoGradGuard no_grad;
  kept_part_ = own_part().clone();
}

Tensor FlatUnit::own_elements(size_t index) const {
  return kept_part_.defined() ? own_elements_of_part(index, kept_part_) : own_elements(index, buffer_);
}

Tensor FlatUnit::own_elements(size_t index, const Tensor& buffer) const {
  const auto [begin, count] = own_range(index);
  return buffer.narrow(0, places_[index].begin + begin, count);
}

Tensor FlatUnit::own_elements_of_part(size_t index, const Tensor& part) const {
  const auto [begin, count] = own_range(index);
  return part.narrow(0, count == 0 ? 0 : places_[index].begin + begin - rank_ * part_, count);
}

Tensor FlatUnit::whole(size_t index, const Tensor& buffer) const {
  const Place& place = places_[index];
  return buffer.as_strided(place.sizes, place.strides, place.begin);
}

void FlatUnit::release(at::Device device) noexcept {
  if (!buffer_.defined()) return;
  try {
    const at::NoGradGuard no_grad;
    // Parameters of which this rank has a part only keep memory that cannot be read.
    for (NamedParameter& parameter : parameters_)
      if (parameter.value.storage().unsafeGetStorageImpl() == buffer_.storage().unsafeGetStorageImpl())
        parameter.value.set_data(parameter.value.detach().to(device, /*non_blocking=*/false, /*copy=*/true));
  } catch (const std::exception& error) {
    // They keep their values, in the memory of the buffer.
    log::warn("strategies.shared_memory", cat("parameters keep the memory of their unit: ", error.what()));
  }
  buffer_ = Tensor();
}

}  // namespace fulgur::detail
