#include "host_numbers.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "fulgur/core/text.h"

namespace fulgur::detail {
namespace {

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

std::string begin_of(const std::string& name) {
  return cat("'", escape_controls(name), "' in log() is a number of the host that ");
}

constexpr const char* kInstead =
    "; a captured step would log one value for ever. Log it in on_train_batch_end, which runs in every step, or as a "
    "tensor on the device";

}  // namespace

std::optional<std::string> changing_number(const HostNumbers& before, const HostNumbers& now) {
  const auto [a, b] =
      std::mismatch(before.begin(), before.end(), now.begin(), now.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && same_bits(x.second, y.second); });
  if (a == before.end() && b == now.end()) return std::nullopt;
  if (a != before.end() && b != now.end() && a->first == b->first)
    return cat(begin_of(a->first), "changes: it was ", a->second, ", and then ", b->second, kInstead);
  return cat(begin_of(b == now.end() ? a->first : b->first), "is logged in some steps only", kInstead);
}

std::optional<std::string> rate_among(const HostNumbers& numbers, const Optimizer& optimizer) {
  for (const auto& [name, value] : numbers)
    for (const ParamGroup& group : optimizer.groups())
      if (same_bits(value, group.lr))
        return cat(begin_of(name), "equals a learning rate, which a schedule moves", kInstead,
                   ". The callback LearningRateMonitor logs rates");
  return std::nullopt;
}

std::string text_of(const HostNumbers& numbers) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : numbers) parts.push_back(cat("'", escape_controls(name), "' ", value));
  return join(parts);
}

}  // namespace fulgur::detail
