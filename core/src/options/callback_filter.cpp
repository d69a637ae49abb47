#include "fulgur/core/options/callback_filter.h"

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "fulgur/core/options/options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

namespace {

int64_t number_at(const CallbackFilter::Position& position, const Interval& interval) {
  return interval.unit == Interval::Unit::epochs ? position.epoch : position.step;
}

int64_t count_of(const Interval& interval) { return std::llround(interval.value); }

std::array<std::pair<const char*, const std::optional<Interval>*>, 4> named_parts(const CallbackFilter& filter) {
  return {{{"every", &filter.every}, {"from", &filter.from}, {"until", &filter.until}, {"once", &filter.once}}};
}

}  // namespace

void CallbackFilter::fields(Fields& f) {
  f(every, "every", "Call the callback only in every Nth step or epoch of a fit: 100st, 2ep.").units({"st", "ep"});
  f(from, "from", "Call the callback from this step or epoch on: 2ep is the second epoch.").units({"st", "ep"});
  f(until, "until", "Call the callback up to this step or epoch, inclusive.").units({"st", "ep"});
  f(once, "once", "Call the callback only in this step or epoch.").units({"st", "ep"});
}

bool CallbackFilter::passes(const Position& position) const {
  if (every) {
    const int64_t number = number_at(position, *every);
    if (number == 0 || number % count_of(*every) != 0) return false;
  }
  return (!from || number_at(position, *from) >= count_of(*from)) &&
         (!until || number_at(position, *until) <= count_of(*until)) &&
         (!once || number_at(position, *once) == count_of(*once));
}

bool CallbackFilter::selects_steps() const {
  const auto in_steps = [](const std::optional<Interval>& value) {
    return value && value->unit == Interval::Unit::steps;
  };
  return in_steps(every) || in_steps(once);
}

bool CallbackFilter::begins_after(const Position& last) const {
  const auto is_beyond = [&](const std::optional<Interval>& value) {
    return value && number_at(last, *value) < count_of(*value);
  };
  return is_beyond(every) || is_beyond(from) || is_beyond(once);
}

std::string CallbackFilter::text() const {
  std::vector<std::string> parts;
  for (const auto& [name, interval] : named_parts(*this))
    if (*interval) parts.push_back(cat(name, ": ", (*interval)->text()));
  return join(parts);
}

void CallbackFilter::check() const {
  for (const auto& [name, interval] : named_parts(*this)) {
    if (!*interval) continue;
    const Interval& value = **interval;
    const bool unit = value.unit == Interval::Unit::steps || value.unit == Interval::Unit::epochs;
    if (!unit || value.value < 1 || value.value != std::floor(value.value))
      throw ConfigError(cat("[callback.filter] `", name, "` is a whole number of steps or epochs from 1 on; got ",
                            value.text(), ". Write it as 100st or 2ep."));
  }
  if (from && until && from->unit == until->unit && from->value > until->value)
    throw ConfigError(cat("[callback.filter] `from: ", from->text(), "` is after `until: ", until->text(),
                          "`, so the callback would never be called. Exchange them."));
}

}  // namespace fulgur
