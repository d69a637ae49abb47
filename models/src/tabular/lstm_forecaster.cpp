#include "fulgur/models/lstm_forecaster.h"

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "option_bounds.h"

namespace fulgur {

void LstmForecaster::Options::fields(Fields& f) {
  f(num_inputs, "num_inputs", "Series that are read; link it to data.num_inputs.").range(1, detail::kMostWidth);
  f(horizon, "horizon", "Steps that are forecast; link it to data.horizon.").range(1, detail::kMostWidth);
  f(num_outputs, "num_outputs", "Series that are forecast; link it to data.num_outputs.").range(1, detail::kMostWidth);
  f(target_mean, "target_mean", "Mean of each series that is forecast; empty: 0. Link it to data.target_mean.");
  f(target_std, "target_std",
    "Standard deviation of each series that is forecast; empty: 1. Link it to data.target_std.")
      .greater_than(0);
  f(hidden, "hidden", "Width of the LSTM.").range(1, detail::kMostWidth);
  f(layers, "layers", "Layers of the LSTM.").range(1, detail::kMostLayers);
  f(dropout, "dropout", "Dropout probability between the layers of the LSTM in training.").at_least(0).less_than(1);
}

LstmForecaster::LstmForecaster(const Options& options)
    : TabularModel(
          {.num_outputs = options.num_outputs, .target_mean = options.target_mean, .target_std = options.target_std},
          "LstmForecaster"),
      options_(detail::checked_options(options, "models.LstmForecaster")) {
  if (options.dropout > 0 && options.layers == 1)
    throw ConfigError(
        "[models.LstmForecaster] dropout is between the layers of the LSTM; layers is 1. Set layers to 2 "
        "or more, or dropout to 0.");
  lstm_ = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(options.num_inputs, options.hidden)
                                                      .num_layers(options.layers)
                                                      .batch_first(true)
                                                      .dropout(options.dropout)));
  head_ = register_module("head", nn::Linear(options.hidden, options.horizon * options.num_outputs));
}

Tensor LstmForecaster::forward(const Batch& batch) {
  const Tensor& input = batch["input"];
  if (input.dim() != 3 || input.size(2) != options_.num_inputs || input.size(1) < 1)
    throw ConfigError(
        cat("[models.LstmForecaster] input must have the shape [N, window, num_inputs = ", options_.num_inputs,
            "]; got ", shape_text(input.sizes()), ". Set model.init_args.num_inputs to match the data."));
  const Tensor outputs = std::get<0>(lstm_->forward(input));
  return head_(outputs.select(1, outputs.size(1) - 1)).view({input.size(0), options_.horizon, options_.num_outputs});
}

[[maybe_unused]] static const bool registered_lstm_forecaster = Registry<LightningModule>::add<LstmForecaster>(
    "LstmForecaster", "An LSTM that forecasts the next steps of series from a window.");

}  // namespace fulgur
