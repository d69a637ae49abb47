#include "fulgur/models/mlp_classifier.h"

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/text.h"
#include "option_bounds.h"

namespace fulgur {

void MlpClassifier::Options::fields(Fields& f) {
  f(in_features, "in_features", "Number of values in a sample.").range(1, detail::kMostWidth);
  f(hidden, "hidden", "Widths of the hidden layers; empty: a linear classifier.").range(1, detail::kMostWidth);
  f(num_classes, "num_classes", "Number of classes.").range(2, detail::kMostWidth);
  f(dropout, "dropout", "Dropout probability of hidden values in training.").at_least(0).less_than(1);
  f(metrics, "metrics", kMetricsDoc);
  augmentation_fields(f, label_smoothing, mixup_alpha, nullptr);
  ClassWeights::field(f, class_weights);
  f(sample_predictions, "sample_predictions", kSamplesDoc).range(0, detail::kMostSamples);
}

MlpClassifier::MlpClassifier(const Options& options)
    : options_(detail::checked_options(options, "models.MlpClassifier")) {
  std::vector<int64_t> widths = {options.in_features};
  widths.insert(widths.end(), options.hidden.begin(), options.hidden.end());
  widths.push_back(options.num_classes);
  layers_ = register_module("layers", std::make_shared<DenseStack>(widths, options.dropout));
  use_metrics(options.metrics, options.num_classes);
  use_sample_predictions(options.sample_predictions);
  use_class_weights(options.class_weights, options.num_classes);
  use_augmentation({.label_smoothing = options.label_smoothing, .mixup_alpha = options.mixup_alpha});
}

Tensor MlpClassifier::forward(const Tensor& input) {
  return layers_->forward(flatten_samples(input, options_.in_features, "MlpClassifier", "in_features"));
}

LayerChain MlpClassifier::stages() {
  LayerChain chain = begin_stages();
  for (size_t i = 0; i < layers_->size(); ++i)
    chain.add(cat("layer", i), {cat("layers.layer", i)}, [this, i](const Tensor& x) {
      return layers_->layer(i, i == 0 ? flatten_samples(x, options_.in_features, "MlpClassifier", "in_features") : x);
    });
  return chain;
}

[[maybe_unused]] static const bool registered_mlp_classifier =
    Registry<LightningModule>::add<MlpClassifier>("MlpClassifier", "A classifier of fully connected layers with ReLU.");

}  // namespace fulgur
