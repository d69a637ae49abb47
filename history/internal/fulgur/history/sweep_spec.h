#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/options/monitor_mode.h"
#include "fulgur/core/options/options.h"

/// What a sweep file says (docs/sweeps.md).
namespace fulgur::history {

enum class SweepMethod { grid, random };
constexpr auto enum_names(SweepMethod) {
  return std::to_array<EnumName<SweepMethod>>({{SweepMethod::grid, "grid"}, {SweepMethod::random, "random"}});
}

/// Which of the logged values of the metric counts.
enum class CountedValue { best, last };
constexpr auto enum_names(CountedValue) {
  return std::to_array<EnumName<CountedValue>>({{CountedValue::best, "best"}, {CountedValue::last, "last"}});
}

enum class RangeScale { linear, log };
constexpr auto enum_names(RangeScale) {
  return std::to_array<EnumName<RangeScale>>({{RangeScale::linear, "linear"}, {RangeScale::log, "log"}});
}

/// When a rung of halving is decided: when all its points have reached it, or whenever one has.
enum class Promotion { sync, async };
constexpr auto enum_names(Promotion) {
  return std::to_array<EnumName<Promotion>>({{Promotion::sync, "sync"}, {Promotion::async, "async"}});
}

/// Numbers from `min` to `max`, both included.
struct SweepRange {
  double min = 0, max = 0;
  RangeScale scale = RangeScale::linear;
  bool integer = false;
  std::optional<double> step;
  void fields(Fields& f);
};

/// An option of the config and its values: a list, or a range.
struct SweepAxis {
  std::string key;
  std::vector<ConfigNode> values;  ///< if there is no range
  std::optional<SweepRange> range;
  Location where;
};

struct SweepSpace {
  std::vector<SweepAxis> axes;  ///< in the order of the file
};

/// Values of `seed_everything`; empty: those of the config.
struct SweepSeeds {
  std::vector<uint64_t> values;
};

struct SweepHalving {
  int64_t factor = 3;
  std::optional<int64_t> min_epochs, min_steps;  ///< one of them
  Promotion promotion = Promotion::sync;
  void fields(Fields& f);
};

struct SweepSpec {
  SweepMethod method = SweepMethod::grid;
  std::optional<int64_t> trials;  ///< points of a random sweep
  uint64_t seed = 0;
  std::string metric;
  MonitorMode mode = MonitorMode::min;
  CountedValue value = CountedValue::best;
  SweepSpace space;
  SweepSeeds seeds;
  std::optional<int64_t> folds;  ///< of cross validation: values of `data.fold`
  std::optional<SweepHalving> halving;
  void fields(Fields& f);
};

/// Reads a sweep file's nodes. Throws a ConfigError that lists all mistakes with their places.
FULGUR_API SweepSpec read_sweep(const ConfigNode& node);

}  // namespace fulgur::history

namespace fulgur {

template <>
struct FieldTraits<history::SweepSpace> {
  static TypeInfo type();
  static bool read(const ConfigNode& node, history::SweepSpace& value, Problems& problems, const std::string& path);
  static ConfigNode write(const history::SweepSpace& value);
};

template <>
struct FieldTraits<history::SweepSeeds> {
  static TypeInfo type();
  static bool read(const ConfigNode& node, history::SweepSeeds& value, Problems& problems, const std::string& path);
  static ConfigNode write(const history::SweepSeeds& value);
};

}  // namespace fulgur
