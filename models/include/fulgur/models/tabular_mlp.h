#pragma once

#include <memory>
#include <vector>

#include "fulgur/models/tabular_model.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

/// Fully connected layers with ReLU over the numbers of a table and an embedding of each category. Each hidden layer is
/// a Linear, batch norm if asked for, ReLU and dropout. Reads `numbers` (N, num_numbers) and `categories` (N, C) int64
/// of a table, or `input` (N, …) of arrays with num_numbers values for each sample and no categories; see TabularModel
/// for targets. The embedding of number 0, a category that the training part does not have, begins as
/// zeros. Parameters: `embedding0`, …, `layer0.weight`, `norm0.weight`, ….
class FULGUR_API TabularMlp : public TabularModel {
 public:
  struct Options {
    int64_t num_numbers = 0;
    std::vector<int64_t> cardinalities = {};
    TabularTask target = {};
    Auto<int64_t> embedding_size = {};
    std::vector<int64_t> hidden = {256, 128};
    bool batch_norm = false;
    double dropout = 0.0;
    void fields(Fields& f);
  };
  explicit TabularMlp(const Options& options);
  /// Throws a ConfigError for batches of another width, and on the CPU a DataError for a category out of range.
  Tensor forward(const Batch& batch) override;

 private:
  Options options_;
  std::vector<Tensor> embeddings_;  // (cardinality, size) each
  std::vector<nn::Linear> layers_;
  std::vector<nn::BatchNorm1d> norms_;
};

}  // namespace fulgur
