#include "tensor/tensor_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <c10/util/accumulate.h>

#include <utility>

#include "fulgur/core/state/stored_values.h"
#include "sharding/storages.h"

namespace fulgur::detail {
namespace {

// A rank's part of stored values.
class StoredPart final : public StoredValues {
 public:
  StoredPart(c10::intrusive_ptr<StoredValues> of, const DividedParameter& parameter, int64_t rank, int64_t ranks,
             bool is_row_major)
      : of_(std::move(of)), parameter_(parameter), rank_(rank), ranks_(ranks), is_row_major_(is_row_major) {}

  Tensor read() const override {
    if (!is_row_major_ || parameter_.dim != 0 || parameter_.parts.size() != 1)
      return own_part(parameter_, of_->read(), rank_, ranks_);
    // Rows that follow each other: the others need not be read.
    std::vector<int64_t> sizes = parameter_.sizes;
    const int64_t rows = sizes[0], of_row = c10::multiply_integers(sizes.begin() + 1, sizes.end());
    const OwnRange own = own_range(rows, rank_, ranks_);
    sizes[0] = own.count;
    return of_->read_range(own.begin * of_row, own.count * of_row).view(sizes);
  }

 private:
  c10::intrusive_ptr<StoredValues> of_;
  DividedParameter parameter_;
  int64_t rank_, ranks_;
  bool is_row_major_;
};

}  // namespace

TensorShards::TensorShards(LayerExchange& ranks, std::vector<DividedParameter> parameters,
                           const std::unordered_set<const void*>& here)
    : ranks_(ranks), parameters_(std::move(parameters)), own_(parameters_.size()), wholes_(parameters_.size()) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& value = parameters_[i].value;
    places_.emplace(value.unsafeGetTensorImpl(), i);
    if (!here.contains(value.unsafeGetTensorImpl()) || stored_values(value)) continue;
    own_[i] = own_part(parameters_[i], value, rank(), size());
    by_memory_.add(own_[i], i);
  }
}

void TensorShards::divide() {
  if (std::exchange(are_divided_, true)) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const DividedParameter& parameter = parameters_[i];
    if (stored_values(parameter.value)) continue;
    const Tensor part = own_part(parameter, parameter.value, rank(), size());
    // Optimizers step the same memory all the time.
    if (own_[i].defined()) own_[i].copy_(part);
    Tensor(parameter.value).set_data(own_[i].defined() ? own_[i] : part);
    if (wholes_[i].defined()) clear_storage(wholes_[i].storage());
  }
}

void TensorShards::keep(const Tensor& parameter) {
  const size_t index = places_.at(parameter.unsafeGetTensorImpl());
  own_[index] = parameter.detach();
  by_memory_.add(own_[index], index);
}

void TensorShards::move_to(const FlatUnit& unit) {
  for (size_t i = 0; i < unit.parameters().size(); ++i) {
    const auto found = places_.find(unit.parameters()[i].value.unsafeGetTensorImpl());
    if (found == places_.end()) continue;
    by_memory_.forget_storage(own_[found->second]);
    own_[found->second] = unit.whole(i, unit.buffer());
    by_memory_.add(own_[found->second], found->second);
  }
}

void TensorShards::know_while_free(const FlatUnit& unit, const c10::Storage& away) {
  for (size_t i = 0; i < unit.parameters().size(); ++i) {
    const auto found = places_.find(unit.parameters()[i].value.unsafeGetTensorImpl());
    if (found == places_.end()) continue;
    Tensor part = own_[found->second].detach();
    set_storage(part, away);
    by_memory_.add(part, found->second);
  }
}

void TensorShards::gather() {
  if (!std::exchange(are_divided_, false)) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const DividedParameter& parameter = parameters_[i];
    const Tensor values = joined(parameter, parameter.value.detach());
    if (wholes_[i].defined()) {
      fill_storage(wholes_[i].storage(), values.nbytes());
      wholes_[i].copy_(values);
    } else {
      wholes_[i] = values;
    }
    Tensor(parameter.value).set_data(wholes_[i]);
  }
}

Tensor TensorShards::joined(const DividedParameter& parameter, const Tensor& part) const {
  int64_t most = 0;
  for (const int64_t size : parameter.parts) most += own_range(size, 0, this->size()).count;
  // Only the last part of a vocabulary may be shorter.
  Tensor sent = part.movedim(parameter.dim, 0).contiguous();
  if (sent.size(0) < most) {
    std::vector<int64_t> padding(static_cast<size_t>(sent.dim()) * 2, 0);
    padding.back() = most - sent.size(0);
    sent = at::constant_pad_nd(sent, padding);
  }
  const Tensor rows = ranks_.gather_rows(sent);
  std::vector<Tensor> pieces;
  int64_t begin = 0;
  for (const int64_t size : parameter.parts) {
    for (int64_t rank = 0; rank < this->size(); ++rank)
      pieces.push_back(rows[rank].narrow(0, begin, own_range(size, rank, this->size()).count));
    begin += own_range(size, 0, this->size()).count;
  }
  return at::cat(pieces).movedim(0, parameter.dim).contiguous();
}

Tensor TensorShards::whole_of(const Tensor& parameter, const Tensor& part) const {
  const at::NoGradGuard no_grad;
  return joined(at_place(parameter), part.detach());
}

Tensor TensorShards::part_of(const Tensor& parameter, const Tensor& whole) const {
  const Tensor part = own_part(at_place(parameter), whole, rank(), size());
  auto values = stored_values(whole);
  if (!values) return part;
  return stand_in(part, c10::make_intrusive<StoredPart>(std::move(values), at_place(parameter), rank(), size(),
                                                        whole.is_contiguous()));
}

TensorSlice TensorShards::slice_of(const Tensor& parameter) const {
  const DividedParameter& divided = at_place(parameter);
  TensorSlice slice{.dim = divided.dim};
  int64_t begin = 0;
  for (const int64_t part : divided.parts) {
    const OwnRange own = own_range(part, rank(), size());
    if (own.count > 0) slice.ranges.push_back({begin + own.begin, own.count});
    begin += part;
  }
  return slice;
}

}  // namespace fulgur::detail
