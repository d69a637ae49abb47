#pragma once

#include <memory>
#include <vector>

#include "fulgur/models/classifier.h"
#include "fulgur/models/dense_stack.h"

namespace fulgur {

/// Fully connected layers with ReLU; inputs (N, …) are flattened to (N, in_features).
class FULGUR_API MlpClassifier : public Classifier {
 public:
  struct Options {
    int64_t in_features = 784;
    std::vector<int64_t> hidden = {128};
    int64_t num_classes = 10;
    double dropout = 0.0;
    std::vector<Spec<PredictionMetric>> metrics = {};
    double label_smoothing = 0;
    std::vector<double> class_weights = {};
    double mixup_alpha = 0;
    int64_t sample_predictions = 0;
    void fields(Fields& f);
  };
  explicit MlpClassifier(const Options& options);
  /// Throws a ConfigError for samples that do not have in_features values.
  Tensor forward(const Tensor& input) override;
  /// `layer0`, `layer1`, ….
  LayerChain stages() override;

 private:
  Options options_;
  std::shared_ptr<DenseStack> layers_;
};

}  // namespace fulgur
