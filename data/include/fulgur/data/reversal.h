#pragma once

#include "fulgur/data/tensor_data_module.h"

namespace fulgur {

/// Synthetic sequences of random tokens and their reversal, to train sequence models. Batches: `source` and `target`,
/// both (N, length) int64 with tokens in [1, vocabulary); 0 is reserved for the start of a sequence. A sample depends
/// only on seed, stage and index: adding samples does not change existing ones. Predict uses the test's sources.
class FULGUR_API ReversalDataModule : public TensorDataModule {
 public:
  struct Options {
    int64_t vocabulary = 12;
    int64_t length = 8;
    int64_t train_samples = 8192;
    int64_t val_samples = 1024;
    int64_t test_samples = 1024;
    int64_t seed = 0;
    int64_t batch_size = 64;
    Auto<int64_t> eval_batch_size = {};
    LoadingOptions loading = {};
    void fields(Fields& f);
  };
  explicit ReversalDataModule(const Options& options);
  void setup(TrainerFn fn) override;
  /// `vocabulary`, `length`.
  static constexpr const char* kExports = "vocabulary, length";
  StateTree exported_values() const override;

 private:
  Options options_;
  bool made_ = false;
};

}  // namespace fulgur
