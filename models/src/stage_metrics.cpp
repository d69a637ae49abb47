#include "fulgur/models/stage_metrics.h"

#include <string_view>

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

// Whether the options have this one, with this value.
bool is_set_to(const ConfigNode& written, std::string_view option, std::string_view value) {
  const ConfigNode* const options = written.find("init_args");
  const ConfigNode* const found = options ? options->find(option) : nullptr;
  return found && (value == "null" ? found->is_null() : found->is_scalar() && found->text() == value);
}

}  // namespace

void StageMetrics::use(std::vector<Spec<PredictionMetric>> metrics, int64_t num_classes, const char* component,
                       std::optional<int64_t> ignore_index) {
  component_ = component;
  specs_ = std::move(metrics);
  for (Spec<PredictionMetric>& spec : specs_) {
    const ConfigNode written = spec.write();
    ConfigNode change = written;
    if (is_set_to(written, "num_classes", "0"))
      change.get_or_add("init_args").set("num_classes", ConfigNode::integer(num_classes));
    if (ignore_index && is_set_to(written, "ignore_index", "null"))
      change.get_or_add("init_args").set("ignore_index", ConfigNode::integer(*ignore_index));
    Problems problems;
    spec.read(change, problems, "metrics");
    problems.throw_if_any();
  }
  make();
}

StageMetrics::Named StageMetrics::make() const {
  Named made;
  for (const Spec<PredictionMetric>& spec : specs_)
    if (!made.emplace(snake_case(spec.class_path()), spec.create()).second)
      throw ConfigError(
          cat("[models.", component_, "] metrics: ", spec.class_path(), " is there twice. Name each class once."));
  return made;
}

void StageMetrics::update(LightningModule& module, const std::string& stage, int64_t loader_idx,
                          const Tensor& prediction, const Tensor& target) {
  if (specs_.empty()) return;
  const auto [metrics, is_new] = of_loader_.try_emplace({stage, loader_idx});
  if (is_new) metrics->second = make();
  for (const auto& [name, metric] : metrics->second) {
    metric->update(prediction, target);
    module.log(cat(stage, "_", name), *metric);
  }
}

}  // namespace fulgur
