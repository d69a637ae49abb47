#include "columns/row_encoder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>

#include <cmath>

#include "columns/read_cell.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::tables {
namespace {

float as_float32(const TableRows& rows, size_t column, double value) {
  const auto narrow = static_cast<float>(value);
  if (!std::isfinite(narrow))
    rows.fail(column, cat("a value must fit float32, in which models compute; got ", value,
                          ". Scale the column, or set its type to ignore in data.init_args.types."));
  return narrow;
}

}  // namespace

RowEncoder::RowEncoder(TableSchema schema, const TableDataModule::Options& options, bool with_targets)
    : schema_(std::move(schema)),
      delimiter_(options.delimiter.front()),
      refuses_blanks_(options.blank_numbers == TableDataModule::Blanks::error),
      with_targets_(with_targets),
      blanks_(options.blank_values) {
  for (const CategoryFeature& category : schema_.categories) {
    categories_.emplace_back();
    for (const std::string& value : category.values) categories_.back().add(value);
  }
  for (const std::string& text : schema_.classes) classes_.add(text);
}

Batch RowEncoder::empty(int64_t rows) const {
  Batch batch;
  batch.add("numbers", at::empty({rows, schema_.num_numbers()}, at::kFloat));
  batch.add("categories", at::empty({rows, static_cast<int64_t>(schema_.categories.size())}, at::kLong));
  if (!with_targets_) return batch;
  const auto targets = static_cast<int64_t>(schema_.targets.size());
  if (schema_.is_classification())
    batch.add("target", at::empty({rows}, at::kLong));
  else
    batch.add("target", targets == 1 ? at::empty({rows}, at::kFloat) : at::empty({rows, targets}, at::kFloat));
  return batch;
}

void RowEncoder::encode(const TableRows& rows, Batch& out, int64_t row) const {
  float* numbers = out[0].mutable_data_ptr<float>() + row * out[0].size(1);
  float* indicator = numbers + schema_.numbers.size();
  size_t column = 0;
  for (const NumberFeature& number : schema_.numbers) {
    const std::optional<double> value = read_number(rows, column, number.type, blanks_);
    if (!value && refuses_blanks_) fail_blank(rows, column);
    *numbers++ = as_float32(rows, column, (value.value_or(number.fill) - number.mean) / number.std);
    if (number.has_indicator) *indicator++ = value ? 0.0F : 1.0F;
    ++column;
  }
  int64_t* categories = out[1].mutable_data_ptr<int64_t>() + row * out[1].size(1);
  for (const TextNumbers& known : categories_) *categories++ = known.find(read_category(rows, column++, blanks_)) + 1;
  if (!with_targets_) return;
  if (schema_.is_classification()) {
    const std::string_view text = read_class(rows, column, blanks_);
    const int64_t label = classes_.find(text);
    if (label < 0)
      rows.fail(column, cat("a class must be one of the training files' classes, ",
                            escape_controls(join_some(schema_.classes, 10)), "; got '",
                            escape_controls(text.substr(0, 60)), "'."));
    out[2].mutable_data_ptr<int64_t>()[row] = label;
    return;
  }
  const auto count = static_cast<int64_t>(schema_.targets.size());
  float* targets = out[2].mutable_data_ptr<float>() + row * count;
  for (int64_t i = 0; i < count; ++i, ++column)
    *targets++ = as_float32(rows, column, read_target(rows, column, blanks_));
}

Batch RowEncoder::encode_all(const std::vector<std::filesystem::path>& paths, int64_t count) const {
  Batch batch = empty(count);
  TableRows rows(paths, delimiter_, columns());
  int64_t row = 0;
  for (; rows.next(); ++row)
    if (row < count) encode(rows, batch, row);
  if (row != count)
    throw DataError(cat("[data.TableDataModule] the files must not change while they are read; '",
                        escape_controls(paths.front().string()), "' had ", count, " rows before, and has ", row,
                        " now."));
  warn_of_unknown(batch[1], paths.front());
  return batch;
}

// A value that is written in another way than in the training file would go unnoticed.
void RowEncoder::warn_of_unknown(const Tensor& categories, const std::filesystem::path& file) const {
  const int64_t rows = categories.size(0);
  constexpr int64_t kFewest = 2;
  const Tensor unknown = categories.eq(0).sum(0);
  for (int64_t i = 0; i < categories.size(1); ++i) {
    const auto count = unknown[i].item<int64_t>();
    if (count < kFewest || 2 * count <= rows) continue;
    const CategoryFeature& category = schema_.categories[static_cast<size_t>(i)];
    log::warn("tables.unknown_categories",
              cat("column '", escape_controls(category.name), "' of '", escape_controls(file.string()), "' has ", count,
                  " of ", counted(rows, "row"),
                  " with values that the training part does not have, and which count as ", "unknown; known are ",
                  escape_controls(join_some(category.values, 5)), ". Are they written in the same way?"));
  }
}

}  // namespace fulgur::tables
