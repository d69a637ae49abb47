#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/models/stage_metrics.h"

namespace fulgur {

/// Weights of the classes in the loss of training, for classes that are rarer than others: a sample counts as much as
/// its class weighs, and the loss is the weighted mean, as in torch.nn.CrossEntropyLoss(weight=…).
class FULGUR_API ClassWeights {
 public:
  ClassWeights() = default;
  /// Throws a ConfigError that names `component` unless there is a weight for each of the classes, or none at all, and
  /// they are finite, not negative and not all 0.
  ClassWeights(std::vector<double> weights, int64_t num_classes, const char* component);
  /// Declares the option `class_weights`.
  static void field(Fields& f, std::vector<double>& weights);
  /// The weights (C) on the device of the logits, float64 for logits of float64, else float32; undefined without
  /// weights. Copied to a device once.
  Tensor on_device_of(const Tensor& logits) const;

 private:
  std::vector<double> weights_;
  mutable Tensor made_;
};

/// The steps of a classifier: cross entropy and accuracy of `forward(batch[0])` against `batch[1]`, the labels (N)
/// int64. Logs `train_loss`, `val_loss`, `val_acc`, `test_loss`, `test_acc`, and further metrics on request; prediction
/// returns `probabilities` (N, C) and `prediction` (N) int64. On request, each validation logs `val_samples`: pictures
/// of samples, and a table of their labels and predictions. Training may mix its samples and smooth its labels (see
/// mixing.h). Derive and implement `forward`.
class FULGUR_API Classifier : public LightningModule {
 public:
  /// Returns logits (N, num_classes) for inputs (N, …).
  virtual Tensor forward(const Tensor& input) = 0;

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  /// Logs the samples that `use_sample_predictions` asks for. An override must call it.
  void on_validation_batch_end(const Outputs& outputs, const Batch& batch, int64_t batch_idx,
                               int64_t loader_idx) override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;

 protected:
  static constexpr const char* kMetricsDoc =
      "Further metrics that validation and test log, such as FBeta, which becomes val_f_beta and test_f_beta unless it "
      "has a name.";
  /// Metrics of the logits that validation and test also log: `val_f_beta` and `test_f_beta` for FBeta, or under the
  /// name that the config gives. Their `num_classes` is set if it is 0. Throws a ConfigError for options that do not
  /// fit together or to the model, for two metrics with one name, and for a name that the model itself logs.
  void use_metrics(std::vector<Spec<PredictionMetric>> metrics, int64_t num_classes);

  /// How training changes its samples and labels; validation and test do not. Zeros change nothing.
  struct Augmentation {
    double label_smoothing = 0;
    double mixup_alpha = 0;
    double cutmix_alpha = 0;
  };
  /// Weighs the classes in the loss of training.
  void use_class_weights(std::vector<double> weights, int64_t num_classes) {
    class_weights_ = ClassWeights(std::move(weights), num_classes, "Classifier");
  }
  /// The input and the loss of `stages()`, without layers. Throws a ConfigError for augmentation that mixes samples.
  LayerChain begin_stages();
  void use_augmentation(const Augmentation& augmentation) { augmentation_ = augmentation; }
  /// Declares the options of an Augmentation; without `cutmix_alpha` for inputs that are no images.
  static void augmentation_fields(Fields& f, double& label_smoothing, double& mixup_alpha, double* cutmix_alpha);

  /// Each validation logs the first `count` samples of the first batch of its first loader (of rank 0); 0: none. The
  /// picture has the images if inputs are (N, H, W) or (N, C, H, W). Once per validation it waits for the device.
  void use_sample_predictions(int64_t count) { sample_predictions_ = count; }
  static constexpr const char* kSamplesDoc =
      "Samples of the first validation batch that each validation logs with their predictions; 0: none.";

 private:
  Tensor training_loss(const Tensor& input, const Tensor& labels);
  /// Returns the logits.
  Tensor evaluate(const Batch& batch, const std::string& stage, int64_t loader_idx);
  bool logs_samples(int64_t batch_idx, int64_t loader_idx) const {
    return sample_predictions_ > 0 && batch_idx == 0 && loader_idx == 0;
  }

  Augmentation augmentation_;
  ClassWeights class_weights_;
  int64_t sample_predictions_ = 0;
  StageMetrics metrics_;
};

/// Mean cross entropy of logits (N, C) against labels (N) int64 in [0, C); -100 is excluded from the mean. With
/// `label_smoothing`, this part of the target is spread evenly over all classes (Szegedy et al. 2016). With
/// `class_weights` (C), on the device of the logits, the mean is weighted by the class of each label. Throws a
/// DataError for labels of another shape or dtype and, on the CPU, for one out of range, with its index and value.
FULGUR_API Tensor classification_loss(const Tensor& logits, const Tensor& labels, double label_smoothing = 0,
                                      const Tensor& class_weights = {});

}  // namespace fulgur
