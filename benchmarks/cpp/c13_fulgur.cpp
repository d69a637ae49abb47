// C13, Fulgur: a validation of CnnClassifier with loss and accuracy, and with further metrics.
//
//   c13_fulgur --inputs FOLDER --rounds 9 --report FILE
#include <array>

#include "bench.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/options/config_node.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/tensor_dataset.h"
#include "fulgur/models/cnn_classifier.h"
#include "fulgur/trainer/trainer.h"

namespace {

using Values = std::map<std::string, at::Tensor>;
using Metrics = std::vector<fulgur::Spec<fulgur::PredictionMetric>>;

fulgur::Spec<fulgur::PredictionMetric> spec(const char* name, const std::map<std::string, std::string>& options) {
  fulgur::Spec<fulgur::PredictionMetric> metric(name);
  fulgur::ConfigNode given = fulgur::ConfigNode::map();
  for (const auto& [key, value] : options) given.set(key, fulgur::ConfigNode::scalar(value));
  fulgur::Fields fields;
  metric.options().fields(fields);
  fulgur::Problems problems;
  fields.read(given, problems, "");
  problems.throw_if_any();
  return metric;
}

std::shared_ptr<fulgur::CnnClassifier> make_model(const Values& values, const Metrics& metrics) {
  fulgur::CnnClassifier::Options options;
  options.metrics = metrics;
  const auto model = std::make_shared<fulgur::CnnClassifier>(options);
  const at::NoGradGuard no_grad;
  for (const auto& parameter : model->named_parameters())
    if (const auto found = values.find(parameter.key()); found != values.end()) parameter.value().copy_(found->second);
  return model;
}

void run(const bench::Arguments& arguments) {
  const auto file = fulgur::read_safetensors(arguments.text("inputs") + "/c13.safetensors");
  const Values values(file.tensors.begin(), file.tensors.end());
  const auto loader = std::make_shared<fulgur::DataLoader>(
      std::make_shared<fulgur::TensorDataset>(fulgur::Batch{values.at("x"), values.at("y")}),
      fulgur::DataLoaderOptions{.batch_size = 128});
  const std::array models = {
      std::pair{"fulgur_plain", make_model(values, {})},
      std::pair{"fulgur_metrics", make_model(values, {spec("Accuracy", {{"average", "micro"}}), spec("FBeta", {}),
                                                      spec("Auroc", {{"thresholds", "200"}})})}};
  fulgur::DataSource data;
  data.validation = {loader};
  nlohmann::json rows, found;
  for (int64_t turn = 0; turn <= arguments.number("rounds"); ++turn) {
    for (const auto& [row, model] : models) {
      fulgur::TrainerOptions options;
      options.accelerator = "cpu";
      options.enable_progress_bar = false;
      options.logger.enabled = false;
      const double cpu = bench::cpu_seconds(), wall = bench::wall_seconds();
      const auto report = fulgur::Trainer(options, {}).validate(model, data);
      // The first one warms up.
      if (turn > 0)
        rows[row].push_back({{"cpu_s", bench::cpu_seconds() - cpu}, {"wall_s", bench::wall_seconds() - wall}});
      for (const auto& [name, value] : report.loaders.front())
        if (name.starts_with("val_")) found[name.substr(4)] = value;
    }
  }
  bench::write_report(arguments, {{"rows", rows}, {"values", found}});
}

}  // namespace

int main(int count, char** values) { return bench::run(count, values, run); }
