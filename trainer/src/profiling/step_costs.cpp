#include "profiling/step_costs.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace fulgur::detail {

namespace {

// The parts of a step whose work is on the device.
constexpr std::array<std::string_view, 6> kComputes = {
    "training_step",       "backward",     "configure_gradient_clipping", "optimizer_step",
    "optimizer_zero_grad", "captured_step"};

}  // namespace

StepCosts step_costs(const std::vector<SimpleProfiler::Row>& rows, int64_t steps, double seconds) {
  StepCosts costs;
  if (steps == 0) return costs;
  const auto mean = [&](double sum) { return sum / static_cast<double>(steps); };
  costs.steps = steps;
  costs.step_s = mean(seconds);
  for (const SimpleProfiler::Row& row : rows) {
    const double own_s = mean(row.own_s);
    if (row.action == "next_batch") {
      costs.data_s += own_s;
    } else if (row.action == "batch_to_device") {
      costs.transfer_s += own_s;
    } else if (row.action == "wait_for_device") {
      costs.device_wait_s += own_s;
    } else if (row.action == SimpleProfiler::kExchange) {
      costs.exchange_s += mean(row.device_s.value_or(row.host_s));
      costs.compute_s -= own_s;  // it is inside backward
    } else if (std::ranges::find(kComputes, row.action) != kComputes.end()) {
      costs.compute_s += own_s;
    } else if (row.action.find('.') != std::string::npos) {
      costs.callbacks_s += own_s;
      if (own_s > costs.slowest_hook_s) {
        costs.slowest_hook = row.action;
        costs.slowest_hook_s = own_s;
      }
    }
  }
  costs.compute_s = std::max(costs.compute_s, 0.0);
  return costs;
}

}  // namespace fulgur::detail
