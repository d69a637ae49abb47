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
  if (parameters_.size() != parameters.size()) trained_.assign(parameters.size(), false);
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
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].value.requires_grad() && parameters_[i].value.is_floating_point()) trained_[i] = true;
}

std::vector<Tensor> LocalSgd::trained() const {
  std::vector<Tensor> values;
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (trained_[i]) values.push_back(parameters_[i].value.detach());
  return values;
}

void LocalSgd::forget_trained() { trained_.assign(parameters_.size(), false); }

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
  average_.average(trained(), *ranks_.impl().collectives);
  // A resume may have added the outer optimizer in the middle of a period: it begins with the next one.
  if (options_.outer_optimizer && !start_.empty()) make_outer_step();
  differs_ = false;
  forget_trained();
}

// torch.optim.SGD, whose gradient is the change of the weights in the period.
void LocalSgd::make_outer_step() {
  const OuterOptimizerOptions& outer = *options_.outer_optimizer;
  const std::vector<Tensor> values = values_of(parameters_);
  if (momentum_.empty())
    for (const Tensor& value : values) momentum_.push_back(at::zeros_like(value));
  for (size_t i = 0; i < values.size(); ++i) {
    if (!trained_[i]) continue;
    const Tensor gradient = start_[i] - values[i];
    momentum_[i].mul_(outer.momentum).add_(gradient);
    const Tensor step = outer.nesterov ? gradient.add(momentum_[i], outer.momentum) : momentum_[i];
    start_[i].sub_(step, outer.lr);
    values[i].copy_(start_[i]);
  }
}

Tensor LocalSgd::average_of(const Tensor& parameter) {
  const at::NoGradGuard no_grad;
  Tensor value = parameter.detach().clone();
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (trained_[i] && parameters_[i].value.is_same(parameter)) average_.average({value}, *ranks_.impl().collectives);
  return value;
}

void LocalSgd::show_average() {
  if (!has_own_weights()) return;
  const at::NoGradGuard no_grad;
  const std::vector<Tensor> values = trained();
  const std::vector<Tensor> own = copies_of(values);
  average_.average(values, *ranks_.impl().collectives);
  for (size_t i = 0; i < values.size(); ++i)
    shown_.push_back(
        {.parameter = values[i], .own = own[i], .average = values[i].clone(), .version = values[i]._version()});
}

void LocalSgd::show_own() {
  const at::NoGradGuard no_grad;
  for (const Shown& shown : std::exchange(shown_, {})) {
    // A callback may have written other weights for an evaluation, and the average after it.
    const bool is_average = shown.parameter._version() == shown.version || at::equal(shown.parameter, shown.average);
    if (is_average) Tensor(shown.parameter).copy_(shown.own);
  }
}

void LocalSgd::finish() {
  show_average();
  shown_.clear();
  differs_ = false;
  forget_trained();
}

StateTree LocalSgd::state() const {
  StateTree state = StateTree::map({{"differs", differs_}});
  if (differs_) {
    std::vector<Tensor> weights = values_of(parameters_);
    for (const Shown& shown : shown_)
      for (Tensor& weight : weights)
        if (weight.is_alias_of(shown.parameter)) weight = shown.own;
    state["weights"] = to_list(weights);
    StateTree::List trained;
    for (const bool is : trained_) trained.emplace_back(is);
    state["trained"] = std::move(trained);
  }
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
  if (differs_) {
    const StateTree::List& trained = loaded.at("trained").as_list();
    for (size_t i = 0; i < std::min(trained.size(), trained_.size()); ++i) trained_[i] = trained[i].as_bool();
  }
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
