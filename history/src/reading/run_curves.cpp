#include "reading/run_curves.h"

#include <algorithm>
#include <cmath>

#include "reading/read_run.h"

namespace fulgur::history {

RunCurves read_curves(const std::filesystem::path& folder) {
  RunCurves out;
  double epoch = 0;
  int64_t step = 0;  // of the last row
  const auto each_row = [&](const Row& row) {
    for (const auto& [column, value] : row.cells) {
      if (out.curves.size() <= column) out.curves.resize(column + 1);
      out.curves[column].add(row.step, value);
    }
    // An epoch ends at its last row: metrics of the whole epoch are logged there.
    if (std::isfinite(row.epoch) && row.epoch > epoch) {
      out.epochs.add(step, row.epoch);
      epoch = row.epoch;
    }
    step = std::max(step, row.step);
  };
  out.run = read_run_rows(folder, each_row, Damage::throws);
  out.curves.resize(out.run.metrics.size());
  if (static_cast<double>(out.run.epochs) > epoch || out.epochs.empty())
    out.epochs.add(out.run.steps, static_cast<double>(std::max<int64_t>(out.run.epochs, 1)));
  for (const CheckpointEntry& entry : out.run.checkpoints)
    if (entry.fit_time_s) out.times.add(entry.step, *entry.fit_time_s);
  if (out.run.status == RunStatus::finished && out.run.duration_s) out.times.add(out.run.steps, *out.run.duration_s);
  return out;
}

}  // namespace fulgur::history
