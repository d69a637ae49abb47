#include "fulgur/history/sweep_spec.h"

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "sweep/points.h"

namespace fulgur {

namespace {

/// Keys that the sweep sets itself, and why.
struct OwnKey {
  std::string_view key, why;
};
constexpr OwnKey kOwnKeys[] = {{"trainer.default_root_dir", "each trial has its own folder below --dir"},
                               {"trainer.stop_after", "a trial trains to its end, or to the rung of halving"},
                               {"ckpt_path", "an interrupted trial resumes from its own checkpoint"}};

bool is_whole(double value) { return std::isfinite(value) && value == std::floor(value); }

void check_range(const history::SweepRange& range, const Location& where, const std::string& path, Problems& problems) {
  const auto fail = [&](const std::string& message) { problems.add(where, path, message); };
  if (!std::isfinite(range.min) || !std::isfinite(range.max) || !(range.min < range.max))
    return fail(cat("min must be below max; got ", range.min, " and ", range.max));
  if (!std::isfinite(range.max - range.min)) return fail("the range is too wide");
  if (range.scale == history::RangeScale::log && range.min <= 0)
    fail(cat("min must be above 0 with scale: log; got ", range.min));
  if (range.scale == history::RangeScale::log && range.step)
    fail("step is for scale: linear. Remove one of the two, or list the values");
  if (range.step && !(*range.step > 0)) fail(cat("step must be above 0; got ", *range.step));
  if (!range.integer) return;
  if (!is_whole(range.min) || !is_whole(range.max) || (range.step && !is_whole(*range.step)))
    fail("with integer: true, min, max and step must be whole numbers");
  else if (std::max(std::abs(range.min), std::abs(range.max)) > 0x1p53)
    fail("whole numbers of a range must be between -2^53 and 2^53");
}

void check_values(const history::SweepAxis& axis, const std::string& path, Problems& problems) {
  if (axis.values.empty()) problems.add(axis.where, path, "a list needs at least one value");
  for (size_t i = 0; i < axis.values.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (axis.values[i].same_as(axis.values[j])) {
        problems.add(axis.values[i].where, path,
                     cat("a value may occur once; ", axis.values[i].describe(), " is twice"));
        return;
      }
}

}  // namespace

TypeInfo FieldTraits<history::SweepSpace>::type() {
  return {.kind = TypeInfo::Kind::map, .name = "map of lists and ranges", .parts = {TypeInfo{.name = "list or range"}}};
}

bool FieldTraits<history::SweepSpace>::read(const ConfigNode& node, history::SweepSpace& value, Problems& problems,
                                            const std::string& path) {
  if (!node.is_map()) {
    problems.add(node.where, path, "must map options of the config to lists or ranges; got " + node.describe());
    return false;
  }
  const size_t before = problems.items().size();
  history::SweepSpace space;
  for (const auto& [key, values] : node.entries()) {
    const std::string place = join_path(path, key);
    history::SweepAxis axis{key, {}, std::nullopt, values.key_where};
    for (const auto& [own, why] : kOwnKeys)
      if (key == own) problems.add(axis.where, place, cat("a sweep sets this option itself: ", why));
    if (values.is_map()) {
      history::SweepRange range;
      if (FieldTraits<history::SweepRange>::read(values, range, problems, place))
        check_range(range, axis.where, place, problems);
      axis.range = range;
    } else if (values.is_list()) {
      axis.values = values.items();
      check_values(axis, place, problems);
    } else {
      problems.add(values.where, place,
                   "takes a list of values, or a range {min: …, max: …}; got " + values.describe());
    }
    space.axes.push_back(std::move(axis));
  }
  if (problems.items().size() != before) return false;
  value = std::move(space);
  return true;
}

ConfigNode FieldTraits<history::SweepSpace>::write(const history::SweepSpace& value) {
  std::vector<ConfigNode::Entry> entries;
  for (const history::SweepAxis& axis : value.axes)
    entries.emplace_back(
        axis.key, axis.range ? FieldTraits<history::SweepRange>::write(*axis.range) : ConfigNode::list(axis.values));
  return ConfigNode::map(std::move(entries));
}

TypeInfo FieldTraits<history::SweepSeeds>::type() {
  TypeInfo count = FieldTraits<int64_t>::type();
  count.minimum = 1;
  return {.kind = TypeInfo::Kind::any_of,
          .name = "number of seeds, or list of seeds",
          .parts = {count, FieldTraits<std::vector<uint64_t>>::type()}};
}

bool FieldTraits<history::SweepSeeds>::read(const ConfigNode& node, history::SweepSeeds& value, Problems& problems,
                                            const std::string& path) {
  history::SweepSeeds seeds;
  if (node.is_list()) {
    if (!FieldTraits<std::vector<uint64_t>>::read(node, seeds.values, problems, path)) return false;
    for (size_t i = 0; i < seeds.values.size(); ++i)
      if (std::count(seeds.values.begin(), seeds.values.end(), seeds.values[i]) > 1) {
        problems.add(node.where, path, cat("a seed may occur once; ", seeds.values[i], " is twice"));
        return false;
      }
  } else {
    int64_t count = 0;
    if (!FieldTraits<int64_t>::read(node, count, problems, path)) return false;
    if (count > history::kMostTrials) {
      problems.add(node.where, path, cat("must be at most ", history::kMostTrials, "; got ", count));
      return false;
    }
    for (int64_t i = 1; i <= count; ++i) seeds.values.push_back(static_cast<uint64_t>(i));
  }
  if (seeds.values.empty()) {
    problems.add(node.where, path, "needs at least one seed");
    return false;
  }
  value = std::move(seeds);
  return true;
}

ConfigNode FieldTraits<history::SweepSeeds>::write(const history::SweepSeeds& value) {
  return FieldTraits<std::vector<uint64_t>>::write(value.values);
}

}  // namespace fulgur

namespace fulgur::history {

void SweepRange::fields(Fields& f) {
  f(min, "min", "Smallest value.").required();
  f(max, "max", "Largest value.").required();
  f(scale, "scale", "linear, or log: the logarithm of the value is uniform.");
  f(integer, "integer", "Whole numbers only.");
  f(step, "step", "Distance of the possible values, from min on.");
}

void SweepHalving::fields(Fields& f) {
  f(factor, "factor", "One of so many points continues from each rung, for so many times as long.").range(2, 1000);
  f(min_epochs, "min_epochs", "Epochs to the first rung.").at_least(1);
  f(min_steps, "min_steps", "Steps to the first rung.").at_least(1);
  f(promotion, "promotion", "sync: when all points have reached the rung; async: as soon as a point is good enough.");
}

void SweepSpec::fields(Fields& f) {
  f(method, "method", "grid: all combinations; random: some points.").required();
  f(trials, "trials", "Number of points of a random sweep.").range(1, static_cast<double>(kMostTrials));
  f(seed, "seed", "Seed of the random points.");
  f(metric, "metric", "Logged metric that is compared.").required();
  f(mode, "mode", "Whether small or large values are better.");
  f(value, "value", "Which logged value counts: the best or the last.");
  f(space, "space", "Options of the config with their values.").required();
  f(seeds, "seeds", "Seeds of each point: a list, or their number.");
  f(folds, "folds", "Folds of cross validation: each point is validated on each of them (data.fold).").range(2, 1000);
  f(halving, "halving", "Stops bad points early.");
}

namespace {

void check_method(const SweepSpec& spec, const ConfigNode& node, Problems& problems) {
  if (spec.method == SweepMethod::random) {
    if (!spec.trials) problems.add(node.where, "trials", "a random sweep needs the number of its points");
  } else {
    if (spec.trials)
      problems.add(node.find("trials")->key_where, "trials",
                   "a grid has all its points; remove it, or use method: random");
    for (const SweepAxis& axis : spec.space.axes)
      if (axis.range)
        problems.add(axis.where, join_path("space", axis.key),
                     "a grid takes lists; list the values, or use method: random");
  }
}

void check_keys(const SweepSpec& spec, Problems& problems) {
  for (const SweepAxis& axis : spec.space.axes) {
    const std::string place = join_path("space", axis.key);
    if (axis.key == "seed_everything" && !spec.seeds.values.empty())
      problems.add(axis.where, place, "seeds sets this option; remove one of the two");
    if (spec.folds && (axis.key == "data.fold" || axis.key == "data.init_args.fold"))
      problems.add(axis.where, place, "folds sets this option; remove one of the two");
    if (spec.halving && (axis.key == "trainer.max_epochs" || axis.key == "trainer.max_steps"))
      problems.add(axis.where, place, "with halving, all points have the same length");
  }
}

}  // namespace

SweepSpec read_sweep(const ConfigNode& node) {
  Problems problems;
  SweepSpec spec;
  Fields fields;
  spec.fields(fields);
  if (!node.is_map()) {
    problems.add(node.where, "",
                 "a sweep file is a map with keys such as method, metric, space; got " + node.describe());
    problems.throw_if_any();
  }
  fields.read(node, problems, "");
  problems.throw_if_any();
  if (spec.metric.empty()) problems.add(node.where, "metric", "names a logged metric; got an empty text");
  if (spec.space.axes.empty() && !spec.folds && spec.seeds.values.size() < 2)
    problems.add(node.where, "space", "needs at least one option, or seeds or folds beside it");
  if (spec.halving && spec.halving->min_epochs.has_value() == spec.halving->min_steps.has_value())
    problems.add(node.find("halving")->where, "halving", "needs one of min_epochs and min_steps");
  check_method(spec, node, problems);
  check_keys(spec, problems);
  problems.throw_if_any();
  const double most = static_cast<double>(possible_points(spec));
  const double seeds =
      static_cast<double>(std::max<size_t>(spec.seeds.values.size(), 1)) * static_cast<double>(spec.folds.value_or(1));
  if (spec.method == SweepMethod::random && static_cast<double>(*spec.trials) > most)
    problems.add(
        node.find("trials")->where, "trials",
        cat("points differ from each other, and the space has only ", possible_points(spec), "; got ", *spec.trials));
  const double points = spec.method == SweepMethod::grid ? most : static_cast<double>(*spec.trials);
  if (points * seeds > static_cast<double>(kMostTrials))
    problems.add(node.where, "space", cat("a sweep has at most ", kMostTrials, " trials; this one has more"));
  problems.throw_if_any();
  return spec;
}

}  // namespace fulgur::history
