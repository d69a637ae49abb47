#include "fulgur/callbacks/finetuning.h"

#include <algorithm>
#include <unordered_map>

#include "fulgur/core/contracts/interval_trigger.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/matches_pattern.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

ConfigError wrong_finetuning(const std::string& what) { return ConfigError(cat("[callbacks.Finetuning] ", what)); }

[[noreturn]] void no_match(const char* option, const std::string& pattern, const std::vector<std::string>& names) {
  std::string plain = pattern;
  std::erase(plain, '*');
  const std::vector<std::string> near = nearest_names(plain, names);
  const bool freezes = std::string_view(option) == "freeze";
  constexpr size_t kShown = 8;
  throw wrong_finetuning(cat(option, freezes ? " must match a parameter" : " must match a frozen parameter",
                             "; the pattern '", escape_controls(pattern), "' matches none. ",
                             !near.empty() ? cat("Similar names are ", join(near))
                             : names.empty()
                                 ? std::string("No parameter is frozen")
                                 : cat(freezes ? "The parameters are " : "Frozen are ", join_some(names, kShown)),
                             "."));
}

double position_of(const Unfreezing& entry, RunContext& run) {
  if (const auto position = position_in(entry.at.unit, run)) return *position;
  throw wrong_finetuning(cat("at must be a position that the run can measure; got ", entry.at.text(),
                             entry.at.unit == Interval::Unit::tokens
                                 ? ", but the module does not count tokens. Override num_tokens(batch)."
                                 : ", but the length of the run is not known. Set max_steps, or max_epochs with a "
                                   "loader of known length."));
}

// A group belongs to an entry if it has one of its parameters.
template <class Use>
void each_group_of(const std::string& pattern, RunContext& run, Use use) {
  for (Optimizer* optimizer : run.optimizers())
    for (ParamGroup& group : optimizer->groups())
      if (std::any_of(group.names.begin(), group.names.end(),
                      [&](const std::string& name) { return matches_pattern(pattern, name); }))
        use(*optimizer, group);
}

// Whether the rates of `schedule` follow those of the parameter groups, at all its first steps.
bool follows_groups(const LrScheduler& schedule) {
  if (const auto parts = schedule.parts(); !parts.empty())
    return std::all_of(parts.begin(), parts.end(), [](const auto& part) { return follows_groups(*part); });
  if (schedule.wants_metric()) return true;
  bool has_rate = false;
  // A warm-up may begin at 0.
  for (int64_t step = 0; step < 4; ++step) {
    const double one = schedule.lr_at(step, 1), two = schedule.lr_at(step, 2);
    if (one != two) return true;
    has_rate |= one != 0;
  }
  return !has_rate;
}

void check_schedule(const Unfreezing& entry, const Optimizer& optimizer, RunContext& run) {
  for (const PlannedOptimizer& planned : run.optimizer_plan().optimizers) {
    if (planned.optimizer.get() != &optimizer || !planned.scheduler) continue;
    if (!follows_groups(*planned.scheduler->scheduler))
      throw wrong_finetuning(cat("lr needs a schedule that multiplies the rates of parameter groups; the schedule of ",
                                 optimizer.name(), " sets them itself (as OneCycleLR and CyclicLR do), so the lr of '",
                                 escape_controls(entry.pattern),
                                 "' would last for one step. Remove lr, or use another schedule."));
  }
}

}  // namespace

void Unfreezing::fields(Fields& f) {
  f(pattern, "pattern",
    "Pattern of parameter names: * matches any characters, ? one character, [ab] one of the characters listed.")
      .required();
  f(at, "at", "Position from which these parameters are trained.").units({"ep", "st", "sa", "tok", "dur"}).required();
  f(lr, "lr", "Learning rate of their parameter groups from then on; null: the optimizer's and the schedule's.")
      .greater_than(0);
}

void Finetuning::Options::fields(Fields& f) {
  f(freeze, "freeze", "Patterns of the parameters that are frozen at the start of the fit.").required();
  f(unfreeze, "unfreeze", "Which of them are trained from which position on.");
  f(train_bn, "train_bn", "Train batch norms, with their statistics, although they match freeze.");
}

Finetuning::Finetuning(Options options) : options_(std::move(options)), done_(options_.unfreeze.size()) {
  if (options_.freeze.empty()) throw wrong_finetuning("freeze must not be empty. Write for example [\"backbone.*\"].");
  for (const Unfreezing& entry : options_.unfreeze)
    if (entry.at.unit == Interval::Unit::seconds)
      throw wrong_finetuning(cat("at must be a position in ep, st, sa, tok or dur; got ", entry.at.text(), " for '",
                                 escape_controls(entry.pattern), "'."));
}

StateTree Finetuning::state() const {
  StateTree::List done;
  for (const bool one : done_) done.emplace_back(one);
  StateTree::List order;
  for (const size_t entry : order_) order.emplace_back(static_cast<int64_t>(entry));
  return StateTree::map({{"done", std::move(done)}, {"order", std::move(order)}, {"window_step", window_step_}});
}

void Finetuning::load_state(const StateTree& state) {
  const StateTree::List& done = state.at("done").as_list();
  if (done.size() != done_.size())
    throw CheckpointError(
        cat("[callbacks.Finetuning] a fit must resume with the same entries in unfreeze; the checkpoint "
            "has ",
            done.size(), ", the options have ", done_.size(), "."));
  std::vector<bool> values;
  for (const StateTree& one : done) values.push_back(one.as_bool());
  std::vector<size_t> order;
  for (const StateTree& entry : state.at("order").as_list()) {
    const int64_t place = entry.as_int();
    if (place < 0 || place >= static_cast<int64_t>(done_.size()))
      throw CheckpointError(cat("[callbacks.Finetuning] an entry that has taken effect must be one of the ",
                                done_.size(), " in unfreeze; the state has number ", place, ". The file is damaged."));
    order.push_back(static_cast<size_t>(place));
  }
  window_step_ = state.at("window_step").as_int();
  done_ = std::move(values);
  order_ = std::move(order);
  loaded_ = true;
}

void Finetuning::roll_back(RunContext& run, const StateTree&) { set_rates(run); }

void Finetuning::setup(RunContext&, TrainerFn) {
  frozen_.clear();
  norms_.clear();
  done_.assign(options_.unfreeze.size(), false);
  order_.clear();
  window_step_ = -1;
  loaded_ = false;
}

void Finetuning::teardown(RunContext&, TrainerFn) {
  for (Frozen& item : frozen_)
    if (item.frozen) item.parameter.set_requires_grad(true);
  for (FrozenNorm& norm : norms_)
    if (norm.frozen) norm.layer->train();
  frozen_.clear();
  norms_.clear();
}

bool Finetuning::matches_any(const std::string& name) const {
  return std::any_of(options_.freeze.begin(), options_.freeze.end(),
                     [&](const std::string& pattern) { return matches_pattern(pattern, name); });
}

void Finetuning::find(RunContext& run) {
  std::vector<std::string> with_statistics;  // prefixes of layers, with a dot
  for (const auto& item : run.module().named_modules("", /*include_self=*/false)) {
    const auto buffers = item.value()->named_buffers(/*recurse=*/false);
    const Tensor* const mean = buffers.find("running_mean");
    if (!mean || !mean->defined()) continue;
    with_statistics.push_back(item.key() + ".");
    const std::string name = item.key() + ".running_mean";
    if (!options_.train_bn && item.value()->is_training() && matches_any(name)) norms_.push_back({name, item.value()});
  }
  const auto is_kept = [&](const std::string& name) {
    return options_.train_bn && std::any_of(with_statistics.begin(), with_statistics.end(),
                                            [&](const std::string& layer) { return name.starts_with(layer); });
  };
  for (const auto& [name, value] : unique_parameters(run.module()))
    if (value.requires_grad() && matches_any(name) && !is_kept(name)) frozen_.push_back({name, value});
}

void Finetuning::check(RunContext& run) const {
  std::vector<std::string> names;
  for (const auto& [name, value] : unique_parameters(run.module())) names.push_back(name);
  const auto check_pattern = [&](const char* option, const std::string& pattern, const std::vector<std::string>& all) {
    if (std::none_of(all.begin(), all.end(), [&](const std::string& name) { return matches_pattern(pattern, name); }))
      no_match(option, pattern, all);
  };
  for (const std::string& pattern : options_.freeze) check_pattern("freeze", pattern, names);
  std::vector<std::string> frozen_names;
  for (const Frozen& item : frozen_) frozen_names.push_back(item.name);
  for (const Unfreezing& entry : options_.unfreeze) {
    position_of(entry, run);
    check_pattern("unfreeze", entry.pattern, frozen_names);
    for (const std::string& name : frozen_names) {
      if (!matches_pattern(entry.pattern, name)) continue;
      bool has = false;
      each_group_of(entry.pattern, run, [&](Optimizer&, ParamGroup& group) {
        has |= std::find(group.names.begin(), group.names.end(), name) != group.names.end();
      });
      if (!has)
        throw wrong_finetuning(cat("an optimizer must have the parameters that are unfrozen; none has '", name,
                                   "'. Add it in configure_optimizers()."));
    }
    if (!entry.lr) continue;
    each_group_of(entry.pattern, run, [&](Optimizer& optimizer, ParamGroup& group) {
      check_schedule(entry, optimizer, run);
      for (const std::string& name : group.names)
        if (!matches_pattern(entry.pattern, name))
          throw wrong_finetuning(cat("lr needs parameter groups with only the parameters of '",
                                     escape_controls(entry.pattern), "'; a group of ", optimizer.name(), " also has '",
                                     name, "'. Give them their own group: optimizer.groups: [{pattern: \"",
                                     escape_controls(entry.pattern), "\"}]."));
    });
  }
}

void Finetuning::on_train_start(RunContext& run) {
  if (run.world_size() > 1 && !run.module().automatic_optimization())
    throw wrong_finetuning(
        "with several ranks it needs automatic optimization; the module uses manual optimization. Freeze parameters in "
        "the module, before configure_optimizers().");
  for (const Unfreezing& entry : options_.unfreeze)
    if (entry.at.unit == Interval::Unit::samples || entry.at.unit == Interval::Unit::tokens)
      run.meters().count_each_batch();
  find(run);
  check(run);
  for (Frozen& item : frozen_) item.parameter.set_requires_grad(false);
  for (size_t i = 0; i < done_.size(); ++i)
    if (done_[i]) unfreeze(options_.unfreeze[i].pattern);
  // The run may have scaled the rates of the checkpoint, or have replaced them by those of the config.
  set_rates(run);
  if (!loaded_) unfreeze_what_is_due(run);
  refuse_to_freeze_all(run);
}

// Without a parameter to train, the loss has no graph.
void Finetuning::refuse_to_freeze_all(RunContext& run) const {
  const auto parameters = unique_parameters(run.module());
  if (std::any_of(parameters.begin(), parameters.end(),
                  [](const auto& parameter) { return parameter.value.requires_grad(); }))
    return;
  throw wrong_finetuning(
      cat("freeze must leave a parameter to train; no parameter requires a gradient, since it "
          "freezes ",
          frozen().size(), " of ", parameters.size(),
          ". Leave out the patterns of those to train, such as the last layer's, or unfreeze them "
          "at 0ep."));
}

void Finetuning::on_train_end(RunContext& run) {
  if (run.progress().global_step == 0 || run.log_dir().empty()) return;
  std::vector<std::string> late;
  for (size_t i = 0; i < done_.size(); ++i)
    if (!done_[i])
      late.push_back(cat("'", escape_controls(options_.unfreeze[i].pattern), "' at ", options_.unfreeze[i].at.text()));
  if (!late.empty())
    log::warn("finetuning.not_unfrozen",
              cat("Finetuning: the fit has ended after ", counted(run.progress().global_step, "step"), " in ",
                  counted(run.progress().epochs.completed, "epoch"), ", before it unfroze ", join(late),
                  ". Those parameters were not trained"));
}

void Finetuning::unfreeze(const std::string& pattern) {
  for (Frozen& item : frozen_) {
    if (!item.frozen || !matches_pattern(pattern, item.name)) continue;
    item.frozen = false;
    item.parameter.set_requires_grad(true);
  }
  for (FrozenNorm& norm : norms_) {
    if (!norm.frozen || !matches_pattern(pattern, norm.name)) continue;
    norm.frozen = false;
    norm.layer->train();
  }
}

// The schedule's factor at this point is kept.
void Finetuning::set_rates(RunContext& run) const {
  std::unordered_map<ParamGroup*, double> rates;
  for (const size_t i : order_)
    if (const Unfreezing& entry = options_.unfreeze[i]; entry.lr)
      each_group_of(entry.pattern, run, [&](Optimizer&, ParamGroup& group) { rates[&group] = *entry.lr; });
  for (const auto& [group, rate] : rates) {
    // A rate that is in place keeps its bits.
    if (group->initial_lr == rate) continue;
    const double factor = group->initial_lr > 0 ? group->lr / group->initial_lr : 1;
    group->initial_lr = rate;
    group->lr = rate * factor;
  }
}

void Finetuning::unfreeze_what_is_due(RunContext& run) {
  bool changed = false;
  for (size_t i = 0; i < done_.size(); ++i) {
    const Unfreezing& entry = options_.unfreeze[i];
    // Rounding must not delay a change.
    if (done_[i] || position_of(entry, run) < entry.at.value * (1 - 1e-12)) continue;
    done_[i] = true;
    order_.push_back(i);
    unfreeze(entry.pattern);
    changed = true;
  }
  if (changed) set_rates(run);
}

void Finetuning::on_train_epoch_start(RunContext& run) {
  window_step_ = run.progress().global_step;
  unfreeze_what_is_due(run);
}

void Finetuning::on_train_batch_start(RunContext& run, const Batch&, int64_t) {
  // Inside a window, some of its batches would have no gradients for what is unfrozen.
  if (const int64_t step = run.progress().global_step; step != window_step_) {
    window_step_ = step;
    unfreeze_what_is_due(run);
  }
  hold_modes();
}

// Something else, such as a module that calls train(), may have changed them.
void Finetuning::hold_modes() {
  for (FrozenNorm& norm : norms_)
    if (norm.frozen && norm.layer->is_training()) norm.layer->eval();
}

std::vector<std::string> Finetuning::frozen() const {
  std::vector<std::string> names;
  for (const Frozen& item : frozen_)
    if (item.frozen) names.push_back(item.name);
  return names;
}

[[maybe_unused]] static const bool registered_finetuning = Registry<Callback>::add<Finetuning>(
    "Finetuning", "Freezes parameters by name, and unfreezes them at positions of the fit.");

}  // namespace fulgur
