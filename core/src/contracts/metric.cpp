#include "fulgur/core/contracts/metric.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <utility>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

namespace {

[[noreturn]] void refuse(std::string_view what) {
  throw CheckpointError(cat("[metric.state] the state belongs to another metric: ", what,
                            ". Give the metric the options with which the checkpoint was made, or rename it."));
}

[[maybe_unused]] const bool metric_options_registered = [] {
  component_registry(PredictionMetric::kRegistryKind).set_common_options([] {
    return std::make_unique<OptionsOf<MetricOptions>>();
  });
  return true;
}();

}  // namespace

Metric::~Metric() = default;

void MetricOptions::fields(Fields& f) {
  f(name, "name", "Name under which the metric is logged, after val_ or test_; null: that of its class.");
}

void PredictionMetric::set_common_options(const MetricOptions& options) {
  if (options.name && options.name->empty())
    throw ConfigError("[metric.name] the name of a metric must not be empty. Leave it out for the name of its class.");
  common_options_ = options;
}

std::vector<std::string> Metric::value_names(int64_t count) const {
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back(cat("_", i));
  return names;
}

void Metric::reset() {
  const at::NoGradGuard no_grad;
  updates_ = 0;
  // In place, so that a recorded step finds the memory again.
  for (State& state : states_) state.value.copy_(state.initial);
  for (List& list : lists_) list.values.clear();
}

Tensor& Metric::add_state(std::string name, Tensor initial, Merge merge) {
  Tensor value = initial.clone();
  states_.push_back({std::move(name), std::move(value), std::move(initial), merge});
  return states_.back().value;
}

std::vector<Tensor>& Metric::add_list(std::string name) {
  lists_.push_back({std::move(name), {}});
  return lists_.back().values;
}

void Metric::begin_update(const Tensor& input) {
  ++updates_;
  const c10::InferenceMode normal(false);  // later updates may be outside of inference mode
  for (State& state : states_) {
    if (state.value.device() == input.device()) continue;
    state.value = state.value.to(input.device());
    state.initial = state.initial.to(input.device());
  }
}

StateTree Metric::state() const {
  StateTree tree = StateTree::map({{"updates", updates_}});
  StateTree& values = tree["values"];
  for (const State& state : states_) values[state.name] = state.value;
  StateTree& lists = tree["lists"];
  for (const List& list : lists_)
    lists[list.name] = list.values.empty() ? StateTree(nullptr) : StateTree(at::cat(list.values));
  return tree;
}

void Metric::check_state(const StateTree& other) const {
  const auto& values = other.at("values").as_map();
  if (values.size() != states_.size() || other.at("lists").as_map().size() != lists_.size())
    refuse("it has another number of sums");
  for (const State& state : states_) {
    const auto found = values.find(state.name);
    if (found == values.end()) refuse(cat("it has no '", state.name, "'"));
    const Tensor& value = found->second.tensor();
    if (value.sizes() != state.value.sizes() || value.scalar_type() != state.value.scalar_type())
      refuse(cat("its '", state.name, "' has the shape ", shape_text(value.sizes()), " instead of ",
                 shape_text(state.value.sizes())));
  }
  for (const List& list : lists_)
    if (!other.at("lists").contains(list.name)) refuse(cat("it has no list '", list.name, "'"));
  other.at("updates").as_int();
}

void Metric::load_state(const StateTree& state) {
  check_state(state);
  // The next update appends to lists on the device of its batch.
  std::optional<at::Device> device;
  for (const List& list : lists_)
    if (!list.values.empty()) device = list.values.front().device();
  reset();
  const at::NoGradGuard no_grad;
  for (State& own : states_) own.value.copy_(state.at("values").at(own.name).tensor());
  for (List& list : lists_)
    if (const StateTree& joined = state.at("lists").at(list.name); !joined.is_null())
      list.values.push_back(joined.tensor().to(device.value_or(joined.tensor().device())).clone());
  updates_ = state.at("updates").as_int();
}

void Metric::merge_state(const StateTree& other) {
  check_state(other);
  const at::NoGradGuard no_grad;
  for (State& own : states_) {
    const Tensor theirs = other.at("values").at(own.name).tensor().to(own.value.device());
    if (own.merge == Merge::sum)
      own.value.add_(theirs);
    else if (own.merge == Merge::min)
      at::minimum_out(own.value, own.value, theirs);
    else
      at::maximum_out(own.value, own.value, theirs);
  }
  for (List& list : lists_) {
    const StateTree& joined = other.at("lists").at(list.name);
    if (joined.is_null()) continue;
    const Tensor& values = joined.tensor();
    list.values.push_back(list.values.empty() ? values.clone() : values.to(list.values.front().device()));
  }
  updates_ += other.at("updates").as_int();
}

}  // namespace fulgur
