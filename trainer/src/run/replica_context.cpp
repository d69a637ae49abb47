#include "run/replica_context.h"

#include "run/run.h"

namespace fulgur::detail {

void ReplicaContext::flush_to_run() {
  const double samples = run_.batch_samples_;
  for (const Logged& logged : logged_) {
    run_.batch_samples_ = logged.samples;
    std::visit([&](const auto& value) { run_.log(logged.name, value, logged.options); }, logged.value);
  }
  run_.batch_samples_ = samples;
  logged_.clear();
  if (stop_reason_) run_.request_stop(*std::exchange(stop_reason_, std::nullopt));
}

const Progress& ReplicaContext::progress() const { return run_.progress(); }
int64_t ReplicaContext::batch_idx() const { return run_.batch_idx(); }
TrainerFn ReplicaContext::fn() const { return run_.fn(); }
RunningStage ReplicaContext::stage() const { return run_.stage(); }
bool ReplicaContext::sanity_checking() const { return run_.sanity_checking(); }
bool ReplicaContext::fast_dev_run() const { return run_.fast_dev_run(); }
std::optional<int64_t> ReplicaContext::num_batches(RunningStage stage) const { return run_.num_batches(stage); }
int64_t ReplicaContext::num_loaders(RunningStage stage) const { return run_.num_loaders(stage); }
std::optional<int64_t> ReplicaContext::estimated_steps() const { return run_.estimated_steps(); }
std::optional<int64_t> ReplicaContext::max_epochs() const { return run_.max_epochs(); }
std::optional<int64_t> ReplicaContext::max_steps() const { return run_.max_steps(); }
std::optional<double> ReplicaContext::progress_fraction() const { return run_.progress_fraction(); }
void ReplicaContext::count_each_batch() { run_.count_each_batch(); }

void ReplicaContext::sync_gradients(Optimizer& optimizer) { run_.sync_gradients(optimizer); }

bool ReplicaContext::has_token_counts() const { return run_.has_token_counts(); }
bool ReplicaContext::has_validation() const { return run_.has_validation(); }
bool ReplicaContext::validates_each_epoch_end() const { return run_.validates_each_epoch_end(); }
std::vector<Optimizer*> ReplicaContext::optimizers() { return run_.optimizers(); }
std::vector<OptimizerHandle*> ReplicaContext::optimizer_handles() { return run_.optimizer_handles(); }
std::vector<LrScheduler*> ReplicaContext::lr_schedulers() { return run_.lr_schedulers(); }
const OptimizerPlan& ReplicaContext::optimizer_plan() const { return run_.optimizer_plan(); }

void ReplicaContext::manual_backward(const Tensor&, const BackwardOptions&) {
  throw Error(
      "[trainer.manual_backward] the module computes a part of a batch on one of several devices; backward is the "
      "Trainer's. Use ddp for manual optimization.");
}

std::optional<double> ReplicaContext::metric(std::string_view name) { return run_.logs.written(name); }
std::optional<RunningStage> ReplicaContext::metric_stage(std::string_view name) const {
  return run_.logs.stage_of(name);
}

std::vector<std::string> ReplicaContext::metric_names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : run_.logs.published()) names.push_back(name);
  return names;
}

void ReplicaContext::log(std::string_view name, const Tensor& value, const LogOptions& options) {
  // What is kept is a copy of the number, not the graph behind it: the tensor may be written to before the step ends.
  logged_.push_back({std::string(name), value.detach().clone(), options, static_cast<double>(samples_)});
}

void ReplicaContext::log(std::string_view name, double value, const LogOptions& options) {
  logged_.push_back({std::string(name), value, options, static_cast<double>(samples_)});
}

const ConfigNode& ReplicaContext::hparams() const { return run_.hparams(); }
const std::vector<std::shared_ptr<Logger>>& ReplicaContext::loggers() const { return run_.loggers(); }
std::filesystem::path ReplicaContext::log_dir() const { return run_.log_dir(); }
std::filesystem::path ReplicaContext::checkpoint_dir() const { return run_.checkpoint_dir(); }
std::optional<std::filesystem::path> ReplicaContext::last_checkpoint() const { return run_.last_checkpoint(); }
std::optional<std::filesystem::path> ReplicaContext::best_checkpoint() const { return run_.best_checkpoint(); }
double ReplicaContext::elapsed_s() const { return run_.elapsed_s(); }
double ReplicaContext::fit_time_s() const { return run_.fit_time_s(); }
bool ReplicaContext::is_logging_step() const { return run_.is_logging_step(); }
std::string ReplicaContext::precision_name() const { return run_.precision_name(); }
int64_t ReplicaContext::accumulation() const { return run_.accumulation(); }

void ReplicaContext::request_stop(std::string reason) {
  if (!stop_reason_) stop_reason_ = std::move(reason);
}

bool ReplicaContext::stop_requested() const { return stop_reason_ || run_.stop_requested(); }

}  // namespace fulgur::detail
