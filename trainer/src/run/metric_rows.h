#pragma once

#include <vector>

#include "logging/metric_store.h"
#include "run/run_state.h"

namespace fulgur::detail {

/// Where a row of metrics belongs.
struct RowPlace {
  int64_t step = 0, epoch = 0;
};

/// The place of a row that is written now.
RowPlace row_place(const RunState& run);

/// Sends a row to all loggers.
void send_metrics(RunState& run, Metrics metrics, RowPlace place);
/// Sends a record of media to all loggers.
void send_media(const RunState& run, const MediaRecord& record, RowPlace place);
/// Sends matrices to all loggers, each as a picture and a table. Waits for them.
void send_matrices(const RunState& run, const std::vector<MetricStore::Matrix>& matrices, RowPlace place);

}  // namespace fulgur::detail
