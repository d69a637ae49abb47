#include "context/replica_context.h"

#include "fulgur/core/text/text.h"
#include "logging/log_store.h"
#include "logging/metric_store.h"
#include "run/run_state.h"

namespace fulgur::detail {

ReplicaContext::ReplicaContext(RunState& run, RunContext& context, const LogStore& logs, MetricStore& metrics,
                               at::Device device)
    : ForwardingRunContext(context), run_(run), context_(context), logs_(logs), metrics_(metrics), device_(device) {}

void ReplicaContext::flush_to_run() {
  const double samples = run_.position.batch_samples;
  for (const Logged& logged : logged_) {
    run_.position.batch_samples = logged.samples;
    if (Metric* const* metric = std::get_if<Metric*>(&logged.value))
      metrics_.take_from_replica(cat(logged.name, run_.loader_suffix(logged.options)), **metric, run_.position.stage);
    else if (const double* number = std::get_if<double>(&logged.value))
      context_.log(logged.name, *number, logged.options);
    else
      context_.log(logged.name, std::get<Tensor>(logged.value), logged.options);
  }
  run_.position.batch_samples = samples;
  logged_.clear();
  if (stop_reason_) run_.request_stop(*std::exchange(stop_reason_, std::nullopt));
}

void ReplicaContext::manual_backward(const Tensor&, const BackwardOptions&) {
  throw Error(
      "[trainer.manual_backward] the module computes a part of a batch on one of several devices; the Trainer runs "
      "backward. Use ddp for manual optimization.");
}

std::optional<double> ReplicaContext::metric(std::string_view name) { return logs_.written(name); }
std::optional<RunningStage> ReplicaContext::metric_stage(std::string_view name) const { return logs_.stage_of(name); }

std::vector<std::string> ReplicaContext::metric_names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : logs_.published()) names.push_back(name);
  return names;
}

void ReplicaContext::log(std::string_view name, const Tensor& value, const LogOptions& options) {
  // Keep a copy of the number, not its graph: the tensor may be written to before the step ends.
  logged_.push_back({std::string(name), value.detach().clone(), options, static_cast<double>(samples_)});
}

void ReplicaContext::log(std::string_view name, double value, const LogOptions& options) {
  logged_.push_back({std::string(name), value, options, static_cast<double>(samples_)});
}

void ReplicaContext::log(std::string_view name, Metric& metric, const LogOptions& options) {
  logged_.push_back({std::string(name), &metric, options, static_cast<double>(samples_)});
}

void ReplicaContext::request_stop(std::string reason) {
  if (!stop_reason_) stop_reason_ = std::move(reason);
}

bool ReplicaContext::stop_requested() const { return stop_reason_ || run_.stop_reason.has_value(); }

}  // namespace fulgur::detail
