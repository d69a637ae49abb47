#include "fulgur/core/contracts/batch_size_plan.h"

#include <algorithm>
#include <cmath>

namespace fulgur {
namespace {

int64_t divided_up(int64_t count, int64_t by) { return (count + by - 1) / by; }

// As Progress::epochs_done, with the same rounding.
double epochs_at(int64_t epoch, int64_t done, int64_t batches) {
  return static_cast<double>(epoch) + static_cast<double>(done) / static_cast<double>(batches);
}

}  // namespace

PlansBatchSizes::~PlansBatchSizes() = default;

// Rounding must not delay a change.
bool BatchSizePlan::has_reached(double position, size_t change) const {
  return position >= changes[change].at * (1 - 1e-12);
}

size_t BatchSizePlan::changes_until(double position) const {
  size_t reached = 0;
  while (reached < changes.size() && has_reached(position, reached)) ++reached;
  return reached;
}

int64_t BatchSizePlan::size_at(double position, int64_t own) const {
  const size_t reached = changes_until(position);
  return reached == 0 ? own : changes[reached - 1].batch_size;
}

int64_t BatchSizePlan::size_of_epoch(int64_t epochs, int64_t steps, int64_t own) const {
  return accumulates ? own : size_at(static_cast<double>(in_epochs ? epochs : steps), own);
}

std::vector<int64_t> BatchSizePlan::sizes(int64_t own) const {
  std::vector<int64_t> all{own};
  if (!accumulates)
    for (const Change& change : changes)
      if (std::ranges::find(all, change.batch_size) == all.end()) all.push_back(change.batch_size);
  return all;
}

int64_t BatchSizePlan::steps_of_epoch(int64_t epoch, int64_t steps_before, int64_t batches, int64_t own) const {
  int64_t steps = 0;
  for (int64_t done = 0; done < batches;) {
    const double position = in_epochs ? epochs_at(epoch, done, batches) : static_cast<double>(steps_before + steps);
    const size_t reached = changes_until(position);
    const int64_t factor = accumulation_at(position, own);
    int64_t windows = divided_up(batches - done, factor);
    // Up to the next change, windows are equally long.
    if (reached < changes.size()) {
      const auto is_next = [&](int64_t count) {
        return has_reached(in_epochs ? epochs_at(epoch, done + count * factor, batches)
                                     : static_cast<double>(steps_before + steps + count),
                           reached);
      };
      const double left = in_epochs
                              ? (changes[reached].at - static_cast<double>(epoch)) * static_cast<double>(batches) -
                                    static_cast<double>(done)
                              : changes[reached].at - position;
      const double guess = std::floor(left / static_cast<double>(in_epochs ? factor : 1)) - 1;
      auto count = static_cast<int64_t>(std::clamp(guess, 1.0, static_cast<double>(windows)));
      while (count < windows && !is_next(count)) ++count;
      windows = count;
    }
    steps += windows;
    done += windows * factor;
  }
  return steps;
}

int64_t BatchSizePlan::count_steps(int64_t epochs, int64_t own, int64_t accumulation, int64_t limit,
                                   const std::function<int64_t(int64_t)>& batches_of) const {
  int64_t steps = 0;
  for (int64_t epoch = 0; epoch < epochs && (limit < 0 || steps < limit); ++epoch) {
    const int64_t batches = batches_of(size_of_epoch(epoch, steps, own));
    const int64_t here = accumulates ? steps_of_epoch(epoch, steps, batches, own) : divided_up(batches, accumulation);
    if (here == 0) break;
    // All epochs that follow the last change are alike.
    if (changes_until(static_cast<double>(in_epochs ? epoch : steps)) == changes.size())
      return steps + here * (epochs - epoch);
    steps += here;
  }
  return steps;
}

}  // namespace fulgur
