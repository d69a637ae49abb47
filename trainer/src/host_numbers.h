#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/optimizer.h"

namespace fulgur::detail {

/// Numbers of the host that a step logged, in their order.
using HostNumbers = std::vector<std::pair<std::string, double>>;

/// Why a step that logged the one numbers and then the others cannot be captured, for people; nothing if they are the
/// same to the bit.
std::optional<std::string> changing_number(const HostNumbers& before, const HostNumbers& now);
/// The same for a number that is a learning rate of this optimizer now: a schedule moves it, if not in the first steps.
std::optional<std::string> rate_among(const HostNumbers& numbers, const Optimizer& optimizer);
/// `'alpha' 0.5, 'beta' 2`
std::string text_of(const HostNumbers& numbers);

}  // namespace fulgur::detail
