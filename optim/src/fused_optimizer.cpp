#include "fulgur/optim/fused_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"

namespace fulgur {

void FusedOptimizer::on_attached() {
  states_.clear();
  active_.clear();
  buckets_.clear();
}

FusedOptimizer::State& FusedOptimizer::state_of(const Tensor& parameter) {
  const auto [place, is_new] = states_.try_emplace(parameter.unsafeGetTensorImpl());
  State& state = place->second;
  if (is_new) {
    // In the parameter's own dtype and memory format, as Python makes them.
    if (counts_steps()) state.step = at::zeros({}, parameter.options().dtype(at::kFloat));
    for (size_t i = 0; i < state_names().size(); ++i) state.tensors.push_back(at::zeros_like(parameter));
  }
  return state;
}

// The kernels want lists of one device and dtype. Lists are kept between steps and only gradients are read anew.
void FusedOptimizer::rebuild() {
  buckets_.clear();
  const size_t state_count = state_names().size();
  for (const ParamGroup& group : groups()) {
    const size_t first = buckets_.size();
    for (size_t i = 0; i < group.params.size(); ++i) {
      const Tensor& parameter = group.params[i];
      if (!parameter.grad().defined()) continue;
      size_t b = first;
      while (b < buckets_.size() && (buckets_[b].params[0].device() != parameter.device() ||
                                     buckets_[b].params[0].scalar_type() != parameter.scalar_type()))
        ++b;
      if (b == buckets_.size()) {
        buckets_.emplace_back();
        buckets_[b].group = &group;
        buckets_[b].state.resize(state_count);
      }
      State& state = state_of(parameter);
      buckets_[b].params.push_back(parameter);
      if (counts_steps()) buckets_[b].steps.push_back(state.step);
      buckets_[b].names.push_back(&group.names[i]);
      for (size_t s = 0; s < state_count; ++s) buckets_[b].state[s].push_back(state.tensors[s]);
    }
  }
}

void FusedOptimizer::step(const std::optional<Tensor>& found_inf) {
  at::NoGradGuard no_grad;
  bool same = !active_.empty();
  size_t index = 0;
  for (const ParamGroup& group : groups()) {
    for (const Tensor& parameter : group.params) {
      const bool has_gradient = parameter.grad().defined();
      if (index == active_.size()) active_.push_back(!has_gradient);
      if (active_[index] != has_gradient) {
        active_[index] = has_gradient;
        same = false;
      }
      ++index;
    }
  }
  if (!same) rebuild();
  for (Bucket& bucket : buckets_) {
    bucket.grads.clear();
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const Tensor& gradient = bucket.params[i].grad();
      if (gradient.scalar_type() != bucket.params[i].scalar_type())
        throw Error(cat("[optim.", name(), "] the gradient of '", *bucket.names[i], "' is ", c10::toString(gradient.scalar_type()),
                        ", the parameter ", c10::toString(bucket.params[i].scalar_type()), ". They must have one dtype."));
      bucket.grads.push_back(gradient);
    }
    if (!bucket.steps.empty()) at::_foreach_add_(bucket.steps, 1);
    update(bucket, found_inf);
    // A step that the device skipped is not counted.
    if (found_inf && !bucket.steps.empty()) at::_foreach_sub_(bucket.steps, std::vector<Tensor>(bucket.steps.size(), *found_inf));
    bucket.grads.clear();
  }
}

StateTree FusedOptimizer::parameter_state(const Tensor& parameter) const {
  StateTree tree;
  const auto found = states_.find(parameter.unsafeGetTensorImpl());
  if (found == states_.end()) return tree;
  if (counts_steps()) tree["step"] = found->second.step;
  const auto names = state_names();
  for (size_t i = 0; i < names.size(); ++i) tree[names[i]] = found->second.tensors[i];
  return tree;
}

void FusedOptimizer::check_parameter_state(const std::string& parameter, const Tensor& value, const StateTree& state) const {
  if (state.as_map().empty()) return;  // it had no gradient yet
  auto expected = state_names();
  if (counts_steps()) expected.emplace_back("step");
  if (state.as_map().size() != expected.size())
    throw CheckpointError(cat("state of '", parameter, "' has ", state.as_map().size(), " entries, ", name(), " keeps ", expected.size(),
                              ": ", join(expected)));
  for (const std::string& key : expected) {
    const Tensor& saved = state.at(key).tensor();
    if (key != "step" && saved.sizes() != value.sizes())
      throw CheckpointError(cat("shape of ", key, " of '", parameter, "': checkpoint ", shape_text(saved.sizes()), ", parameter ", shape_text(value.sizes())));
  }
}

void FusedOptimizer::load_parameter_state(const Tensor& parameter, const StateTree& state) {
  at::NoGradGuard no_grad;
  if (state.as_map().empty()) {
    states_.erase(parameter.unsafeGetTensorImpl());
  } else {
    State& mine = state_of(parameter);
    if (counts_steps()) mine.step.copy_(state.at("step").tensor());
    const auto names = state_names();
    for (size_t i = 0; i < names.size(); ++i) mine.tensors[i].copy_(state.at(names[i]).tensor());
  }
  active_.clear();
}

}  // namespace fulgur
