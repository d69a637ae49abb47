#include "fulgur/models/tabular_mlp.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/text.h"
#include "option_bounds.h"
#include "tabular/table_inputs.h"

namespace fulgur {
namespace {

/// As in fastai: a size that grows slowly with the number of values.
int64_t size_for(int64_t cardinality) {
  return std::min<int64_t>(50, std::llround(1.6 * std::pow(static_cast<double>(cardinality), 0.56)));
}

}  // namespace

void TabularMlp::Options::fields(Fields& f) {
  detail::table_input_fields(f, num_numbers, cardinalities);
  target.fields(f);
  f(embedding_size, "embedding_size", "Values that stand for a category; auto: 1.6 cardinality^0.56, at most 50.")
      .range(1, detail::kMostWidth);
  f(hidden, "hidden", "Widths of the hidden layers; empty: a linear model.").range(1, detail::kMostWidth);
  f(batch_norm, "batch_norm", "Whether each hidden layer has batch norm before ReLU.");
  f(dropout, "dropout", "Dropout probability of hidden values in training.").at_least(0).less_than(1);
}

TabularMlp::TabularMlp(const Options& options)
    : TabularModel(options.target, "TabularMlp"), options_(detail::checked_options(options, "models.TabularMlp")) {
  detail::check_table_columns(options.num_numbers, options.cardinalities, "TabularMlp");
  int64_t width = options.num_numbers;
  for (size_t i = 0; i < options.cardinalities.size(); ++i) {
    const int64_t cardinality = options.cardinalities[i];
    const int64_t size = options.embedding_size.value.value_or(size_for(cardinality));
    Tensor start = at::randn({cardinality, size});
    start.select(0, 0).zero_();
    embeddings_.push_back(register_parameter(cat("embedding", i), start));
    width += size;
  }
  std::vector<int64_t> widths = {width};
  widths.insert(widths.end(), options.hidden.begin(), options.hidden.end());
  widths.push_back(options.target.num_outputs);
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    layers_.push_back(register_module(cat("layer", i), nn::Linear(widths[i], widths[i + 1])));
    if (options.batch_norm && i + 2 < widths.size())
      norms_.push_back(register_module(cat("norm", i), nn::BatchNorm1d(nn::BatchNorm1dOptions(widths[i + 1]))));
  }
}

Tensor TabularMlp::forward(const Batch& batch) {
  const Tensor numbers = detail::table_numbers(batch, options_.num_numbers, options_.cardinalities, "TabularMlp");
  std::vector<Tensor> inputs;
  if (options_.num_numbers > 0) inputs.push_back(numbers);
  for (size_t i = 0; i < embeddings_.size(); ++i)
    inputs.push_back(
        detail::embed_category(embeddings_[i], batch["categories"], static_cast<int64_t>(i), "TabularMlp"));
  Tensor x = inputs.size() == 1 ? inputs.front() : at::cat(inputs, 1);
  for (size_t i = 0; i < layers_.size(); ++i) {
    x = layers_[i]->forward(x);
    if (i + 1 == layers_.size()) break;
    if (!norms_.empty()) x = norms_[i]->forward(x);
    x = x.relu_();
    if (options_.dropout > 0 && is_training()) x = at::dropout(x, options_.dropout, true);
  }
  return x;
}

[[maybe_unused]] static const bool registered_tabular_mlp = Registry<LightningModule>::add<TabularMlp>(
    "TabularMlp", "Fully connected layers over the numbers and embedded categories of a table.");

}  // namespace fulgur
