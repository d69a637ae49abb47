#include "fulgur/optim/fused_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "fulgur/core/device/moved_to.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fused_sgd.h"

namespace fulgur {
namespace {

constexpr size_t kNowhere = static_cast<size_t>(-1);

// grad() would first check whether the tensor is a leaf, which attach() has done.
const Tensor& gradient_of(const Tensor& parameter) { return parameter.unsafeGetTensorImpl()->grad(); }

// Elements are in memory in the same order. The stride of a dimension of size 1 is never used, and PyTorch's kernels
// ignore it too: a 1 × 1 convolution's gradient has a different one in channels_last.
bool same_layout(const Tensor& gradient, const Tensor& parameter) {
  const at::IntArrayRef sizes = parameter.sizes(), a = gradient.strides(), b = parameter.strides();
  if (gradient.sizes() != sizes) return false;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1 && a[i] != b[i]) return false;
  return true;
}

// CPU counters are incremented directly, unless the step is recorded: an operation costs 1.5 µs for each.
void count(const std::vector<Tensor>& steps, bool is_recorded) {
  if (steps.empty()) return;
  if (is_recorded || !steps.front().is_cpu()) return at::_foreach_add_(steps, 1);
  for (const Tensor& step : steps) ++*step.mutable_data_ptr<float>();
}

}  // namespace

bool FusedOptimizer::counts_steps(const Tensor&) const { return true; }

std::optional<int64_t> FusedOptimizer::full_state_bytes() const {
  int64_t bytes = 0;
  for (const ParamGroup& group : groups())
    for (const Tensor& parameter : group.params)
      bytes +=
          static_cast<int64_t>(state_names(parameter).size() * parameter.nbytes()) + (counts_steps(parameter) ? 4 : 0);
  return bytes;
}

void FusedOptimizer::on_attached() {
  states_.clear();
  forget_lists();
}

void FusedOptimizer::forget_lists() {
  ++layout_;
  places_.clear();
  buckets_.clear();
}

FusedOptimizer::State& FusedOptimizer::state_of(const Tensor& parameter) {
  const auto [place, is_new] = states_.try_emplace(parameter.unsafeGetTensorImpl());
  State& state = place->second;
  if (is_new) {
    // In the parameter's own dtype and memory format, like Python.
    if (counts_steps(parameter)) state.step = at::zeros({}, parameter.options().dtype(at::kFloat).requires_grad(false));
    for (size_t i = 0; i < state_names(parameter).size(); ++i)
      state.tensors.push_back(at::full_like(parameter, initial_state()));
  }
  return state;
}

// The kernels need lists with one device and dtype. Lists are kept between steps and only gradients are read again.
void FusedOptimizer::rebuild() {
  if (recording_)
    throw Error(cat("[optim.", name(),
                    "] different parameters have gradients than in the previous steps, so their state would be created "
                    "inside the recorded step"));
  forget_lists();
  for (const ParamGroup& group : groups()) {
    if (group.params.empty()) continue;
    const size_t state_count = state_names(group.params[0]).size();
    const size_t first = buckets_.size();
    for (size_t i = 0; i < group.params.size(); ++i) {
      const Tensor& parameter = group.params[i];
      if (!gradient_of(parameter).defined()) {
        places_.push_back(kNowhere);
        continue;
      }
      State& state = state_of(parameter);
      // Waits for the device, once per layout: never in a recorded step.
      const float updates = momentum_on_device_ && state.step.defined() ? state.step.item<float>() : 0;
      size_t b = first;
      while (b < buckets_.size() &&
             (buckets_[b].params[0].device() != parameter.device() ||
              buckets_[b].params[0].scalar_type() != parameter.scalar_type() || buckets_[b].count != updates))
        ++b;
      if (b == buckets_.size()) {
        buckets_.emplace_back();
        buckets_[b].group = &group;
        buckets_[b].uploaded_lr = group.lr;
        if (rates_on_device_)
          // On the CPU a captured step has the bits of an eager one, whose rate is a double.
          buckets_[b].lr =
              at::full({}, group.lr,
                       parameter.options().dtype(parameter.is_cpu() ? at::kDouble : at::kFloat).requires_grad(false));
        buckets_[b].count = updates;
        if (momentum_on_device_) {
          buckets_[b].uploaded_momentum = *momentum();
          buckets_[b].momentum = at::full({}, *momentum(), parameter.options().dtype(at::kDouble).requires_grad(false));
        }
        buckets_[b].state.resize(state_count);
      }
      if (!parameter.is_non_overlapping_and_dense())
        throw Error(
            cat("[optim.", name(), "] '", group.names[i],
                "' is a view with gaps or overlaps in memory, which the kernels cannot update. Make it contiguous."));
      places_.push_back(b);
      buckets_[b].params.push_back(parameter);
      if (state.step.defined()) buckets_[b].steps.push_back(state.step);
      buckets_[b].names.push_back(&group.names[i]);
      for (size_t s = 0; s < state_count; ++s) buckets_[b].state[s].push_back(state.tensors[s]);
    }
  }
}

// False if a different set of parameters has gradients than in the last step.
bool FusedOptimizer::collect_gradients() {
  for (Bucket& bucket : buckets_) bucket.grads.clear();
  size_t index = 0;
  for (const ParamGroup& group : groups()) {
    for (const Tensor& parameter : group.params) {
      const size_t place = index < places_.size() ? places_[index] : kNowhere;
      const Tensor& gradient = gradient_of(parameter);
      if (gradient.defined() == (place == kNowhere)) return false;
      ++index;
      if (place == kNowhere) continue;
      Bucket& bucket = buckets_[place];
      if (gradient.scalar_type() != parameter.scalar_type())
        throw Error(cat("[optim.", name(), "] the gradient of '", *bucket.names[bucket.grads.size()], "' is ",
                        c10::toString(gradient.scalar_type()), " and the parameter is ",
                        c10::toString(parameter.scalar_type()), ". They must have the same dtype."));
      // The kernels traverse memory: with another layout each weight would get the gradient of another.
      bucket.grads.push_back(same_layout(gradient, parameter) ? gradient : at::empty_like(parameter).copy_(gradient));
    }
  }
  return index == places_.size();
}

void FusedOptimizer::step(const std::optional<Tensor>& found_inf) {
  at::NoGradGuard no_grad;
  if (!collect_gradients()) {
    rebuild();
    collect_gradients();
  }
  // For a recorded step, this is done before each launch instead.
  if (!recording_) upload_rates();
  for (Bucket& bucket : buckets_) {
    count(bucket.steps, recording_);
    // Parameters may be on several devices; each needs the result locally.
    const auto found =
        found_inf ? std::optional(detail::moved_to(*found_inf, bucket.params.front().device())) : std::nullopt;
    if (found && !takes_found_inf(bucket.params.front()))
      update_unless(bucket, *found);
    else
      update(bucket, found);
    // LibTorch's fused kernels do not increment versions: saved tensors that a backward still needs would be considered
    // unchanged, and so would copies of parameters on other devices.
    for (const Tensor& parameter : bucket.params) parameter.unsafeGetTensorImpl()->bump_version();
    // A step that the device skipped is not counted.
    if (found && !bucket.steps.empty())
      at::_foreach_sub_(bucket.steps, std::vector<Tensor>(bucket.steps.size(), *found));
    bucket.grads.clear();
  }
}

void FusedOptimizer::keep_rates_on_device() {
  if (!can_keep_rates_on_device()) return;
  rates_on_device_ = true;
  forget_lists();  // the next step rebuilds them, with their rates
}

void FusedOptimizer::keep_momentum_on_device() {
  if (!rates_on_device_ || !can_keep_momentum_on_device()) return;
  momentum_on_device_ = true;
  forget_lists();
}

void FusedOptimizer::upload_rates() {
  check_rates();
  for (Bucket& bucket : buckets_) {
    if (bucket.lr.defined() && std::exchange(bucket.uploaded_lr, bucket.group->lr) != bucket.group->lr)
      bucket.lr.fill_(bucket.group->lr);
    if (bucket.momentum.defined() && std::exchange(bucket.uploaded_momentum, *momentum()) != *momentum())
      bucket.momentum.fill_(*momentum());
  }
}

// SGD's kernel: the foreach operations take no device scalar, or only one of the tensors' dtype.
void FusedOptimizer::subtract(at::TensorList values, at::TensorList others, double own, const Tensor& factor,
                              const std::optional<Tensor>& found_inf) {
  detail::fused_sgd(values, others, /*buffers=*/{}, /*lr=*/factor.is_cpu() ? factor : factor.to(at::kFloat),
                    {.weight_decay = own}, found_inf);
}

void FusedOptimizer::update_unless(Bucket& bucket, const Tensor& found_inf) {
  std::vector<Tensor> all = bucket.params;
  for (const auto& list : bucket.state) all.insert(all.end(), list.begin(), list.end());
  std::vector<Tensor> before;
  before.reserve(all.size());
  for (const Tensor& tensor : all) before.push_back(at::empty_like(tensor));
  at::_foreach_copy_(before, all);
  update(bucket, std::nullopt);
  // Restores `before` if found_inf is nonzero. Arithmetic would keep a NaN, and `where` takes one tensor at a time;
  // SGD's kernel copies gradients to the buffers in its first step, unless the flag it is given is 1.
  detail::fused_sgd(/*params=*/before, /*grads=*/before, /*buffers=*/all, /*lr=*/0.0,
                    {.momentum = 1, .is_first_step = true}, /*found_inf=*/found_inf.eq(0).to(at::kFloat));
}

StateTree FusedOptimizer::parameter_state(const Tensor& parameter) const {
  StateTree tree;
  const auto found = states_.find(parameter.unsafeGetTensorImpl());
  if (found == states_.end()) return tree;
  if (found->second.step.defined()) tree["step"] = found->second.step;
  const auto names = state_names(parameter);
  for (size_t i = 0; i < names.size(); ++i) tree[names[i]] = found->second.tensors[i];
  return tree;
}

void FusedOptimizer::check_parameter_state(const std::string& parameter, const Tensor& value,
                                           const StateTree& state) const {
  if (state.as_map().empty()) return;  // it had no gradient yet
  auto expected = state_names(value);
  if (counts_steps(value)) expected.emplace_back("step");
  if (state.as_map().size() != expected.size())
    throw CheckpointError(cat("state of '", parameter, "' has ", state.as_map().size(), " entries, but ", name(),
                              " keeps ", expected.size(), ": ", join(expected)));
  for (const std::string& key : expected) {
    const Tensor& saved = state.at(key).tensor();
    if (key == "step" ? saved.numel() != 1 : saved.sizes() != value.sizes())
      throw CheckpointError(cat("shape of ", key, " of '", parameter, "': checkpoint ", shape_text(saved.sizes()),
                                ", parameter ", shape_text(value.sizes())));
  }
}

void FusedOptimizer::load_state(const StateTree& state) {
  Optimizer::load_state(state);
  if (!momentum_on_device_) return;
  // A bucket has a single update count; a loaded state may have several.
  const bool parted = std::ranges::any_of(buckets_, [](const Bucket& bucket) {
    if (bucket.steps.empty()) return false;
    const Tensor steps = at::stack(bucket.steps).cpu();
    return !at::equal(steps, steps[0].expand_as(steps));
  });
  if (!parted) return;
  ++layout_;
  places_.clear();
}

void FusedOptimizer::load_parameter_state(const Tensor& parameter, const StateTree& state) {
  at::NoGradGuard no_grad;
  const size_t states = states_.size();
  if (state.as_map().empty()) {
    states_.erase(parameter.unsafeGetTensorImpl());
  } else {
    State& mine = state_of(parameter);
    if (mine.step.defined()) mine.step.copy_(state.at("step").tensor().reshape({}));
    const auto names = state_names(parameter);
    for (size_t i = 0; i < names.size(); ++i) mine.tensors[i].copy_(state.at(names[i]).tensor());
  }
  if (states_.size() == states) return;  // the same tensors, with other values
  ++layout_;
  places_.clear();
}

}  // namespace fulgur
