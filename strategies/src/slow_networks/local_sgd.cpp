#include "slow_networks/local_sgd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

std::vector<Tensor> values_of(const std::vector<NamedParameter>& parameters) {
  std::vector<Tensor> values;
  for (const NamedParameter& parameter : parameters) values.push_back(parameter.value.detach());
  return values;
}

std::vector<Tensor> copies_of(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

StateTree::List to_list(const std::vector<Tensor>& tensors) { return {tensors.begin(), tensors.end()}; }

}  // namespace

LocalSgd::LocalSgd(const LocalSgdOptions& options, double bucket_cap_mb, ProcessGroup& ranks)
    : options_(options),
      rank_(ranks.place().rank),
      group_size_(options.group_size.value.value_or(ranks.place().local_world_size)),
      ranks_(ranks),
      groups_(ranks, group_size_, "local_sgd.group_size"),
      average_(bucket_cap_mb, DDPStrategy::Compression::none) {
  if (group_size_ == ranks.place().world_size)
    throw ConfigError(cat("[strategies.ddp] local_sgd.group_size is ", group_size_,
                          ", so all ranks average their gradients in each step, and none trains alone. Set it to a "
                          "smaller divisor of the number of ranks, or remove local_sgd."));
}

void LocalSgd::start(const std::vector<NamedParameter>& parameters, const std::vector<Optimizer*>& optimizers,
                     int64_t steps, const StateTree& loaded) {
  parameters_ = parameters;
  optimizers_ = optimizers;
  steps_ = steps;
  if (loaded.contains("differs")) take(loaded);
}

void LocalSgd::before_step(int64_t steps) {
  show_own();
  if (!is_local(steps)) {
    // A resume may have moved the start.
    average();
    start_.clear();
    momentum_.clear();
  }
  if (options_.outer_optimizer && is_local(steps) && start_.empty() && !differs_)
    start_ = copies_of(values_of(parameters_));
}

// A step of several optimizers may count as several.
bool LocalSgd::is_due(int64_t steps) const {
  return (steps - options_.start_step) / options_.period >
         (std::max(steps_, options_.start_step) - options_.start_step) / options_.period;
}

bool LocalSgd::after_step(int64_t steps) {
  differs_ |= is_local(steps_);
  const bool is_due_now = is_local(steps_) && is_due(steps);
  steps_ = steps;
  if (is_due_now) average();
  return is_due_now;
}

// All ranks have the same `differs_`.
void LocalSgd::average() {
  if (!differs_) return;
  const at::NoGradGuard no_grad;
  show_own();
  average_.average(values_of(parameters_), *ranks_.impl().collectives);
  // A resume may have added the outer optimizer in the middle of a period: it begins with the next one.
  if (options_.outer_optimizer && !start_.empty()) make_outer_step();
  differs_ = false;
}

// torch.optim.SGD, whose gradient is the change of the weights in the period.
void LocalSgd::make_outer_step() {
  const OuterOptimizerOptions& outer = *options_.outer_optimizer;
  const std::vector<Tensor> values = values_of(parameters_);
  if (momentum_.empty())
    for (const Tensor& value : values) momentum_.push_back(at::zeros_like(value));
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].is_floating_point()) continue;
    const Tensor gradient = start_[i] - values[i];
    momentum_[i].mul_(outer.momentum).add_(gradient);
    const Tensor step = outer.nesterov ? gradient.add(momentum_[i], outer.momentum) : momentum_[i];
    start_[i].sub_(step, outer.lr);
  }
  at::_foreach_copy_(values, start_);
}

void LocalSgd::show_average() {
  if (!has_own_weights()) return;
  const at::NoGradGuard no_grad;
  const std::vector<Tensor> values = values_of(parameters_);
  own_ = copies_of(values);
  average_.average(values, *ranks_.impl().collectives);
  shown_.clear();
  for (const Tensor& value : values) shown_.emplace_back(value.clone(), value._version());
}

void LocalSgd::show_own() {
  if (own_.empty()) return;
  const at::NoGradGuard no_grad;
  const std::vector<Tensor> values = values_of(parameters_);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& [average, version] = shown_[i];
    // A callback may have written other weights for an evaluation, and the average after it.
    if (values[i]._version() == version || at::equal(values[i], average)) values[i].copy_(own_[i]);
  }
  own_.clear();
  shown_.clear();
}

void LocalSgd::finish() {
  show_average();
  own_.clear();
  shown_.clear();
  differs_ = false;
}

StateTree LocalSgd::state() const {
  StateTree state = StateTree::map({{"differs", differs_}});
  if (differs_) state["weights"] = to_list(own_.empty() ? values_of(parameters_) : own_);
  if (!start_.empty()) state["start"] = to_list(start_);
  if (!momentum_.empty()) state["momentum"] = to_list(momentum_);
  StateTree::List optimizers;
  if (rank_ > 0 && is_local(steps_))
    for (const Optimizer* optimizer : optimizers_) optimizers.push_back(optimizer->state());
  state["optimizers"] = std::move(optimizers);
  return state;
}

StateTree LocalSgd::shared_state(const StateTree& state) {
  StateTree shared = StateTree::map({{"differs", false}, {"optimizers", StateTree::List()}});
  for (const char* key : {"start", "momentum"})
    if (state.contains(key)) shared[key] = state.at(key);
  return shared;
}

void LocalSgd::take(const StateTree& loaded) {
  const at::NoGradGuard no_grad;
  const std::vector<Tensor> values = values_of(parameters_);
  const auto read = [&](const char* key) {
    std::vector<Tensor> tensors;
    if (!loaded.contains(key)) return tensors;
    for (const StateTree& item : loaded.at(key).as_list()) tensors.push_back(item.tensor().to(values.front().device()));
    bool fits = tensors.size() == values.size();
    for (size_t i = 0; fits && i < values.size(); ++i) fits = tensors[i].sizes() == values[i].sizes();
    if (!fits)
      throw CheckpointError(
          cat("[strategies.ddp] the ", key, " of local_sgd in the checkpoint are not those of the model."));
    return tensors;
  };
  if (options_.outer_optimizer) {
    start_ = read("start");
    momentum_ = read("momentum");
  }
  differs_ = loaded.at("differs").as_bool();
  if (const std::vector<Tensor> weights = read("weights"); !weights.empty()) at::_foreach_copy_(values, weights);
  // Until local steps begin again, ranks step alike: with the states of rank 0, which all have loaded.
  if (!is_local(steps_)) return;
  const StateTree::List& optimizers = loaded.at("optimizers").as_list();
  if (!optimizers.empty() && optimizers.size() != optimizers_.size())
    throw CheckpointError("[strategies.ddp] the checkpoint has other optimizers of local_sgd.");
  for (size_t i = 0; i < optimizers.size(); ++i) {
    // Rates are the same on all ranks, and those of the run have been set: its config may have changed them.
    std::vector<std::pair<double, double>> rates;
    for (const ParamGroup& group : optimizers_[i]->groups()) rates.emplace_back(group.lr, group.initial_lr);
    optimizers_[i]->load_state(optimizers[i]);
    for (size_t g = 0; g < rates.size(); ++g)
      std::tie(optimizers_[i]->groups()[g].lr, optimizers_[i]->groups()[g].initial_lr) = rates[g];
  }
}

}  // namespace fulgur::detail
