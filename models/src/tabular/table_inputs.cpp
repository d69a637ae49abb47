#include "tabular/table_inputs.h"

#include <ATen/ops/embedding.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "option_bounds.h"

namespace fulgur::detail {
namespace {

void check_table_batch(const Batch& batch, int64_t num_numbers, const std::vector<int64_t>& cardinalities,
                       const char* component) {
  const Tensor &numbers = batch["numbers"], &categories = batch["categories"];
  const auto columns = static_cast<int64_t>(cardinalities.size());
  if (numbers.dim() != 2 || numbers.size(1) != num_numbers || categories.dim() != 2 || categories.size(1) != columns)
    throw ConfigError(cat("[models.", component, "] a batch must have numbers of shape [N, num_numbers = ", num_numbers,
                          "] and categories of shape [N, ", columns, "], the number of cardinalities; got ",
                          shape_text(numbers.sizes()), " and ", shape_text(categories.sizes()),
                          ". Set model.init_args.num_numbers and cardinalities to match the data."));
}

}  // namespace

void table_input_fields(Fields& f, int64_t& num_numbers, std::vector<int64_t>& cardinalities) {
  f(num_numbers, "num_numbers", "Columns of numbers; 0: none. Link it to data.num_numbers.").range(0, kMostWidth);
  f(cardinalities, "cardinalities", "Values of each column of categories, with 0; link it to data.cardinalities.")
      .range(1, kMostWidth);
}

void check_table_columns(int64_t num_numbers, const std::vector<int64_t>& cardinalities, const char* component) {
  if (num_numbers == 0 && cardinalities.empty())
    throw ConfigError(cat("[models.", component,
                          "] a table must have a column; num_numbers is 0 and cardinalities is empty. Link them: "
                          "model.init_args.num_numbers: data.num_numbers and model.init_args.cardinalities: "
                          "data.cardinalities. For arrays, link model.init_args.num_numbers: data.num_features."));
}

Tensor table_numbers(const Batch& batch, int64_t num_numbers, const std::vector<int64_t>& cardinalities,
                     const char* component) {
  if (batch.contains("numbers")) {
    check_table_batch(batch, num_numbers, cardinalities, component);
    return batch["numbers"];
  }
  if (!batch.contains("input")) {
    std::vector<std::string> names;
    for (const Batch::Entry& entry : batch) names.push_back(entry.first);
    throw ConfigError(cat("[models.", component,
                          "] a batch must have numbers and categories, as those of TableDataModule, or input, as those "
                          "of ArrayDataModule; its entries are ",
                          join(names), ". Choose such a data module."));
  }
  const Tensor& input = batch["input"];
  if (!cardinalities.empty())
    throw ConfigError(cat("[models.", component, "] the batch is of arrays, which have no columns of categories, but ",
                          cardinalities.size(), " cardinalities are set. Remove model.init_args.cardinalities."));
  if (input.dim() < 1 || (input.size(0) > 0 && input.numel() / input.size(0) != num_numbers))
    throw ConfigError(cat("[models.", component, "] an input must have num_numbers = ", num_numbers,
                          " values for each sample; got the shape ", shape_text(input.sizes()),
                          ". Link model.init_args.num_numbers: data.num_features."));
  if (!input.is_floating_point())
    throw ConfigError(cat("[models.", component, "] input must be floating-point; got ",
                          c10::toString(input.scalar_type()), ". Set data.init_args.float_input: true."));
  return input.reshape({input.size(0), num_numbers});
}

Tensor embed_category(const Tensor& weight, const Tensor& categories, int64_t column, const char* component) {
  const Tensor indices = categories.select(1, column);
  try {
    return at::embedding(weight, indices);
  } catch (const c10::IndexError&) {
    // Searched for only after a failure: a check in each step would wait for the device.
    throw DataError(cat("[models.", component, "] the numbers of a category must be in [0, ", weight.size(0),
                        "), its cardinality; column ", column, " of the batch has numbers from ",
                        indices.min().item<int64_t>(), " to ", indices.max().item<int64_t>(),
                        ". Set model.init_args.cardinalities to match the data."));
  }
}

}  // namespace fulgur::detail
