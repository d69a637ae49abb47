#include "fulgur/data/input_sets.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "fulgur/core/state/let_go.h"

namespace fulgur {
namespace {

// For batches that match a kind: all their entries are tensors.
const Tensor& tensor_of(const Batch::Entry& entry) { return std::get<Tensor>(entry.second); }

// Makes the batch to return: separate tensors, so that the storage's count shows whether they are held.
Batch share(const Batch& set) {
  Batch batch;
  for (const auto& entry : set) batch.add(entry.first, tensor_of(entry).variable_data());
  return batch;
}

bool is_held(const Batch& set) {
  return std::ranges::any_of(set, [](const Batch::Entry& entry) { return tensor_of(entry).storage().use_count() > 1; });
}

bool is_on_host(const Batch& batch) {
  return std::ranges::all_of(batch, [](const Batch::Entry& entry) { return tensor_of(entry).is_cpu(); });
}

bool lies_in(const Batch& batch, const Batch& set) {
  return std::ranges::equal(batch, set, [](const auto& a, const auto& b) {
    return tensor_of(a).strides() == tensor_of(b).strides() &&
           tensor_of(a).const_data_ptr() == tensor_of(b).const_data_ptr();
  });
}

}  // namespace

InputSets::~InputSets() {
  for (Batch& set : sets_) let_go(set);
}

std::optional<Batch> InputSets::write(const Batch& host, at::Device device) {
  if (kept_ || !kind_.fits(host) || !is_on_host(host)) return std::nullopt;
  const size_t turn = (in_use_ + 1) % kSets;
  Batch& set = sets_[turn];
  if (is_held(set)) {
    kept_ = true;
    return std::nullopt;
  }
  const at::NoGradGuard no_grad;
  const c10::impl::VirtualGuardImpl impl(device.type());
  const c10::Stream stream = impl.getStream(device);
  if (set.empty()) {
    set = host.to(device, /*non_blocking=*/true);
  } else {
    if (free_) free_->block(stream);
    if (written_[turn]) written_[turn]->block(stream);
    auto target = set.begin();
    for (const auto& entry : host) {
      const Tensor& to = tensor_of(*target++);
      // The memory may belong to another stream, of a previous loader.
      impl.recordDataPtrOnStream(to.storage().data_ptr(), stream);
      to.copy_(tensor_of(entry), /*non_blocking=*/true);
    }
  }
  if (!written_[turn]) written_[turn].emplace(device.type());
  written_[turn]->record(stream);
  return share(set);
}

void InputSets::begin(const Batch& batch, at::Device device) {
  if (kept_) return;
  if (!free_) free_.emplace(device.type());
  free_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  if (const auto set = find(batch)) in_use_ = *set;
}

std::optional<size_t> InputSets::find(const Batch& batch) const {
  if (!kind_.fits(batch)) return std::nullopt;
  for (size_t i = 0; i < kSets; ++i)
    if (lies_in(batch, sets_[i])) return i;
  return std::nullopt;
}

}  // namespace fulgur
