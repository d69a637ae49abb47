#include "fulgur/models/classifier.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/text.h"
#include "fulgur/models/mixing.h"
#include "sample_pictures.h"

namespace fulgur {
namespace {

constexpr int64_t kIgnoredLabel = -100;

[[noreturn]] void throw_label_out_of_range(const Tensor& labels, int64_t classes) {
  const Tensor flat = labels.contiguous();
  const auto* values = flat.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i)
    if (values[i] != kIgnoredLabel && (values[i] < 0 || values[i] >= classes))
      throw DataError(cat("[models.classification_loss] labels must be in [0, num_classes = ", classes, "); got ",
                          values[i], " at index ", i,
                          " of the batch. Set num_classes to match the data, or fix the labels."));
  throw DataError(cat("[models.classification_loss] labels must be in [0, num_classes = ", classes, ")."));
}

}  // namespace

ClassWeights::ClassWeights(std::vector<double> weights, int64_t num_classes, const char* component)
    : weights_(std::move(weights)) {
  if (weights_.empty()) return;
  const auto refuse = [&](const auto&... what) {
    throw ConfigError(cat("[models.", component, "] class_weights must ", what..., "."));
  };
  if (static_cast<int64_t>(weights_.size()) != num_classes)
    refuse("have a weight for each of the num_classes = ", num_classes, " classes; it has ", weights_.size());
  if (!std::ranges::all_of(weights_, [](double weight) { return std::isfinite(weight) && weight >= 0; }) ||
      std::ranges::all_of(weights_, [](double weight) { return weight == 0; }))
    refuse("be finite, not negative, and not all 0");
}

void ClassWeights::field(Fields& f, std::vector<double>& weights) {
  f(weights, "class_weights",
    "A weight for each class in the loss of training, for classes that are rarer than others; empty: all weigh 1.")
      .at_least(0);
}

Tensor ClassWeights::on_device_of(const Tensor& logits) const {
  if (weights_.empty()) return {};
  const at::ScalarType type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (!made_.defined() || made_.device() != logits.device() || made_.scalar_type() != type)
    made_ = at::tensor(weights_, at::kDouble).to(type).to(logits.device());
  return made_;
}

Tensor classification_loss(const Tensor& logits, const Tensor& labels, double label_smoothing,
                           const Tensor& class_weights) {
  if (labels.scalar_type() != at::kLong || labels.dim() != 1 || labels.size(0) != logits.size(0))
    throw DataError(
        cat("[models.classification_loss] labels must be int64 of shape [", logits.size(0), "]; got ",
            c10::toString(labels.scalar_type()), " of shape ", shape_text(labels.sizes()),
            ". The second entry of a batch holds the labels.",
            labels.dim() == 3 ? " Labels of pixels (masks) need a model for segmentation, such as UNet." : ""));
  try {
    if (class_weights.defined())
      return at::cross_entropy_loss(logits.to(class_weights.scalar_type()), labels, class_weights, at::Reduction::Mean,
                                    kIgnoredLabel, label_smoothing);
    return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Mean, kIgnoredLabel, label_smoothing);
  } catch (const c10::IndexError&) {
    // Searched for only after a failure: a check in each step would wait for the device.
    throw_label_out_of_range(labels, logits.size(1));
  }
}

StepOutput Classifier::training_step(const Batch& batch, int64_t) {
  Tensor loss = training_loss(batch[0], batch[1]);
  log("train_loss", loss, {.prog_bar = true});
  return loss;
}

LayerChain Classifier::begin_stages() {
  if (augmentation_.mixup_alpha > 0 || augmentation_.cutmix_alpha > 0)
    throw ConfigError(
        "[models.Classifier] mixup_alpha and cutmix_alpha mix samples and their labels, which are on different ranks "
        "of a pipeline. Set them to 0, or mesh.pipeline to 1.");
  LayerChain chain;
  chain.input = [](const Batch& batch) { return LayerChain::Values{batch[0]}; };
  chain.loss = [this](const LayerChain::Values& logits, const Batch& batch) {
    Tensor loss =
        classification_loss(logits[0], batch[1], augmentation_.label_smoothing, class_weights_.on_device_of(logits[0]));
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  };
  return chain;
}

Tensor Classifier::training_loss(const Tensor& input, const Tensor& labels) {
  const auto& [smoothing, mixup_alpha, cutmix_alpha] = augmentation_;
  if (mixup_alpha <= 0 && cutmix_alpha <= 0) {
    const Tensor logits = forward(input);
    return classification_loss(logits, labels, smoothing, class_weights_.on_device_of(logits));
  }
  const MixedBatch mixed = mix(input, labels, mixup_alpha, cutmix_alpha);
  const Tensor logits = forward(mixed.input);
  const Tensor weights = class_weights_.on_device_of(logits);
  return mixed.share * classification_loss(logits, mixed.labels, smoothing, weights) +
         (1 - mixed.share) * classification_loss(logits, mixed.other_labels, smoothing, weights);
}

void Classifier::augmentation_fields(Fields& f, double& label_smoothing, double& mixup_alpha, double* cutmix_alpha) {
  f(label_smoothing, "label_smoothing", "Part of each training label that is spread evenly over all classes.")
      .at_least(0)
      .less_than(1);
  f(mixup_alpha, "mixup_alpha", "MixUp in training, with shares from Beta(alpha, alpha); 0: none.").at_least(0);
  if (cutmix_alpha)
    f(*cutmix_alpha, "cutmix_alpha",
      "CutMix in training, with shares from Beta(alpha, alpha); 0: none. With MixUp, each batch gets one of the two.")
        .at_least(0);
}

void Classifier::use_metrics(std::vector<Spec<PredictionMetric>> metrics, int64_t num_classes) {
  metrics_.use(std::move(metrics), num_classes, {.component = "Classifier", .logs = {"loss", "acc"}});
}

Tensor Classifier::evaluate(const Batch& batch, const std::string& stage, int64_t loader_idx) {
  const Tensor logits = forward(batch[0]);
  log(stage + "_loss", classification_loss(logits, batch[1]), {.prog_bar = true});
  // In double: the mean over batches is then exact to the last digit shown.
  log(stage + "_acc", logits.argmax(1).eq(batch[1]).to(at::kDouble).mean(), {.prog_bar = true});
  metrics_.update(*this, stage, loader_idx, logits, batch[1]);
  return logits;
}

Outputs Classifier::validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) {
  const Tensor logits = evaluate(batch, "val", loader_idx);
  if (!logs_samples(batch_idx, loader_idx)) return {};
  const auto [confidence, prediction] = logits.softmax(1).max(1);
  return {{"prediction", prediction}, {"confidence", confidence}};
}

// Here the outputs are those of all devices, and the batch is whole.
void Classifier::on_validation_batch_end(const Outputs& outputs, const Batch& batch, int64_t batch_idx,
                                         int64_t loader_idx) {
  if (!logs_samples(batch_idx, loader_idx) || run().sanity_checking() || !run().is_global_zero()) return;
  const int64_t count = std::min(sample_predictions_, batch.size());
  const auto first = [count](const Tensor& values) { return values.narrow(0, 0, count); };
  constexpr const char* kName = "val_samples";
  if (const auto picture = detail::picture_of_samples(kName, first(batch[0]))) log_media(*picture);
  log_media(
      detail::table_of_samples(kName, first(batch[1]), first(outputs["prediction"]), first(outputs["confidence"])));
}

Outputs Classifier::test_step(const Batch& batch, int64_t, int64_t loader_idx) {
  evaluate(batch, "test", loader_idx);
  return {};
}

Outputs Classifier::predict_step(const Batch& batch, int64_t, int64_t) {
  const Tensor probabilities = forward(batch[0]).softmax(1);
  return {{"probabilities", probabilities}, {"prediction", probabilities.argmax(1)}};
}

}  // namespace fulgur
