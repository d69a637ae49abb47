#include "fulgur/core/contracts/optimizer.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "contracts/rates.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
void Optimizer::check_rates(std::optional<int64_t> steps) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (detail::is_rate(groups_[g].lr)) continue;
    throw ConfigError(cat("[core.Optimizer] a learning rate must be finite and at least 0; ", name(), " has ",
                          groups_[g].lr, " in ", detail::group_text(g, groups_[g].name),
                          steps ? cat(" after ", *steps, " of its steps") : "",
                          ". Look for what sets `lr`: options, groups, a hook or a callback."));
  }
}

void Optimizer::attach(std::vector<ParamGroup> groups) {
  groups = arrange(std::move(groups));
  struct Place {
    size_t group;
    std::string name;
  };
  std::unordered_map<const void*, Place> seen;
  size_t count = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    ParamGroup& group = groups[g];
    if (group.names.size() != group.params.size())
      throw ConfigError(cat("[core.Optimizer.attach] each parameter needs its name; got ", group.params.size(),
                            " parameters and ", group.names.size(), " names."));
    for (size_t i = 0; i < group.params.size(); ++i) {
      const auto [place, is_new] = seen.emplace(group.params[i].unsafeGetTensorImpl(), Place{g, group.names[i]});
      const Place& other = place->second;
      if (!is_new && other.name == group.names[i] && other.group != g)
        throw ConfigError(cat("[core.Optimizer.attach] a parameter may appear only once in the groups; '", other.name,
                              "' is in ", detail::group_text(other.group, groups[other.group].name), " and in ",
                              detail::group_text(g, group.name), ". Put it in one of them."));
      if (!is_new)
        throw ConfigError(cat("[core.Optimizer.attach] a parameter may appear only once in the groups; '",
                              group.names[i], "' and '", other.name,
                              "' are the same tensor. Use unique_parameters(module)."));
      if (!group.params[i].is_leaf())
        throw ConfigError(
            cat("[core.Optimizer.attach] '", group.names[i], "' is not a leaf tensor and cannot be optimized."));
      ++count;
    }
    if (group.lr == 0) group.lr = default_lr();
    if (group.initial_lr == 0) group.initial_lr = group.lr;
  }
  if (count == 0)
    throw ConfigError(
        "[core.Optimizer.attach] there is no parameter to optimize. The module registers none that requires a "
        "gradient: are its layers registered with register_module(\"name\", layer)?");
  std::swap(groups_, groups);
  try {
    check_rates();
  } catch (...) {
    std::swap(groups_, groups);
    throw;
  }
  on_attached();
}

void Optimizer::step_copies(const std::function<Tensor(const std::string&, const Tensor&)>& copy_of) {
  for (ParamGroup& group : groups_) {
    std::vector<Tensor> copies;
    for (size_t i = 0; i < group.params.size(); ++i) copies.push_back(copy_of(group.names[i], group.params[i]));
    group.module_params = std::exchange(group.params, std::move(copies));
  }
  on_attached();
}

void Optimizer::step_shards(const std::function<Tensor(const std::string&, const Tensor&)>& shard_of,
                            std::function<Tensor(const Tensor&)> sum_over_ranks) {
  sum_over_ranks_ = std::move(sum_over_ranks);
  for (ParamGroup& group : groups_) group.are_shards = true;
  step_copies(shard_of);
}

void Optimizer::step_whole_parameters() {
  sum_over_ranks_ = nullptr;
  for (ParamGroup& group : groups_) {
    if (!std::exchange(group.are_shards, false)) continue;
    group.params = std::exchange(group.module_params, {});
  }
  on_attached();
}

void Optimizer::scale_lr(double factor) {
  for (ParamGroup& group : groups_) {
    group.lr *= factor;
    group.initial_lr *= factor;
  }
}

void Optimizer::zero_grad() {
  for (ParamGroup& group : groups_)
    for (auto* list : {&group.params, &group.module_params})
      for (Tensor& parameter : *list) parameter.unsafeGetTensorImpl()->mutable_grad().reset();
}

std::vector<Tensor> Optimizer::gradients() const {
  std::vector<Tensor> gradients;
  for (const ParamGroup& group : groups_)
    for (const Tensor& parameter : group.are_shards && !gradients_are_shards() ? group.of_module() : group.params)
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  return gradients;
}

Tensor grad_norm(const Optimizer& optimizer) {
  const Tensor own = grad_norm(optimizer.gradients());
  if (!optimizer.gradients_are_shards()) return own;
  const at::NoGradGuard no_grad;
  // The square of a float32 norm may be infinite.
  return optimizer.sum_over_shards(own.to(at::kDouble).square()).sqrt().to(own.scalar_type());
}

Tensor clip_grad_norm(const Optimizer& optimizer, double max_norm) {
  const Tensor norm = grad_norm(optimizer);
  clip_grad_norm(optimizer.gradients(), max_norm, norm);
  return norm;
}

StateTree Optimizer::state() const {
  StateTree tree;
  tree["class"] = name();
  StateTree::List groups;
  StateTree parameters;
  for (const ParamGroup& group : groups_) {
    StateTree::List names;
    for (size_t i = 0; i < group.params.size(); ++i) {
      names.emplace_back(group.names[i]);
      parameters[group.names[i]] = parameter_state(group.params[i]);
    }
    StateTree entry = StateTree::map(
        {{"name", group.name}, {"lr", group.lr}, {"initial_lr", group.initial_lr}, {"params", std::move(names)}});
    if (group.weight_decay) entry["weight_decay"] = *group.weight_decay;
    groups.push_back(std::move(entry));
  }
  tree["groups"] = std::move(groups);
  tree["state"] = std::move(parameters);
  return tree;
}

void Optimizer::load_state(const StateTree& state) {
  // Check everything before changing anything.
  std::vector<std::string> wrong;
  if (const std::string& kind = state.at("class").as_string(); kind != name())
    throw CheckpointError(cat("[core.Optimizer.load_state] the checkpoint holds the state of ", kind,
                              ", but the run uses ", name(),
                              ". Use the same optimizer, or start from the weights alone."));
  const auto& saved_groups = state.at("groups").as_list();
  if (saved_groups.size() != groups_.size())
    throw CheckpointError(cat("[core.Optimizer.load_state] the checkpoint has ", saved_groups.size(),
                              " parameter groups, but the run has ", groups_.size(), "."));
  struct Rates {
    double lr, initial_lr;
  };
  std::vector<Rates> rates;
  std::unordered_map<std::string, size_t> saved_in;  // group by parameter
  for (size_t g = 0; g < saved_groups.size(); ++g) {
    rates.push_back({saved_groups[g].at("lr").as_double(), saved_groups[g].at("initial_lr").as_double()});
    for (const StateTree& parameter : saved_groups[g].at("params").as_list())
      saved_in.emplace(parameter.as_string(), g);
  }
  const auto& saved = state.at("state").as_map();
  std::unordered_set<std::string> expected;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const ParamGroup& group = groups_[g];
    for (size_t i = 0; i < group.params.size(); ++i) {
      const std::string& parameter_name = group.names[i];
      expected.insert(parameter_name);
      // Rates belong to groups: in another group, a parameter would continue with the wrong rate.
      if (const auto there = saved_in.find(parameter_name); there != saved_in.end() && there->second != g)
        wrong.push_back(cat("other group: ", parameter_name, " is in ",
                            detail::group_text(there->second, saved_groups[there->second].at("name").as_string()),
                            " of the checkpoint and in ", detail::group_text(g, group.name), " of the run"));
      const auto found = saved.find(parameter_name);
      if (found == saved.end()) {
        wrong.push_back(cat("missing: ", parameter_name));
        continue;
      }
      try {
        check_parameter_state(parameter_name, group.params[i], found->second);
      } catch (const CheckpointError& error) {
        wrong.emplace_back(error.what());
      }
    }
  }
  for (const auto& [parameter_name, unused] : saved)
    if (!expected.contains(parameter_name)) wrong.push_back(cat("unexpected: ", parameter_name));
  if (!wrong.empty())
    throw CheckpointError(
        cat("[core.Optimizer.load_state] the optimizer state does not fit the parameters:\n  ", join(wrong, "\n  ")));

  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].lr = rates[g].lr;
    groups_[g].initial_lr = rates[g].initial_lr;
    for (size_t i = 0; i < groups_[g].params.size(); ++i)
      load_parameter_state(groups_[g].params[i], read_now(saved.at(groups_[g].names[i])));
  }
}

Tensor Optimizer::step_closure(const Closure&) {
  throw Error(cat("[core.Optimizer.step_closure] ", name(), " needs no closure; call step()."));
}

void Optimizer::set_momentum(double) {
  throw ConfigError(cat("[optim.", name(),
                        "] the optimizer has no momentum for a schedule to change. Set cycle_momentum: false in the "
                        "schedule, or use an optimizer with momentum."));
}

}  // namespace fulgur
