#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fulgur::detail {

/// A text of a file, and its label as it is written there.
struct LabelledRow {
  std::string text, label;
  int64_t row = 0;  ///< line of a JSONL file, row of a CSV file; the first one is 1
};

/// Reads a `.csv` file with a header, or a `.jsonl` file whose labels are texts, whole numbers, true or false. With an
/// empty `label_field`, labels are not read. Throws a
/// ConfigError for another extension, and a DataError that names file and row.
std::vector<LabelledRow> read_labelled_rows(const std::filesystem::path& path, const std::string& text_field,
                                            const std::string& label_field);

}  // namespace fulgur::detail
