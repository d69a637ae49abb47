#include "logging/host_numbers.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

std::string quoted(const std::string& name) { return cat("'", escape_controls(name), "'"); }

std::string begin_of(const std::string& name) { return cat(quoted(name), " in log() is a host number that "); }

std::string text_of(const std::optional<double>& value) { return value ? format_double(*value) : "not logged"; }

constexpr const char* kHow = "Log it in on_train_batch_end, which runs in every step, or as a tensor on the device";
std::string instead() { return cat("; a captured step would log the same value forever. ", kHow); }

}  // namespace

std::string NumberChange::why_not_captured() const {
  if (!before || !now) return cat(begin_of(name), "is logged in some steps only", instead());
  return cat(begin_of(name), "changes: it was ", *before, ", and then ", *now, instead());
}

std::string NumberChange::seen_late(int64_t captured_at, int64_t step) const {
  return cat(quoted(name), " in log() is a host number. It was ", text_of(before),
             " when the steps were captured, after step ", captured_at, ", and is ", text_of(now), " after step ", step,
             ". Captured steps in between logged the old value, even if it had changed by then. ", kHow,
             ". Training continues with eager steps");
}

std::optional<NumberChange> changing_number(const HostNumbers& before, const HostNumbers& now) {
  const auto [a, b] =
      std::mismatch(before.begin(), before.end(), now.begin(), now.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && same_bits(x.second, y.second); });
  if (a == before.end() && b == now.end()) return std::nullopt;
  if (a != before.end() && b != now.end() && a->first == b->first) return NumberChange{a->first, a->second, b->second};
  if (b == now.end()) return NumberChange{a->first, a->second, std::nullopt};
  return NumberChange{b->first, std::nullopt, b->second};
}

std::optional<std::string> rate_among(const HostNumbers& numbers, const Optimizer& optimizer) {
  for (const auto& [name, value] : numbers)
    for (const ParamGroup& group : optimizer.groups())
      if (same_bits(value, group.lr))
        return cat(begin_of(name), "equals a learning rate, which a schedule changes", instead(),
                   ". The callback LearningRateMonitor logs rates");
  return std::nullopt;
}

std::string text_of(const HostNumbers& numbers) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : numbers) parts.push_back(cat(quoted(name), " ", value));
  return join(parts);
}

}  // namespace fulgur::detail
