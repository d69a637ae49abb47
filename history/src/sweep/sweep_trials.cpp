#include "fulgur/history/sweep_trials.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "reading/config_keys.h"
#include "sweep/points.h"

namespace fulgur::history {
namespace {

std::string quoted_text(const std::string& text) {
  // A JSON string is a quoted YAML scalar.
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Inside brackets, `,` and the like would end a plain scalar.
std::string flow_scalar(const ConfigNode& node) {
  if (node.is_null()) return "null";
  const std::string& text = node.text();
  const bool plain =
      !node.quoted() && !text.empty() && text.find_first_of(",[]{}#&*!|>'\"%@`:\\\n ") == std::string::npos;
  return plain ? text : quoted_text(text);
}

std::string flow_text(const ConfigNode& node) {
  std::vector<std::string> parts;
  if (node.is_list()) {
    for (const ConfigNode& item : node.items()) parts.push_back(flow_text(item));
    return cat("[", join(parts), "]");
  }
  if (node.is_map()) {
    for (const auto& [key, value] : node.entries()) parts.push_back(cat(quoted_text(key), ": ", flow_text(value)));
    return cat("{", join(parts), "}");
  }
  return flow_scalar(node);
}

bool chooses_class(const SweepAxis& axis) {
  return axis.key.ends_with("class_path") || axis.key.find('.') == std::string::npos;
}

std::vector<int64_t> rungs_of(const SweepHalving& halving, int64_t length) {
  const int64_t first = halving.min_epochs ? *halving.min_epochs : *halving.min_steps;
  const char* unit = halving.min_epochs ? "epochs" : "steps";
  if (first >= length)
    throw ConfigError(cat("[sweep.halving] min_", unit, " must be below trainer.max_", unit, "; got ", first, " and ",
                          length, ". Lower it, or remove halving."));
  std::vector<int64_t> rungs;
  for (int64_t rung = first; rung < length; rung *= halving.factor) {
    rungs.push_back(rung);
    if (rung > length / halving.factor) break;  // the next one is beyond the end, and may not fit into an integer
  }
  return rungs;
}

}  // namespace

std::string override_text(const ConfigNode& value) {
  if (value.is_null()) return "null";
  if (!value.is_scalar()) return flow_text(value);
  const std::string& text = value.text();
  // Other texts are taken literally.
  constexpr std::string_view kNulls[] = {"", "null", "~", "Null", "NULL"};
  const bool is_special =
      std::find(std::begin(kNulls), std::end(kNulls), text) != std::end(kNulls) || text.find_first_of("[{\"'") == 0;
  // Quoted, `"1"` is a text and not a number.
  return is_special || (value.quoted() && !reads_as_text(text)) ? quoted_text(text) : text;
}

std::string trial_folder(int64_t index) {
  const std::string digits = cat(index);
  return "trial_" + std::string(digits.size() < 4 ? 4 - digits.size() : 0, '0') + digits;
}

SweepPlan plan_sweep(SweepSpec spec, std::optional<int64_t> length) {
  SweepPlan plan{.spec = std::move(spec), .trials = {}, .rungs = {}};
  if (plan.spec.halving) {
    if (!length || *length < 1)
      throw ConfigError(
          cat("[sweep.halving] halving needs the length of the whole run; the config does not limit it. Set "
              "trainer.max_",
              plan.spec.halving->min_epochs ? "epochs" : "steps", "."));
    plan.rungs = rungs_of(*plan.spec.halving, *length);
  }
  std::vector<size_t> order(plan.spec.space.axes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_partition(order.begin(), order.end(), [&](size_t i) { return chooses_class(plan.spec.space.axes[i]); });
  std::vector<std::optional<uint64_t>> seeds(plan.spec.seeds.values.begin(), plan.spec.seeds.values.end());
  if (seeds.empty()) seeds.emplace_back();
  int64_t point = 0;
  for (const std::vector<ConfigNode>& values : points_of(plan.spec)) {
    for (const auto& seed : seeds)
      for (int64_t fold = 1; fold <= plan.spec.folds.value_or(1); ++fold) {
        SweepTrial trial{.index = static_cast<int64_t>(plan.trials.size()),
                         .point = point,
                         .seed = seed,
                         .fold = plan.spec.folds ? std::optional(fold) : std::nullopt,
                         .values = values,
                         .overrides = {}};
        for (const size_t i : order)
          trial.overrides.emplace_back(plan.spec.space.axes[i].key, override_text(values[i]));
        if (seed) trial.overrides.emplace_back("seed_everything", cat(*seed));
        if (trial.fold) trial.overrides.emplace_back("data.fold", cat(fold, "/", *plan.spec.folds));
        plan.trials.push_back(std::move(trial));
      }
    ++point;
  }
  return plan;
}

std::string trial_text(const SweepPlan& plan, const SweepTrial& trial) {
  std::vector<std::string> keys, parts;
  for (const SweepAxis& axis : plan.spec.space.axes) keys.push_back(axis.key);
  const std::vector<std::string> names = short_names(keys);
  for (size_t i = 0; i < names.size(); ++i) parts.push_back(cat(names[i], "=", override_text(trial.values[i])));
  if (trial.seed) parts.push_back(cat("seed=", *trial.seed));
  if (trial.fold) parts.push_back(cat("fold=", *trial.fold, "/", *plan.spec.folds));
  return escape_controls(join(parts, " "));
}

}  // namespace fulgur::history
