#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/options/fields.h"
#include "fulgur/core/state/batch.h"

namespace fulgur::detail {

/// Declares the two options that describe the columns of a table.
void table_input_fields(Fields& f, int64_t& num_numbers, std::vector<int64_t>& cardinalities);

/// Throws a ConfigError if there is no column.
void check_table_columns(int64_t num_numbers, const std::vector<int64_t>& cardinalities, const char* component);

/// The numbers of a batch (N, num_numbers): `numbers` of a table, which also has `categories` (N, C), or `input` (N, …)
/// of arrays, which have no categories. Throws a ConfigError for a batch with other entries or of another width.
Tensor table_numbers(const Batch& batch, int64_t num_numbers, const std::vector<int64_t>& cardinalities,
                     const char* component);

/// Rows of `weight` (cardinality, size) for column `column` of `categories` (N, C): (N, size). On the CPU, throws a
/// DataError for a number out of range.
Tensor embed_category(const Tensor& weight, const Tensor& categories, int64_t column, const char* component);

}  // namespace fulgur::detail
