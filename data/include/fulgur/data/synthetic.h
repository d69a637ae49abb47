#pragma once

#include <vector>

#include "fulgur/data/tensor_data_module.h"

namespace fulgur {

/// A synthetic classification task: each class has a random prototype, a sample is its prototype plus `noise` times a
/// standard normal. Batches: `image` (N, *shape) float32, `label` (N) int64. A pure function of the options; for tests,
/// examples and benchmarks.
class FULGUR_API SyntheticDataModule : public TensorDataModule {
 public:
  struct Options {
    int64_t num_train = 1024;
    int64_t num_val = 256;
    int64_t num_test = 256;
    int64_t num_classes = 10;
    std::vector<int64_t> shape = {1, 28, 28};
    double noise = 1.0;
    int64_t seed = 0;
    int64_t batch_size = 64;
    LoadingOptions loading = {};
    void fields(Fields& f);
  };
  explicit SyntheticDataModule(const Options& options);
  void setup(TrainerFn fn) override;
  /// `num_classes`, `num_features`; with a shape of three also `channels`, `height`, `width`.
  static constexpr const char* kExports =
      "num_classes, num_features; channels, height, width for a shape of three numbers";
  StateTree exported_values() const override;

 private:
  void make_samples();
  Options options_;
  bool made_ = false;
};

}  // namespace fulgur
