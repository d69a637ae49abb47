#include "weights/weight_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "fulgur/core/device/moved_to.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

using NamedTensor = std::pair<std::string, Tensor>;

bool is_averaged(const Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}
at::ScalarType average_dtype(const Tensor& live) {
  return at::isReducedFloatingType(live.scalar_type()) ? at::kFloat : live.scalar_type();
}

std::vector<NamedTensor> parameters_of(const LightningModule& module) {
  std::vector<NamedTensor> all;
  for (const auto& [name, value] : unique_parameters(module))
    if (is_averaged(value)) all.emplace_back(name, value.detach());
  return all;
}

// Those whose elements do not share memory, so that they can be written.
std::vector<NamedTensor> buffers_of(const LightningModule& module) {
  std::vector<NamedTensor> all;
  for (const auto& item : module.named_buffers())
    if (const Tensor& value = item.value(); value.defined() && value.layout() == at::kStrided &&
                                            value.unsafeGetTensorImpl()->is_non_overlapping_and_dense())
      all.emplace_back(item.key(), value);
  return all;
}

Tensor wide_copy(const Tensor& live) {
  return at::empty_like(live, live.options().dtype(average_dtype(live))).copy_(live, /*non_blocking=*/true);
}

// A value as the module's tensor is: its device and strides, so that they are averaged in one kernel.
Tensor placed(const Tensor& value, const Tensor& live) {
  if (value.device() == live.device() && value.strides() == live.strides()) return value;
  return at::empty_like(live, live.options().dtype(value.scalar_type())).copy_(value, /*non_blocking=*/true);
}

// `average` becomes `live` if `copies` is defined and nonzero.
void copy_if(const Tensor& copies, const Tensor& live, Tensor& average) {
  if (copies.defined()) average.copy_(at::where(copies.to(average.device(), at::kBool), live, average));
}

// `live` becomes `average`, unless `unless` is defined and nonzero.
void put_unless(const Tensor& unless, const Tensor& average, Tensor& live) {
  if (!unless.defined()) {
    live.copy_(average, /*non_blocking=*/true);
    return;
  }
  const Tensor here = detail::moved_to(average, live.device());
  live.copy_(at::where(unless.to(live.device(), at::kBool), live, here));
}

StateTree tree_of(const WeightAverage::Tensors& tensors) {
  StateTree tree;
  for (const auto& [name, value] : tensors) tree[name] = value;
  return tree;
}

WeightAverage::Tensors tensors_of(const StateTree& tree) {
  WeightAverage::Tensors tensors;
  for (const auto& [name, value] : tree.as_map()) tensors.emplace(name, value.tensor());
  return tensors;
}

CheckpointError does_not_fit(const std::string& what) {
  return CheckpointError(cat("[callbacks.WeightAveraging] the average must belong to the module's tensors; ", what,
                             ". Use the checkpoint with the model that it was made with."));
}

void check_fits(const WeightAverage::Tensors& tensors, const std::vector<NamedTensor>& live, bool all) {
  const auto find = [&](const std::string& name) {
    return std::find_if(live.begin(), live.end(), [&](const NamedTensor& item) { return item.first == name; });
  };
  for (const auto& [name, value] : tensors) {
    const auto found = find(name);
    if (found == live.end()) throw does_not_fit(cat("the module has no '", name, "'"));
    if (found->second.sizes() != value.sizes())
      throw does_not_fit(cat("'", name, "' has ", shape_text(found->second.sizes()), " in the module and ",
                             shape_text(value.sizes()), " in the checkpoint"));
  }
  if (!all || tensors.empty()) return;
  for (const auto& [name, value] : live)
    if (!tensors.contains(name)) throw does_not_fit(cat("the checkpoint has no average of '", name, "'"));
}

}  // namespace

void WeightAverage::clear() {
  parameters_.clear();
  buffers_.clear();
  recomputed_.clear();
  unbind();
}

void WeightAverage::unbind() {
  bound_ = nullptr;
  groups_.clear();
  narrow_.clear();
  live_buffers_.clear();
}

void WeightAverage::bind(const LightningModule& module) {
  if (bound_ == &module) return;
  unbind();
  for (const auto& [name, live] : parameters_of(module)) {
    Tensor& average = parameters_.at(name);
    average = placed(average, live);
    if (average.scalar_type() != live.scalar_type()) {
      narrow_.emplace_back(live, average);
      continue;
    }
    auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) {
      return g.device == live.device() && g.live.front().scalar_type() == live.scalar_type();
    });
    if (group == groups_.end()) group = groups_.insert(groups_.end(), Group{live.device(), {}, {}});
    group->live.push_back(live);
    group->average.push_back(average);
  }
  for (const auto& [name, live] : buffers_of(module)) {
    if (!with_buffers_ || !is_averaged(live)) continue;
    const auto [found, is_new] = buffers_.try_emplace(name);
    found->second = is_new ? wide_copy(live) : placed(found->second, live);
    live_buffers_.emplace_back(live, found->second);
  }
  bound_ = &module;
}

void WeightAverage::copy(const LightningModule& module) {
  const at::NoGradGuard no_grad;
  clear();
  for (const auto& [name, live] : parameters_of(module)) parameters_.emplace(name, wide_copy(live));
  if (with_buffers_)
    for (const auto& [name, live] : buffers_of(module))
      if (is_averaged(live)) buffers_.emplace(name, wide_copy(live));
}

void WeightAverage::move(const LightningModule& module, double weight) { move_by(module, {.of_host = weight}); }

void WeightAverage::move_by_device(const LightningModule& module, const Tensor& weight, const Tensor& copies) {
  move_by(module, {.of_device = weight, .copies = copies});
}

void WeightAverage::move_by(const LightningModule& module, const Weight& weight) {
  const at::NoGradGuard no_grad;
  bind(module);
  recomputed_.clear();
  for (Group& group : groups_) move_together(group, weight);
  for (auto& [live, average] : narrow_) {
    const Tensor wide = live.to(average.scalar_type());
    if (weight.of_device.defined())
      average.lerp_(wide, weight.of_device.to(average.options()));
    else
      average.lerp_(wide, weight.of_host);
    copy_if(weight.copies, wide, average);
  }
  move_buffers(weight);
}

void WeightAverage::move_together(Group& group, const Weight& weight) {
  if (!weight.of_device.defined()) return at::_foreach_lerp_(group.average, group.live, weight.of_host);
  // The formula of lerp, with a weight that the device knows.
  std::vector<Tensor> steps = at::_foreach_sub(group.live, group.average);
  at::_foreach_mul_(steps, weight.of_device.to(group.average.front().options()));
  at::_foreach_add_(group.average, steps);
  for (size_t i = 0; i < group.live.size(); ++i) copy_if(weight.copies, group.live[i], group.average[i]);
}

void WeightAverage::move_buffers(const Weight& weight) {
  for (auto& [live, average] : live_buffers_) {
    const Tensor wide = live.to(average.scalar_type());
    const Tensor moved = weight.of_device.defined() ? average.lerp(wide, weight.of_device.to(average.options()))
                                                    : average.lerp(wide, weight.of_host);
    // A constant such as a mask with infinite values stays as it is.
    average.copy_(at::where(average.eq(wide), average, moved));
    copy_if(weight.copies, wide, average);
  }
}

void WeightAverage::set_recomputed(const LightningModule& module, const std::vector<std::string>& names) {
  recomputed_.clear();
  for (const auto& [name, live] : buffers_of(module))
    if (std::find(names.begin(), names.end(), name) != names.end()) recomputed_.emplace(name, live.clone());
}

void WeightAverage::enter(LightningModule& module, bool and_keep_buffers, const Tensor& unless) {
  const at::NoGradGuard no_grad;
  own_.clear();
  for (const auto& [name, live] : parameters_of(module)) own_.emplace_back(live, live.clone());
  for (const auto& [name, live] : buffers_of(module))
    if (and_keep_buffers || buffers_.contains(name) || recomputed_.contains(name))
      own_.emplace_back(live, live.clone());
  entered_ = true;
  put_into(module, unless);
}

void WeightAverage::leave() {
  if (!entered_) return;
  const at::NoGradGuard no_grad;
  for (auto& [live, value] : own_) live.copy_(value);
  own_.clear();
  entered_ = false;
}

void WeightAverage::put_into(LightningModule& module, const Tensor& unless) {
  const at::NoGradGuard no_grad;
  for (auto& [name, live] : parameters_of(module)) put_unless(unless, parameters_.at(name), live);
  for (auto& [name, live] : buffers_of(module)) {
    // Recomputed ones replace averages.
    if (const auto found = recomputed_.find(name); found != recomputed_.end())
      put_unless(unless, found->second, live);
    else if (const auto average = buffers_.find(name); average != buffers_.end())
      put_unless(unless, average->second, live);
  }
}

std::vector<Tensor> WeightAverage::shared_buffers() const {
  std::vector<Tensor> all;
  for (const auto& [name, value] : buffers_) all.push_back(value);
  return all;
}

StateTree WeightAverage::state() const {
  return StateTree::map(
      {{"average", tree_of(parameters_)}, {"buffers", tree_of(buffers_)}, {"recomputed", tree_of(recomputed_)}});
}

void WeightAverage::load_state(const StateTree& state, const LightningModule* module) {
  Tensors parameters = tensors_of(state.at("average")), buffers = tensors_of(state.at("buffers")),
          recomputed = tensors_of(state.at("recomputed"));
  if (module) {
    check_fits(parameters, parameters_of(*module), /*all=*/true);
    check_fits(buffers, buffers_of(*module), /*all=*/false);
    check_fits(recomputed, buffers_of(*module), /*all=*/false);
  }
  unbind();
  parameters_ = std::move(parameters);
  buffers_ = with_buffers_ ? std::move(buffers) : Tensors();
  recomputed_ = std::move(recomputed);
}

}  // namespace fulgur::detail
