#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/optimizer.h"

namespace fulgur::detail {

/// Host numbers logged by a step, in order.
using HostNumbers = std::vector<std::pair<std::string, double>>;

/// A number that two steps logged with different values, or that only one of them logged.
struct NumberChange {
  std::string name;
  std::optional<double> before, now;
  /// The reason why the steps cannot be captured, for display.
  std::string why_not_captured() const;
  /// A warning, for display: steps from `captured_at` on were captured, and the eager step after `step` steps logged a
  /// different value.
  std::string seen_late(int64_t captured_at, int64_t step) const;
};

/// The first difference; nullopt if the numbers are bit-identical.
std::optional<NumberChange> changing_number(const HostNumbers& before, const HostNumbers& now);
/// Why the steps cannot be captured, for display, if one of the numbers equals a current learning rate of this
/// optimizer: a schedule will change it, even if not in the first steps.
std::optional<std::string> rate_among(const HostNumbers& numbers, const Optimizer& optimizer);
/// `'alpha' 0.5, 'beta' 2`
std::string text_of(const HostNumbers& numbers);

}  // namespace fulgur::detail
