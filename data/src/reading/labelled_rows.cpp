#include "fulgur/data/labelled_rows.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

// A header that is one name with another usual delimiter inside.
std::string other_delimiter(const std::vector<std::string>& header) {
  if (header.size() != 1) return {};
  for (const auto& [delimiter, shown] : {std::pair(';', ";"), {'\t', "\\t"}, {'|', "|"}})
    if (header.front().find(delimiter) != std::string::npos)
      return cat(". Columns must be separated by commas; is the delimiter of this file \"", shown,
                 "\"? Save the file with commas");
  return {};
}

std::optional<int64_t> label_number(const std::string& label) { return parse_whole<int64_t>(label); }

}  // namespace

LabelledRows::LabelledRows(std::filesystem::path path, Options options)
    : path_(std::move(path)), options_(std::move(options)) {
  std::optional<std::string> text;
  try {
    text = read_regular_file(path_);
  } catch (const Error& error) {
    throw DataError(cat("[", options_.reader, "] the file of labels must be readable. ", error.what()));
  }
  if (!text)
    throw DataError(cat("[", options_.reader, "] the file of labels must exist; '", escape_controls(path_.string()),
                        "' does not. Check the path."));
  std::string_view rest = *text;
  if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);
  const size_t first = rest.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) fail(1, "the file must have rows; it is empty");
  if (options_.format == Format::jsonl || (options_.format == Format::by_content && rest[first] == '{'))
    read_jsonl(rest);
  else
    read_csv(rest);
  if (rows_.empty()) fail(1, "the file must have rows; it has no line but its header");
}

void LabelledRows::fail(int64_t line, std::string_view text) const {
  throw DataError(cat("[", options_.reader, "] ", text, "; file '", escape_controls(path_.string()), "', line ", line,
                      ". Correct the file."));
}

std::string LabelledRows::place_of(const LabelledRow& row) const {
  return cat("'", escape_controls(path_.string()), "', line ", row.line);
}

void LabelledRows::add(std::string value, std::string label, int64_t line) {
  if (options_.values_are_texts && !is_utf8(value))
    fail(line, cat("the column '", options_.value_column, "' must be UTF-8"));
  if (options_.reads_labels && label.empty())
    fail(line, cat("the column '", options_.label_column, "' must have a label; it is empty"));
  if (!is_utf8(label)) fail(line, "labels must be UTF-8");
  rows_.push_back({std::move(value), std::move(label), line});
}

void LabelledRows::read_csv(std::string_view text) {
  CsvScanner scanner;
  std::vector<std::string> header;
  size_t value_column = 0, label_column = 0;
  for (int64_t line = 1; !text.empty(); line += scanner.line_feeds(), text.remove_prefix(scanner.length())) {
    if (const CsvFault fault = scanner.scan(text, /*at_end=*/true); fault != CsvFault::none)
      fail(fault == CsvFault::incomplete ? line : line + scanner.line_feeds(), cat("the line ", csv_fault_text(fault)));
    const std::vector<std::string_view>& fields = scanner.fields();
    if (fields.size() == 1 && fields.front().empty()) continue;  // a blank line
    if (header.empty()) {
      header.assign(fields.begin(), fields.end());
      value_column = column(header, options_.value_column, line);
      if (options_.reads_labels) label_column = column(header, options_.label_column, line);
      continue;
    }
    if (fields.size() != header.size())
      fail(line, cat("each line must have as many columns as the header, ", header.size(), "; got ", fields.size()));
    add(std::string(fields[value_column]), options_.reads_labels ? std::string(trimmed(fields[label_column])) : "",
        line);
  }
}

size_t LabelledRows::column(const std::vector<std::string>& header, const std::string& name, int64_t line) const {
  const auto found = std::ranges::find(header, name);
  if (found == header.end()) {
    const std::string delimiter = other_delimiter(header);
    fail(line, cat("the first line must name the column '", escape_controls(name), "'; it has ",
                   escape_controls(join_some(header, 20)), delimiter.empty() ? did_you_mean(name, header) : delimiter));
  }
  if (std::find(found + 1, header.end(), name) != header.end())
    fail(line, cat("the first line must name the column '", escape_controls(name), "' once; it does so twice"));
  return static_cast<size_t>(found - header.begin());
}

void LabelledRows::read_jsonl(std::string_view text) {
  for (int64_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view record = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (record.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto object = nlohmann::json::parse(record, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) fail(line, "each line must be a JSON object");
    const auto value = object.find(options_.value_column);
    if (value == object.end() || !value->is_string())
      fail(line, cat("the key '", options_.value_column, "' must be there, with a text"));
    std::string label;
    if (options_.reads_labels) {
      const auto given = object.find(options_.label_column);
      if (given == object.end() || !(given->is_string() || given->is_number_integer() || given->is_boolean()))
        fail(line,
             cat("the key '", options_.label_column, "' must be there, with a text, a whole number, true or false"));
      label = given->is_string() ? given->get<std::string>() : given->dump();
    }
    add(value->get<std::string>(), std::move(label), line);
  }
}

bool LabelledRows::labels_are_numbers() const {
  return std::ranges::all_of(rows_, [](const LabelledRow& row) { return label_number(row.label).has_value(); });
}

std::vector<std::string> LabelledRows::classes() const {
  std::set<std::string> labels;
  for (const LabelledRow& row : rows_) labels.insert(row.label);
  if (!labels_are_numbers()) return {labels.begin(), labels.end()};
  // `1` and `01` are one class, which has the name that `labels_in` finds for both.
  std::map<int64_t, std::string> numbers;
  for (const std::string& label : labels) {
    const int64_t number = *label_number(label);
    const auto [place, is_new] = numbers.emplace(number, label);
    if (!is_new) place->second = std::to_string(number);
  }
  std::vector<std::string> sorted;
  for (auto& [number, label] : numbers) sorted.push_back(std::move(label));
  return sorted;
}

std::vector<int64_t> LabelledRows::labels_in(const std::vector<std::string>& classes,
                                             const std::function<void(const LabelledRow&)>& refuse) const {
  std::map<std::string, int64_t, std::less<>> numbers;
  for (size_t i = 0; i < classes.size(); ++i) numbers.emplace(classes[i], static_cast<int64_t>(i));
  // Classes of older checkpoints may have spaces around their names.
  for (size_t i = 0; i < classes.size(); ++i) numbers.emplace(trimmed(classes[i]), static_cast<int64_t>(i));
  std::vector<int64_t> labels;
  labels.reserve(rows_.size());
  for (const LabelledRow& row : rows_) {
    auto found = numbers.find(row.label);
    if (const auto number = label_number(row.label); number && found == numbers.end())
      found = numbers.find(std::to_string(*number));
    if (found == numbers.end()) {
      refuse(row);
      throw Error("[data.LabelledRows] refuse must throw.");
    }
    labels.push_back(found->second);
  }
  return labels;
}

}  // namespace fulgur::detail
