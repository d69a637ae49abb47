#include "loops/monitor_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "fulgur/core/contracts/monitor.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "run/services.h"

namespace fulgur::detail {

namespace {

// Calls `look` with each metric whose absence ends the run at the end of the first epoch, and with who monitors it.
template <class Look>
void each_required(const RunState& run, Look look) {
  for (const auto& callback : run.callbacks) {
    const std::string key = callback->state_key();
    if (const auto monitor = callback->required_metric())
      look(cat("callbacks.", key.substr(0, key.find('{'))), *monitor);
  }
  for (const auto& planned : run.plan.optimizers) {
    if (run.step.manual || !planned.scheduler || !planned.scheduler->scheduler->wants_metric()) continue;
    // A schedule that steps less often than once per epoch may follow a metric that is logged equally rarely.
    if (planned.scheduler->strict && planned.scheduler->frequency == 1)
      look("lr_scheduler", planned.scheduler->monitor.value_or(""));
  }
}

}  // namespace

void refuse_misspelt_monitors(const RunState& run, const Services& services) {
  if (run.fast_dev_run() || run.components.is_trial) return;
  each_required(run, [&](const std::string& owner, const std::string& monitor) {
    if (misspells_validation_metric(monitor, services.context.logged_metrics().metric_names()))
      throw MonitorError(cat("[", owner, "] ", monitor_not_logged(monitor, services.context), " Name one of them."));
  });
}

MonitorCheck::MonitorCheck(const RunState& run, const Services& services) : run_(run), services_(services) {
  for (const auto& callback : run.callbacks) monitors_ |= !callback->monitored_metrics().empty();
  for (const auto& planned : run.plan.optimizers)
    monitors_ |= planned.scheduler && planned.scheduler->scheduler->wants_metric();
}

void MonitorCheck::after_batch() {
  if (done_ || (run_.validation.runs && !run_.validation.logged)) return;
  done_ = true;
  if (run_.fast_dev_run() || run_.options.barebones) return;
  std::vector<std::string> names = services_.logs.known_names();
  if (run_.validation.logged) names.insert(names.end(), run_.validation.logged->begin(), run_.validation.logged->end());
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::vector<std::string> missing;
  each_required(run_, [&](const std::string& owner, const std::string& monitor) {
    if (!std::ranges::binary_search(names, monitor) && !services_.metrics.may_log(monitor))
      missing.push_back(cat(owner, " monitors '", monitor, "'", did_you_mean(monitor, names)));
  });
  if (missing.empty()) return;
  log::warn("trainer.monitor_missing",
            cat(join(missing, "; "), "; ",
                run_.validation.logged ? "neither validation nor the first training batch has logged it"
                                       : "the first training batch has not logged it, and no validation runs",
                "; the logged metrics are: ", names.empty() ? "none" : join(names),
                ". Unless a hook logs it at the epoch's end, the run ",
                run_.validation.runs ? "will end then" : "may end then, or keep no best checkpoint"));
}

}  // namespace fulgur::detail
