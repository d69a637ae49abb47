#include "fulgur/callbacks/gradient_monitor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/state/clip.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "steps/late_numbers.h"

namespace fulgur {
namespace {

constexpr size_t kMostNamesShown = 5;

// `2.0`, as Python writes it.
std::string order_text(double order) {
  if (std::isinf(order)) return "inf";
  return order == std::floor(order) && std::abs(order) < 1e15 ? cat(static_cast<int64_t>(order), ".0")
                                                              : format_double(order);
}

std::string layer_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? parameter : parameter.substr(0, dot);
}

// The entries of a gradient. Those of a sparse one must be summed first.
Tensor dense_entries(const Tensor& gradient) {
  if (!gradient.is_sparse()) return gradient;
  const Tensor values = gradient.coalesce().values();
  return values.numel() > 0 ? values : at::zeros({1}, values.options());
}

// Numbers that are finite if and only if all entries are: the largest absolute values. On the CPU their kernel is 25
// times slower than that of the 2-norm, which is as good if it is finite.
std::vector<Tensor> largest_of(const std::vector<Tensor>& entries) {
  constexpr double kLargest = std::numeric_limits<double>::infinity();
  if (!std::all_of(entries.begin(), entries.end(), [](const Tensor& t) { return t.is_cpu(); }))
    return norms_of(entries, kLargest);
  std::vector<Tensor> norms = norms_of(entries, 2);
  for (size_t i = 0; i < norms.size(); ++i)
    if (!std::isfinite(norms[i].item<double>())) norms[i].copy_(norms_of({entries[i]}, kLargest).front());
  return norms;
}

std::vector<Tensor> clones(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  copies.reserve(tensors.size());
  for (const Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

std::string describe_counts(const std::map<std::string, int64_t>& counts) {
  std::vector<std::string> parts;
  for (const auto& [name, steps] : counts) {
    if (parts.size() == kMostNamesShown) {
      parts.push_back(cat("and ", counts.size() - kMostNamesShown, " more"));
      break;
    }
    parts.push_back(cat("'", escape_controls(name), "' in ", counted(steps, "step")));
  }
  return join(parts);
}

}  // namespace

void GradientMonitor::Options::fields(Fields& f) {
  f(every, "every", "Interval between two steps that are logged.");
  f(norms, "norms", "Norms of the whole network, or also of each layer or each parameter.");
  f(norm_type, "norm_type", "Order of the norms; .inf is the largest absolute value.").greater_than(0);
  f(weight_norms, "weight_norms", "Also log norms of the weights before the step.");
  f(update_ratios, "update_ratios", "Also log the norm of the step's change of the weights over that of the weights.");
  f(gradient_histograms, "gradient_histograms", "Send a histogram of each gradient to the loggers.");
  f(weight_histograms, "weight_histograms", "Send a histogram of each parameter to the loggers.");
  f(count_nonfinite, "count_nonfinite", "Look in each step for gradients that are NaN or infinite, and count them.");
  f(group_separator, "group_separator", "Text between the kind of a norm and the name of a layer or parameter.");
}

GradientMonitor::GradientMonitor(Options options)
    : options_(std::move(options)), trigger_(options_.every), late_(std::make_unique<detail::LateNumbers>()) {
  if (!(options_.norm_type > 0))
    throw ConfigError(cat("[callbacks.GradientMonitor] norm_type must be greater than 0; got ", options_.norm_type,
                          ". Use 2.0, 1.0 or .inf."));
}

GradientMonitor::~GradientMonitor() = default;

StateTree GradientMonitor::state() const {
  if (watched_.empty() && loaded_state_) {
    StateTree same = *loaded_state_;
    same["reached"] = trigger_.reached();
    return same;
  }
  StateTree::List counts;
  for (const Watched& of : watched_) {
    if (!of.counts.defined()) continue;
    StateTree::List names;
    for (const std::string& name : of.names) names.emplace_back(name);
    counts.push_back(StateTree::map({{"names", std::move(names)}, {"steps", of.counts}}));
  }
  StateTree loaded;
  for (const auto& [name, steps] : loaded_) loaded[name] = steps;
  return StateTree::map(
      {{"reached", trigger_.reached()}, {"nonfinite", std::move(counts)}, {"nonfinite_before", std::move(loaded)}});
}

void GradientMonitor::load_state(const StateTree& state) {
  const double reached = state.at("reached").as_double();
  std::map<std::string, int64_t> loaded;
  for (const auto& [name, steps] : state.at("nonfinite_before").as_map()) loaded[name] += steps.as_int();
  for (const StateTree& of : state.at("nonfinite").as_list()) {
    const StateTree::List& names = of.at("names").as_list();
    const Tensor steps = of.at("steps").tensor().to(at::kCPU, at::kLong).contiguous();
    if (steps.numel() != static_cast<int64_t>(names.size()))
      throw CheckpointError(cat("[callbacks.GradientMonitor] each parameter must have a count; the state has ",
                                names.size(), " names and ", steps.numel(), " counts. The file is damaged."));
    for (size_t i = 0; i < names.size(); ++i)
      if (const int64_t count = steps.const_data_ptr<int64_t>()[i]; count > 0) loaded[names[i].as_string()] += count;
  }
  resumed_at_ = reached;
  loaded_state_ = state;
  trigger_.set_reached(reached);
  loaded_before_ = std::exchange(loaded_, std::move(loaded));
  watched_before_ = std::exchange(watched_, {});
}

void GradientMonitor::setup(RunContext&, TrainerFn fn) {
  if (fn != TrainerFn::fit) return;
  watched_.clear();
  watched_before_.clear();
  loaded_.clear();
  loaded_before_.clear();
  resumed_at_.reset();
  loaded_state_.reset();
  decided_at_ = -1;
  warned_ = pending_ = has_logged_ = false;
}

void GradientMonitor::on_train_start(RunContext& run) {
  trigger_.start(run);
  if (resumed_at_) trigger_.set_reached(*resumed_at_);
  late_->clear();
  late_->set_device(run.device());
}

bool GradientMonitor::is_due(RunContext& run) {
  // With manual optimization, several optimizers may step in a batch.
  if (std::exchange(decided_at_, run.progress().batches_total.started) != decided_at_)
    due_ = trigger_.due_with_next_step(run);
  return due_;
}

void GradientMonitor::name_weights(RunContext& run, Watched& of) const {
  if (of.optimizer->gradients_are_shards())
    throw ConfigError(
        "[callbacks.GradientMonitor] it needs the whole gradient of each parameter, and the strategy divides them "
        "among "
        "the ranks. Use trainer.log_grad_norm: true in place of this callback, or with fsdp sharding: optimizer.");
  std::unordered_map<const void*, std::string> name_of;
  for (const auto& [name, value] : unique_parameters(run.module())) name_of[value.unsafeGetTensorImpl()] = name;
  std::vector<int64_t> counts;
  const auto before = [&](const std::string& name) {
    const auto found = loaded_.find(name);
    return found == loaded_.end() ? int64_t{0} : found->second;
  };
  for (const ParamGroup& group : of.optimizer->groups())
    for (size_t i = 0; i < group.params.size(); ++i) {
      ++of.parameters;
      const Tensor& weight = group.are_shards ? group.of_module()[i] : group.params[i];
      if (weight.numel() == 0) continue;
      const auto found = name_of.find(group.of_module()[i].unsafeGetTensorImpl());
      of.names.push_back(found == name_of.end() ? group.names.at(i) : found->second);
      of.weights.push_back(weight);
      counts.push_back(before(of.names.back()));
    }
  if (options_.count_nonfinite) of.counts = at::tensor(counts, at::TensorOptions(at::kLong)).to(run.device());
}

GradientMonitor::Watched& GradientMonitor::watched(RunContext& run, const Optimizer& optimizer) {
  size_t parameters = 0;
  for (const ParamGroup& group : optimizer.groups()) parameters += group.params.size();
  auto found =
      std::find_if(watched_.begin(), watched_.end(), [&](const Watched& w) { return w.optimizer == &optimizer; });
  if (found != watched_.end() && found->parameters == parameters) return *found;
  Watched fresh;
  fresh.optimizer = &optimizer;
  if (run.optimizer_plan().optimizers.size() > 1)
    fresh.total_suffix = cat(options_.group_separator, run.optimizer_index(optimizer));
  if (found != watched_.end()) {
    // Parameters have joined the optimizer.
    const Tensor counts = found->counts.defined() ? found->counts.cpu() : Tensor();
    for (size_t i = 0; counts.defined() && i < found->names.size(); ++i)
      loaded_[found->names[i]] = counts.const_data_ptr<int64_t>()[i];
    watched_.erase(found);
  }
  name_weights(run, fresh);
  if (options_.count_nonfinite)
    for (const std::string& name : fresh.names) loaded_.erase(name);
  return watched_.emplace_back(std::move(fresh));
}

void GradientMonitor::on_before_optimizer_step(RunContext& run, Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  const bool due = is_due(run);
  Watched& of = watched(run, optimizer);
  // An optimizer that evaluates its loss several times calls this hook again.
  if (std::exchange(of.at_batch, decided_at_) == decided_at_) return;
  if (options_.count_nonfinite) count(of);
  if (!due) return;
  pending_ = has_logged_ = true;
  step_before_ = run.progress().global_step;
  log_gradients(run, of);
  log_weights(run, of);
}

void GradientMonitor::count(Watched& of) const {
  std::vector<Tensor> entries;
  std::vector<size_t> places;
  for (size_t i = 0; i < of.weights.size(); ++i) {
    const Tensor& gradient = of.weights[i].grad();
    if (!gradient.defined()) continue;
    entries.push_back(dense_entries(gradient));
    places.push_back(i);
  }
  if (entries.empty()) return;
  const std::vector<Tensor> largest = largest_of(entries);
  std::vector<Tensor> all(of.weights.size(),
                          places.size() < of.weights.size() ? at::zeros({}, largest.front().options()) : Tensor());
  for (size_t i = 0; i < places.size(); ++i) all[places[i]] = largest[i];
  const Tensor bad = at::isfinite(at::stack(all)).logical_not();
  // A new tensor: a checkpoint may still be copying the old one.
  of.counts = of.counts + bad.to(of.counts.device(), at::kLong);
}

std::vector<std::pair<std::string, Tensor>> GradientMonitor::grouped(const std::vector<std::string>& names,
                                                                     const std::vector<Tensor>& norms) const {
  const auto joint = [&](const std::vector<Tensor>& parts) {
    return at::linalg_vector_norm(at::stack(parts), options_.norm_type);
  };
  std::vector<std::pair<std::string, Tensor>> all;
  if (options_.norms == NormDetail::parameter)
    for (size_t i = 0; i < names.size(); ++i) all.emplace_back(names[i], norms[i]);
  if (options_.norms == NormDetail::layer) {
    std::vector<std::pair<std::string, std::vector<Tensor>>> layers;
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string layer = layer_of(names[i]);
      const auto found = std::find_if(layers.begin(), layers.end(), [&](const auto& l) { return l.first == layer; });
      if (found == layers.end())
        layers.push_back({layer, {norms[i]}});
      else
        found->second.push_back(norms[i]);
    }
    for (const auto& [layer, parts] : layers) all.emplace_back(layer, joint(parts));
  }
  all.emplace_back("", joint(norms));
  return all;
}

void GradientMonitor::log_norms(RunContext& run, const std::string& prefix, const std::string& total_suffix,
                                const std::vector<std::string>& names, const std::vector<Tensor>& norms) const {
  if (norms.empty()) return;
  for (const auto& [name, norm] : grouped(names, norms))
    run.log(name.empty() ? cat(prefix, "_total", total_suffix) : cat(prefix, options_.group_separator, name), norm,
            {.reduce_fx = Reduce::last});
}

void GradientMonitor::log_gradients(RunContext& run, Watched& of) const {
  std::vector<std::string> names;
  std::vector<Tensor> entries;
  for (size_t i = 0; i < of.weights.size(); ++i) {
    const Tensor& gradient = of.weights[i].grad();
    if (!gradient.defined()) continue;
    names.push_back(of.names[i]);
    entries.push_back(dense_entries(gradient));
  }
  log_norms(run, cat("grad_", order_text(options_.norm_type), "_norm"), of.total_suffix, names,
            norms_of(entries, options_.norm_type));
  if (!options_.gradient_histograms || run.loggers().empty()) return;
  of.gradients.clear();
  for (const Tensor& weight : of.weights)
    of.gradients.push_back(weight.grad().defined() ? dense_entries(weight.grad()).detach().clone() : Tensor());
}

void GradientMonitor::log_weights(RunContext& run, Watched& of) const {
  if (options_.weight_norms || options_.update_ratios) {
    std::vector<Tensor> weights;
    for (const Tensor& weight : of.weights) weights.push_back(weight.detach());
    of.weight_norms = norms_of(weights, options_.norm_type);
  }
  if (options_.weight_norms)
    log_norms(run, cat("weight_", order_text(options_.norm_type), "_norm"), of.total_suffix, of.names, of.weight_norms);
  if (options_.update_ratios || (options_.weight_histograms && !run.loggers().empty())) of.before = clones(of.weights);
}

void GradientMonitor::log_updates(RunContext& run, Watched& of) const {
  std::vector<Tensor> changes;
  for (size_t i = 0; i < of.weights.size(); ++i) changes.push_back(of.weights[i].detach() - of.before[i]);
  const auto moved = grouped(of.names, norms_of(changes, options_.norm_type));
  const auto whole = grouped(of.names, of.weight_norms);
  for (size_t i = 0; i < moved.size(); ++i) {
    const auto& [name, change] = moved[i];
    // Weights that are 0 and stay so have not moved.
    const Tensor ratio = at::where(change.eq(0), change, change / whole[i].second);
    run.log(
        name.empty() ? cat("update_ratio_total", of.total_suffix) : cat("update_ratio", options_.group_separator, name),
        ratio, {.reduce_fx = Reduce::last});
  }
}

// Through the run, since a logger may have its own thread.
void GradientMonitor::send_histograms(RunContext& run, const Watched& of) const {
  const auto send = [&](const char* kind, const std::vector<Tensor>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values[i].defined()) continue;
      run.log_media(HistogramRecord{cat(kind, options_.group_separator, of.names[i]), values[i]});
    }
  };
  send("gradients", of.gradients);
  if (options_.weight_histograms) send("weights", of.before);
}

void GradientMonitor::end_step(RunContext& run) {
  if (!std::exchange(pending_, false)) return;
  const at::NoGradGuard no_grad;
  // A step that a rollback has discarded does not count, and has no change of the weights.
  const bool made = run.progress().global_step != step_before_;
  for (Watched& of : watched_) {
    if (made && of.at_batch == decided_at_) {
      if (options_.update_ratios && !of.before.empty()) log_updates(run, of);
      send_histograms(run, of);
    }
    of.before.clear();
    of.gradients.clear();
    of.weight_norms.clear();
  }
  if (!made || !options_.count_nonfinite || watched_.empty()) return;
  // Of all optimizers, also of those that made no step in this batch, or none since a resume.
  int64_t loaded = 0;
  for (const auto& [name, steps] : loaded_) loaded += steps;
  Tensor total = at::full({}, static_cast<double>(loaded), watched_.front().counts.options().dtype(at::kDouble));
  for (const Watched& of : watched_) total = total + of.counts.sum();
  run.log("nonfinite_gradients", total, {.reduce_fx = Reduce::last});
  late_->add(total, run.progress().global_step);
}

// Called after the step, also for a window that ends with the data. Before the step is counted, its closure may call
// it.
void GradientMonitor::on_before_zero_grad(RunContext& run, Optimizer&) {
  if (run.progress().global_step != step_before_) end_step(run);
}

void GradientMonitor::on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) {
  late_->end_batch();
  end_step(run);
  while (const auto number = late_->take()) warn_of(run, number->value);
}

// The names are read once, and only if there is something to report.
void GradientMonitor::warn_of(RunContext& run, const Tensor& number) {
  if (number.item<double>() == 0 || std::exchange(warned_, true)) return;
  const bool scales = run.meters().precision_name().starts_with("16");
  log::warn("gradient_monitor.nonfinite",
            cat("GradientMonitor: gradients are not finite: ", describe_counts(nonfinite_counts()), " (up to step ",
                run.progress().global_step, "). Further ones are counted",
                scales ? ". With a scaled loss a few are normal: the scale is found by them" : ""));
}

void GradientMonitor::on_train_epoch_end(RunContext& run) {
  while (const auto number = late_->take(/*waits=*/true)) warn_of(run, number->value);
}

void GradientMonitor::on_train_end(RunContext& run) {
  on_train_epoch_end(run);
  const auto counts = nonfinite_counts();
  if (!counts.empty()) run.print(cat("GradientMonitor: gradients were not finite: ", describe_counts(counts)));
  warn_of_nothing_logged(run);
}

void GradientMonitor::warn_of_nothing_logged(RunContext& run) const {
  const Progress& now = run.progress();
  if (has_logged_ || resumed_at_ || now.global_step == 0 || run.log_dir().empty()) return;
  if (filter().begins_after({.step = now.global_step, .epoch = now.epochs.started})) return;  // the run says so
  log::warn("gradient_monitor.nothing_logged",
            cat("GradientMonitor: no norms were logged in ", counted(now.global_step, "step"),
                ": its own `every: ", options_.every.text(), "` ",
                filter().is_set() ? cat("was due in no step in which it was called (", filter().text(), ")")
                                  : std::string("was never due"),
                ". Set a shorter one under init_args, such as every: 1st"));
}

void GradientMonitor::on_exception(RunContext&, const std::exception& error) {
  if (warned_ || !options_.count_nonfinite || dynamic_cast<const Interrupted*>(&error)) return;
  Counts counts;
  try {
    const bool undone = watched_.empty() && !watched_before_.empty();
    counts = undone ? counts_of(loaded_before_, watched_before_) : nonfinite_counts();
  } catch (const std::exception&) {
    return;  // the device may be what has failed
  }
  if (counts.empty()) return;
  warned_ = true;
  log::warn("gradient_monitor.nonfinite",
            cat("GradientMonitor: gradients were not finite before the run failed: ", describe_counts(counts)));
}

std::map<std::string, int64_t> GradientMonitor::nonfinite_counts() const { return counts_of(loaded_, watched_); }

GradientMonitor::Counts GradientMonitor::counts_of(const Counts& loaded, const std::vector<Watched>& watched) {
  Counts all;
  for (const auto& [name, steps] : loaded)
    if (steps > 0) all[name] = steps;
  for (const Watched& of : watched) {
    if (!of.counts.defined()) continue;
    const Tensor counts = of.counts.cpu();
    for (size_t i = 0; i < of.names.size(); ++i)
      if (const int64_t steps = counts.const_data_ptr<int64_t>()[i]; steps > 0) all[of.names[i]] += steps;
  }
  return all;
}

[[maybe_unused]] static const bool registered_gradient_monitor = Registry<Callback>::add<GradientMonitor>(
    "GradientMonitor", "Logs norms of gradients, weights and updates, and counts gradients that are not finite.");

}  // namespace fulgur
