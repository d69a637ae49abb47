#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// A row of a file: a text, or the path of an image, and its label as it is written there; a label of a CSV file is
/// without the spaces and tabs around it.
struct LabelledRow {
  std::string value, label;
  int64_t line = 0;  ///< the first line of the row; the first line of the file is 1
};

/// The rows of a CSV file (RFC 4180, with a header) or a JSONL file (an object per line), in memory. Other columns and
/// keys are ignored, and so are blank lines. Errors are DataErrors that name file and line.
class FULGUR_API LabelledRows {
 public:
  enum class Format { csv, jsonl, by_content };  ///< by_content: JSONL if the first character of the file is `{`
  struct Options {
    std::string reader;            ///< begins the messages: `images.read_labelled_images`
    std::string value_column;      ///< texts in UTF-8, or bytes of paths
    std::string label_column;      ///< texts; in JSONL also whole numbers, true and false
    bool reads_labels = true;      ///< false: the label column may be absent
    bool values_are_texts = true;  ///< and must be UTF-8
    Format format = Format::by_content;
  };

  /// Throws for a file that cannot be read, is damaged, has no row, or has a row without a label.
  LabelledRows(std::filesystem::path path, Options options);

  const std::vector<LabelledRow>& rows() const { return rows_; }
  /// `'a.csv', line 3`.
  std::string place_of(const LabelledRow& row) const;
  /// Throws a DataError with `text`, file and line.
  [[noreturn]] void fail(int64_t line, std::string_view text) const;

  /// Whether all labels are whole numbers that int64 holds.
  bool labels_are_numbers() const;
  /// The different labels, sorted: as numbers if all of them are, else by their bytes. Numbers that are written in
  /// several ways, such as `1` and `01`, are one class with the shortest name.
  std::vector<std::string> classes() const;
  /// The place of each row's label in `classes`; `007` is the class `7` if there is no class `007`. `refuse` is called
  /// with a row whose label is no class, and must throw.
  std::vector<int64_t> labels_in(const std::vector<std::string>& classes,
                                 const std::function<void(const LabelledRow&)>& refuse) const;

 private:
  void read_csv(std::string_view text);
  void read_jsonl(std::string_view text);
  size_t column(const std::vector<std::string>& header, const std::string& name, int64_t line) const;
  void add(std::string value, std::string label, int64_t line);

  std::filesystem::path path_;
  Options options_;
  std::vector<LabelledRow> rows_;
};

}  // namespace fulgur::detail
