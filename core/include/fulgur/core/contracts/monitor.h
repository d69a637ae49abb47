#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/contracts/run_context.h"
#include "fulgur/core/export.h"
#include "fulgur/core/text/errors.h"

namespace fulgur {

/// A fit needs a metric that nothing has logged. Throw it at the same place on all ranks, which know the same metrics:
/// the Trainer saves what was trained before it ends the run.
class FULGUR_API MonitorError : public ConfigError {
 public:
  explicit MonitorError(const std::string& message);
  ~MonitorError() override;
};

/// A complete sentence such as `monitor 'val_los' was not logged; the logged metrics are: val_loss; did you mean
/// 'val_loss'?`.
FULGUR_API std::string monitor_not_logged(std::string_view monitor, const std::vector<std::string>& names);
/// The same for the metrics of a fit, with the reason if there are no validation metrics.
FULGUR_API std::string monitor_not_logged(std::string_view monitor, const RunContext& run);

/// Whether `monitor` is a misspelling of one of the validation metrics `names` (all of them). Only in clear cases,
/// since a metric may come from training or be logged every few epochs: it starts with the same word as one of the
/// names (`val_`), and has one letter more or less, or two neighbours swapped. `val_acc` and `val_auc` are two metrics.
FULGUR_API bool misspells_validation_metric(std::string_view monitor, const std::vector<std::string>& names);

}  // namespace fulgur
