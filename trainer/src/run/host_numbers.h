#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/optimizer.h"

namespace fulgur::detail {

/// Numbers of the host that a step logged, in their order.
using HostNumbers = std::vector<std::pair<std::string, double>>;

/// A number that two steps logged with different values, or that only one of them logged.
struct NumberChange {
  std::string name;
  std::optional<double> before, now;
  /// For people: the steps cannot be captured.
  std::string why_not_captured() const;
  /// For people: steps from `captured_at` on were captured, and the eager one after `step` steps has the other value.
  std::string seen_late(int64_t captured_at, int64_t step) const;
};

/// The first difference; nothing if the numbers are the same to the bit.
std::optional<NumberChange> changing_number(const HostNumbers& before, const HostNumbers& now);
/// Why the steps cannot be captured, for people, if one of the numbers is a learning rate of this optimizer now: a
/// schedule moves it, if not in the first steps.
std::optional<std::string> rate_among(const HostNumbers& numbers, const Optimizer& optimizer);
/// `'alpha' 0.5, 'beta' 2`
std::string text_of(const HostNumbers& numbers);

}  // namespace fulgur::detail
