#include "loops/monitor_check.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/log.h"
#include "fulgur/core/text.h"
#include "loops/run.h"

namespace fulgur::detail {

void MonitorCheck::after_batch() {
  if (done_ || (run_.validation.runs && !run_.validation.logged)) return;
  done_ = true;
  if (run_.fast_dev_run() || run_.options.barebones) return;
  std::vector<std::string> names = run_.logs.known_names();
  if (run_.validation.logged) names.insert(names.end(), run_.validation.logged->begin(), run_.validation.logged->end());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::vector<std::string> missing;
  const auto look = [&](std::string_view owner, const std::string& monitor) {
    if (!std::binary_search(names.begin(), names.end(), monitor))
      missing.push_back(cat(owner, " monitors '", monitor, "'", did_you_mean(monitor, names)));
  };
  for (const auto& callback : run_.callbacks) {
    const std::string key = callback->state_key();
    if (const auto monitor = callback->required_metric()) look(key.substr(0, key.find('{')), *monitor);
  }
  for (const auto& planned : run_.plan.optimizers) {
    if (run_.step.manual || !planned.scheduler || !planned.scheduler->scheduler->wants_metric()) continue;
    if (planned.scheduler->strict && planned.scheduler->frequency == 1)
      look("the learning rate schedule", planned.scheduler->monitor.value_or(""));
  }
  if (missing.empty()) return;
  log::warn("trainer.monitor_missing",
            cat(join(missing, "; "), "; ",
                run_.validation.logged ? "neither validation nor the first training batch has logged it"
                                       : "the first training batch has not logged it, and no validation runs",
                "; there are: ", names.empty() ? "none" : join(names),
                ". Unless a hook logs it at the epoch's end, the run will end there"));
}

}  // namespace fulgur::detail
