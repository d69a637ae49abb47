#include "fulgur/core/contracts/run_context.h"

#include <algorithm>

#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/contracts/step_judge.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

RunContext::~RunContext() = default;
RunExtent::~RunExtent() = default;
RunMeters::~RunMeters() = default;
PublishedCheckpoints::~PublishedCheckpoints() = default;
LoggedMetrics::~LoggedMetrics() = default;
RunWeights::~RunWeights() = default;

Tensor RunWeights::gather(const Tensor& parameter) { return parameter.detach().clone(); }

Tensor RunContext::gather(const Tensor& parameter) { return run_weights().gather(parameter); }

StateTree RunWeights::optimizer_state(const Optimizer& optimizer) { return optimizer.state(); }
ManualOptimization::~ManualOptimization() = default;
StepJudge::~StepJudge() = default;

void RunContext::judge_steps(StepJudge&) {
  throw Error("[core.RunContext.judge_steps] only the context of a fit has steps; this is another one.");
}

std::vector<Optimizer*> RunContext::optimizers() const {
  std::vector<Optimizer*> all;
  for (const PlannedOptimizer& planned : optimizer_plan().optimizers) all.push_back(planned.optimizer.get());
  return all;
}

std::vector<LrScheduler*> RunContext::lr_schedulers() const {
  std::vector<LrScheduler*> all;
  for (const PlannedOptimizer& planned : optimizer_plan().optimizers)
    if (planned.scheduler) all.push_back(planned.scheduler->scheduler.get());
  return all;
}

size_t RunContext::optimizer_index(const Optimizer& optimizer) const {
  const std::vector<Optimizer*> all = optimizers();
  const auto found = std::ranges::find(all, &optimizer);
  if (found == all.end())
    throw Error(cat("[core.RunContext.optimizer_index] this ", optimizer.name(), " is not one of the ", all.size(),
                    " optimizers of the run."));
  return static_cast<size_t>(found - all.begin());
}

void RunContext::log_dict(const std::vector<std::pair<std::string, Tensor>>& values, const LogOptions& options) {
  for (const auto& [name, value] : values) log(name, value, options);
}

void RunContext::log_dict(const Metrics& values, const LogOptions& options) {
  for (const auto& [name, value] : values) log(name, value, options);
}

}  // namespace fulgur
