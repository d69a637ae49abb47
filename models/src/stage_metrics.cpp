#include "fulgur/models/stage_metrics.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

// FBeta: f_beta; IoU: iou.
std::string snake_case(std::string_view name) {
  const auto is_upper = [&](size_t i) { return name[i] >= 'A' && name[i] <= 'Z'; };
  std::string text;
  for (size_t i = 0; i < name.size(); ++i) {
    if (i > 0 && i + 1 < name.size() && is_upper(i) && !is_upper(i + 1)) text += '_';
    text += is_upper(i) ? static_cast<char>(name[i] - 'A' + 'a') : name[i];
  }
  return text;
}

// `Precision (metrics.4, run.yaml:12:7)`
std::string place_of_metric(const Spec<PredictionMetric>& spec, size_t index) {
  const std::string where = spec.where.text();
  return cat(spec.class_path(), " (metrics.", index, where.empty() ? "" : ", ", where, ")");
}

// What a metric says, without the part of the code that says it.
std::string_view without_origin(std::string_view message) {
  const size_t end = message.starts_with('[') ? message.find("] ") : std::string_view::npos;
  return end == std::string_view::npos ? message : message.substr(end + 2);
}

// An option of a component as text; null if the component does not have it.
const ConfigNode* option_of(const ConfigNode& written, std::string_view name) {
  const ConfigNode* const options = written.find("init_args");
  return options ? options->find(name) : nullptr;
}

void change_option(Spec<PredictionMetric>& spec, std::string_view name, int64_t value) {
  ConfigNode change = spec.write();
  change.get_or_add("init_args").set(name, ConfigNode::integer(value));
  const Location where = spec.where;
  Problems problems;
  spec.read(change, problems, "metrics");
  problems.throw_if_any();
  spec.where = where;
}

}  // namespace

std::string StageMetrics::text(const std::string& place, std::string_view message) const {
  return cat("[models.", owner_.component, "] ", place, ": ", without_origin(message));
}

void StageMetrics::use(std::vector<Spec<PredictionMetric>> metrics, int64_t num_classes, Owner owner) {
  owner_ = std::move(owner);
  specs_ = std::move(metrics);
  for (size_t i = 0; i < specs_.size(); ++i) {
    Spec<PredictionMetric>& spec = specs_[i];
    const ConfigNode written = spec.write();
    const std::string place = place_of_metric(spec, i);
    if (const ConfigNode* const classes = option_of(written, "num_classes")) {
      const ConfigNode* const task = option_of(written, "task");
      if (task && task->text() != "multiclass")
        throw ConfigError(text(place, cat("the model predicts one of several classes, so task is multiclass; got ",
                                          task->text(), ". Leave task out.")));
      if (classes->text() == "0")
        change_option(spec, "num_classes", num_classes);
      else if (task && classes->text() != std::to_string(num_classes))
        throw ConfigError(text(place, cat("num_classes must be that of the model, ", num_classes, "; got ",
                                          classes->text(), ". Leave num_classes out.")));
    }
    const ConfigNode* const ignored = option_of(written, "ignore_index");
    if (owner_.ignore_index && ignored && ignored->is_null()) change_option(spec, "ignore_index", *owner_.ignore_index);
  }
  make();
}

StageMetrics::Named StageMetrics::make() const {
  Named made;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const std::string place = place_of_metric(specs_[i], i);
    std::shared_ptr<PredictionMetric> metric;
    try {
      metric = specs_[i].create();
    } catch (const ConfigError& error) {
      throw ConfigError(text(place, error.what()));
    }
    const std::string name = metric->given_name().value_or(snake_case(specs_[i].class_path()));
    if (std::find(owner_.logs.begin(), owner_.logs.end(), name) != owner_.logs.end())
      throw ConfigError(text(place, cat("the model itself logs val_", name,
                                        ". Give the metric another name, beside class_path: name: my_", name, ".")));
    const auto [same, is_new] = made.try_emplace(name, Made{std::move(metric), place});
    if (!is_new)
      throw ConfigError(cat("[models.", owner_.component, "] two metrics are logged as val_", name, ": ",
                            same->second.place, " and ", place,
                            ". Give one of them a name, beside class_path: name: ", name, "_2."));
  }
  return made;
}

void StageMetrics::update(LightningModule& module, const std::string& stage, int64_t loader_idx,
                          const Tensor& prediction, const Tensor& target) {
  if (specs_.empty()) return;
  const auto [metrics, is_new] = of_loader_.try_emplace({stage, loader_idx});
  if (is_new) metrics->second = make();
  for (const auto& [name, made] : metrics->second) {
    try {
      made.metric->update(prediction, target);
    } catch (const Error& error) {
      throw Error(cat(text(made.place, error.what()), " ", owner_.compared,
                      " Correct the options of the metric, or remove it from metrics."),
                  error.code());
    }
    module.log(cat(stage, "_", name), *made.metric);
  }
}

}  // namespace fulgur
