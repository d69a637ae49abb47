#include "files/labelled_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "unicode/characters.h"

namespace fulgur::detail {
namespace {

class RowReader {
 public:
  RowReader(const std::filesystem::path& path, const std::string& text_field, const std::string& label_field)
      : shown_(cat("'", escape_controls(path.string()), "'")), text_field_(text_field), label_field_(label_field) {
    std::optional<std::string> text;
    try {
      text = read_regular_file(path);
    } catch (const Error& error) {
      throw DataError(cat("[text.LabelledTextDataModule] ", error.what()));
    }
    if (!text) throw DataError(cat("[text.LabelledTextDataModule] the file must exist; ", shown_, " does not."));
    text_ = std::move(*text);
    if (text_.starts_with("\xef\xbb\xbf")) text_.erase(0, 3);
    require_utf8(text_, cat("[text.LabelledTextDataModule] ", shown_));
  }

  std::vector<LabelledRow> csv() {
    if (!text_.ends_with('\n')) text_ += '\n';
    size_t at = 0;
    const auto header = read_csv_row(text_, at);
    if (!header) fail(1, "the header must end", "a quoted field has no end");
    const size_t text = column(*header, text_field_);
    const size_t label = label_field_.empty() ? text : column(*header, label_field_);
    std::vector<LabelledRow> rows;
    for (int64_t number = 2; at < text_.size(); ++number) {
      auto fields = read_csv_row(text_, at);
      if (!fields) fail(number, "the file must end after a row", "a quoted field has no end");
      if (fields->size() == 1 && fields->front().empty()) continue;  // a blank line
      if (fields->size() != header->size())
        fail(number, cat("each row must have the ", header->size(), " fields of the header"),
             cat("it has ", fields->size()));
      std::string of_row = label_field_.empty() ? std::string() : std::move((*fields)[label]);
      rows.push_back({std::move((*fields)[text]), std::move(of_row), number});
    }
    return rows;
  }

  std::vector<LabelledRow> json_lines() const {
    std::vector<LabelledRow> rows;
    int64_t number = 0;
    for (size_t begin = 0; begin < text_.size();) {
      const size_t end = std::min(text_.find('\n', begin), text_.size());
      const std::string_view line = std::string_view(text_).substr(begin, end - begin);
      begin = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object()) fail(number, "a line must be a JSON object", "it is not one");
      for (const std::string* field : {&text_field_, &label_field_})
        if (!field->empty() && !json.contains(*field))
          fail(number, cat("a line must have '", *field, "'"), "it is absent");
      const nlohmann::json none = "";
      const auto &text = json[text_field_], &label = label_field_.empty() ? none : json[label_field_];
      if (!text.is_string()) fail(number, "the text must be a JSON text", cat("it is of type ", text.type_name()));
      if (!label.is_string() && !label.is_number_integer() && !label.is_boolean())
        fail(number, "the label must be a text, a whole number, true or false",
             cat("it is of type ", label.type_name()));
      rows.push_back({text.get<std::string>(), label.is_string() ? label.get<std::string>() : label.dump(), number});
    }
    return rows;
  }

 private:
  [[noreturn]] void fail(int64_t row, std::string_view rule, std::string_view found) const {
    throw DataError(cat("[text.LabelledTextDataModule] ", shown_, ", row ", row, ": ", rule, "; ", found, "."));
  }
  size_t column(const std::vector<std::string>& header, const std::string& name) const {
    const auto found = std::ranges::find(header, name);
    if (found == header.end())
      fail(1, cat("the header must have '", escape_controls(name), "'"),
           cat("it has ", escape_controls(join_some(header, 10))));
    return static_cast<size_t>(found - header.begin());
  }
  std::string shown_, text_;
  const std::string &text_field_, &label_field_;
};

}  // namespace

std::vector<LabelledRow> read_labelled_rows(const std::filesystem::path& path, const std::string& text_field,
                                            const std::string& label_field) {
  const std::string kind = path.extension().string();
  if (kind != ".csv" && kind != ".jsonl")
    throw ConfigError(cat("[text.LabelledTextDataModule] a file must be .csv or .jsonl; got '",
                          escape_controls(path.string()), "'."));
  RowReader reader(path, text_field, label_field);
  std::vector<LabelledRow> rows = kind == ".csv" ? reader.csv() : reader.json_lines();
  if (rows.empty())
    throw DataError(
        cat("[text.LabelledTextDataModule] a file must have a row; '", escape_controls(path.string()), "' has none."));
  return rows;
}

}  // namespace fulgur::detail
