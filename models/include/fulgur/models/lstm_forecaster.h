#pragma once

#include <torch/nn/modules/rnn.h>

#include "fulgur/models/tabular_model.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

/// Forecasts series: an LSTM reads a window, and a Linear maps its last hidden state to all steps of the horizon at
/// once. Reads `input` (N, window, num_inputs); `target` is (N, horizon, num_outputs) in the units of the data (see
/// TabularModel). Parameters: those of LibTorch's LSTM under `lstm`, and `head`.
class FULGUR_API LstmForecaster : public TabularModel {
 public:
  struct Options {
    int64_t num_inputs = 1;
    int64_t horizon = 1;
    int64_t num_outputs = 1;
    std::vector<double> target_mean = {};
    std::vector<double> target_std = {};
    int64_t hidden = 64;
    int64_t layers = 1;
    double dropout = 0.0;
    void fields(Fields& f);
  };
  explicit LstmForecaster(const Options& options);
  /// Returns (N, horizon, num_outputs), standardised. Throws a ConfigError for inputs of another shape.
  Tensor forward(const Batch& batch) override;

 private:
  Options options_;
  torch::nn::LSTM lstm_{nullptr};
  nn::Linear head_{nullptr};
};

}  // namespace fulgur
