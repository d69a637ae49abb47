#include "pipeline/stage_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <algorithm>
#include <map>

#include "distributed/gradient_exchange.h"
#include "distributed/same_ranks.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "sharding/storages.h"

namespace fulgur::detail {
namespace {

constexpr size_t kBytesAtOnce = size_t{250} << 20;

}  // namespace

StageParameters::StageParameters(MeshGroups& mesh, const std::vector<StageTensor>& tensors,
                                 std::shared_ptr<TensorShards> parts, std::shared_ptr<StageShards> shards)
    : mesh_(mesh),
      tensors_(tensors),
      parts_(std::move(parts)),
      shards_(std::move(shards)),
      rank_(mesh.place(MeshAxis::pipeline)) {
  // What is away has the size of a part.
  if (parts_) parts_->divide();
  std::map<std::vector<int64_t>, c10::intrusive_ptr<c10d::ProcessGroup>> groups;
  for (const StageTensor& tensor : tensors) {
    if (!tensor.is_parameter) continue;
    if (!is_here(tensor)) {
      const c10::Storage own = tensor.value.storage();
      remote_.push_back(
          {.value = tensor.value,
           .whole = empty_storage(own),
           .away = unreadable_storage(
               own,
               cat("[strategies.mesh] '", escape_controls(tensor.name), "' belongs to rank ", tensor.owner(),
                   " of the pipeline: on rank ", rank_,
                   ", only evaluations and saves can read it. If a layer of stages() reads it, add it to the names of "
                   "that layer. Elsewhere, call run.gather(parameter) on all ranks for a copy, or "
                   "run.run_weights().whole_parameters() first for all of them."))});
      continue;
    }
    if (tensor.ranks.size() == 1) continue;
    std::vector<int64_t> ranks = tensor.ranks;
    std::ranges::sort(ranks);
    auto& group = groups[ranks];
    std::string name = "shared";
    for (const int64_t rank : ranks) name += cat("_", rank);
    if (!group) group = mesh.connect(name, ranks);
    shared_.push_back(
        {.value = tensor.value, .group = group, .owner = std::ranges::find(ranks, tensor.owner()) - ranks.begin()});
  }
}

bool StageParameters::is_here(const StageTensor& tensor) const {
  return std::ranges::find(tensor.ranks, rank_) != tensor.ranks.end();
}

Tensor StageParameters::kept(const Tensor& parameter) const {
  return shards_ ? shards_->own_elements(parameter) : parameter.detach();
}

void StageParameters::begin_step() {
  in_step_ = true;
  if (shards_) shards_->begin_step();
}

void StageParameters::begin_backward() {
  if (shards_ && in_step_) shards_->begin_backward();
}

void StageParameters::end_step() {
  if (!std::exchange(in_step_, false) || !shards_) return;
  if (shards_->steps_in_units() || (held_ == 0 && !is_whole_)) shards_->end_step();
}

void StageParameters::divide() {
  is_whole_ = false;
  if (held_ == 0) free();
}

void StageParameters::gather() {
  fetch();
  is_whole_ = true;
}

void StageParameters::hold() {
  ++held_;
  fetch();
}

void StageParameters::release() {
  if (--held_ == 0 && !is_whole_) free();
}

void StageParameters::free() {
  if (parts_) parts_->divide();
  if (shards_ && (!in_step_ || shards_->steps_in_units())) shards_->free();
  for (const Remote& remote : remote_) {
    set_storage(remote.value, remote.away);
    clear_storage(remote.whole);
  }
  is_there_ = false;
}

void StageParameters::fetch() {
  try {
    fetch_all();
  } catch (const c10::OutOfMemoryError&) {
    log::error(
        "mesh: the memory ended while each rank gathered all parameters, for an evaluation or a save: set "
        "trainer.strategy.init_args.evaluation: units, and state_dict_type: sharded");
    throw;
  }
}

void StageParameters::fetch_all() {
  const at::NoGradGuard no_grad;
  if (!is_there_)
    for (const Remote& remote : remote_) {
      fill_storage(remote.whole, remote.away.nbytes());
      set_storage(remote.value, remote.whole);
    }
  if (shards_) shards_->gather();
  take_buffers();
  // Whole parameters are already the owners' values.
  send_from_owners([&](const StageTensor& tensor) { return !tensor.is_parameter || !is_there_; });
  if (parts_) parts_->gather();
  is_there_ = true;
}

void StageParameters::send_from_owners(const std::function<bool(const StageTensor&)>& is_sent) {
  C10dCollectives* const stages = mesh_.along(MeshAxis::pipeline);
  for (int64_t owner = 0; stages && owner < mesh_.size(MeshAxis::pipeline); ++owner) {
    std::vector<Tensor> values;
    for (const StageTensor& tensor : tensors_)
      if (tensor.owner() == owner && is_sent(tensor)) values.push_back(tensor.value.detach());
    if (values.empty()) continue;
    run_exchange(mesh_.whole(), "mesh",
                 [&] { c10d::broadcast_coalesced(stages->group(), values, kBytesAtOnce, static_cast<int>(owner)); });
  }
}

void StageParameters::gather_buffers() {
  const at::NoGradGuard no_grad;
  take_buffers();
  send_from_owners([](const StageTensor& tensor) { return !tensor.is_parameter; });
}

std::vector<Tensor> StageParameters::whole_values(const std::vector<const StageTensor*>& tensors) {
  const at::NoGradGuard no_grad;
  C10dCollectives* const stages = mesh_.along(MeshAxis::pipeline);
  std::vector<Tensor> values;
  std::map<size_t, Tensor> units;  // of `shards_`, whole
  for (const StageTensor* tensor : tensors) {
    const Tensor& parameter = tensor->value;
    Tensor value;
    if (!is_owner(*tensor)) {
      value = at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().requires_grad(false));
    } else if (shards_) {
      const auto [unit, index] = shards_->units().place_of(parameter);
      Tensor& buffer = units[unit];
      if (!buffer.defined()) buffer = shards_->whole(unit);
      value = shards_->units().units()[unit]->whole(index, buffer);
    } else {
      value = parameter.detach();
    }
    if (stages)
      run_exchange(mesh_.whole(), "mesh", [&] {
        c10d::broadcast_coalesced(stages->group(), {value}, kBytesAtOnce, static_cast<int>(tensor->owner()));
      });
    values.push_back(parts_ && parts_->has(parameter) ? parts_->whole_of(parameter, value) : value);
  }
  return values;
}

Tensor StageParameters::copy_of(const Tensor& parameter) {
  if (is_there_) return parameter.detach().clone();
  const auto is_it = [&](const StageTensor& tensor) { return tensor.value.is_same(parameter); };
  const auto found = std::ranges::find_if(tensors_, is_it);
  if (found != tensors_.end() && found->is_parameter) return whole_values({&*found}).front().clone();
  return parameter.detach().clone();
}

void StageParameters::take_value(const StageTensor& tensor, const Tensor& own, const Tensor& whole) {
  if (!is_here(tensor)) return;
  const at::NoGradGuard no_grad;
  const Tensor part = parts_ && parts_->has(tensor.value) ? parts_->part_of(tensor.value, whole) : whole;
  if (!shards_)
    own.copy_(part);
  else
    shards_->own_elements(tensor.value).copy_(shards_->units().own_elements(tensor.name, tensor.value, "value", part));
}

std::vector<Tensor> StageParameters::own_buffers() const {
  std::vector<Tensor> buffers;
  for (const StageTensor& tensor : tensors_)
    if (!tensor.is_parameter && is_here(tensor)) buffers.push_back(tensor.value.detach());
  return buffers;
}

void StageParameters::take_buffers() {
  const std::vector<Tensor> buffers = own_buffers();
  if (buffers.empty()) return;
  for (const MeshAxis axis : {MeshAxis::data, MeshAxis::shard})
    if (C10dCollectives* const shares = mesh_.along(axis))
      run_exchange(mesh_.whole(), "mesh",
                   [&] { c10d::broadcast_coalesced(shares->group(), buffers, kBytesAtOnce, /*rank=*/0); });
}

void StageParameters::sum_shared_gradients() {
  const at::NoGradGuard no_grad;
  for (const Shared& shared : shared_) {
    if (!shared.value.requires_grad()) continue;
    Tensor& gradient = shared.value.mutable_grad();
    std::vector<Tensor> sum{gradient.defined() ? gradient.contiguous() : at::zeros_like(shared.value)};
    run_exchange(mesh_.whole(), "mesh", [&] { shared.group->allreduce(sum)->wait(); });
    gradient = sum.front();
  }
}

void StageParameters::require_gradients(const std::function<bool(const Tensor&)>& is_taken) const {
  std::vector<std::string> missing;
  for (const StageTensor& tensor : tensors_)
    if (tensor.is_parameter && is_here(tensor) && tensor.value.requires_grad() && !tensor.value.grad().defined() &&
        !is_taken(tensor.value))
      missing.push_back(tensor.name);
  if (!missing.empty()) throw no_gradient_error(missing, mesh_.whole().place().rank, "mesh", /*has_option=*/false);
}

void StageParameters::spread_shared_values() {
  const at::NoGradGuard no_grad;
  if (parts_) {
    std::vector<Tensor> common;
    for (const StageTensor& tensor : tensors_)
      if (tensor.is_parameter && is_here(tensor) && !parts_->has(tensor.value))
        if (Tensor values = kept(tensor.value); values.numel() > 0) common.push_back(std::move(values));
    if (!common.empty())
      run_exchange(mesh_.whole(), "mesh", [&] {
        c10d::broadcast_coalesced(mesh_.along(MeshAxis::tensor)->group(), common, kBytesAtOnce, /*rank=*/0);
      });
  }
  for (const Shared& shared : shared_) {
    const std::vector<Tensor> values{kept(shared.value)};
    if (values.front().numel() == 0) continue;
    run_exchange(mesh_.whole(), "mesh", [&] {
      c10d::broadcast_coalesced(shared.group, values, kBytesAtOnce, static_cast<int>(shared.owner));
    });
  }
}

std::string StageParameters::different_from(C10dCollectives* ranks, bool with_divided) const {
  if (ranks == nullptr) return {};
  const at::NoGradGuard no_grad;
  std::vector<Tensor> sums;
  std::vector<std::string> names;
  for (const StageTensor& tensor : tensors_) {
    if (!tensor.is_parameter || !is_here(tensor)) continue;
    if (!with_divided && parts_->has(tensor.value)) continue;
    sums.push_back(checksum(kept(tensor.value)));
    names.push_back(tensor.name);
  }
  if (sums.empty()) return {};
  const Tensor all = ranks->all_gather_same(at::stack(sums).cpu(), /*with_gradients=*/false);
  for (size_t i = 0; i < names.size(); ++i) {
    const Tensor of_one = all.select(1, static_cast<int64_t>(i));
    if (!of_one.eq(of_one[0]).all().item<bool>()) return names[i];
  }
  return {};
}

void StageParameters::check_copies() {
  if (mesh_.along(MeshAxis::data) == nullptr && !parts_) return;
  std::string different = different_from(mesh_.along(MeshAxis::data), /*with_divided=*/true);
  if (const std::string common = different_from(mesh_.along(MeshAxis::tensor), /*with_divided=*/false);
      different.empty())
    different = common;
  // Ranks with equal parameters must learn of it, too.
  const auto found = mesh_.whole().collectives().gather_text(different);
  for (size_t rank = 0; rank < found.size(); ++rank)
    if (!found[rank].empty())
      throw DistributedError(cat("[strategies.mesh] the weights differ between ranks with the same stages: '",
                                 escape_controls(found[rank]), "' of rank ", static_cast<int64_t>(rank),
                                 " is another one than that of a rank that should have the same. Code that changes "
                                 "weights must do so on all ranks."));
}

}  // namespace fulgur::detail
