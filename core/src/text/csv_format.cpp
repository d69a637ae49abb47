#include "fulgur/core/text/csv_format.h"

#include <cmath>

#include "fulgur/core/text/text.h"

namespace fulgur {

std::string csv_field(std::string_view text) {
  const bool space = !text.empty() && (text.front() == ' ' || text.back() == ' ');
  if (!space && text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string csv_row(const std::vector<std::string>& fields) {
  std::string row;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) row += ',';
    row += csv_field(fields[i]);
  }
  return row + '\n';
}

const char* csv_fault_text(CsvFault fault) {
  switch (fault) {
    case CsvFault::quote_in_field:
      return "has a quote inside a field that does not begin with one. Put the field in quotes, and double the quotes "
             "in it";
    case CsvFault::text_after_quote:
      return "has text after the closing quote of a field. Double the quotes inside a field";
    case CsvFault::lone_return:
      return "has a carriage return without a line feed. Put the field in quotes, or write line feeds";
    case CsvFault::nul:
      return "contains a zero byte. A CSV file is a text file";
    case CsvFault::incomplete:
      return "begins a quoted field that the file does not end";
    case CsvFault::none:
      break;
  }
  return "is damaged";
}

CsvScanner::CsvScanner(char delimiter, bool strict) : delimiter_(delimiter), strict_(strict) {
  for (const char c : {delimiter, '"', '\r', '\n', '\0'}) special_[static_cast<unsigned char>(c)] = true;
}

CsvFault CsvScanner::scan(std::string_view text, bool at_end) {
  fields_.clear();
  parts_.clear();
  joined_.clear();
  length_ = 0;
  line_feeds_ = 0;
  size_t i = 0, begin = 0;  // of the field, or of its bytes that are not yet in `joined_`
  size_t joined_begin = 0;  // of the field in `joined_`
  bool is_joined = false, quoted = false, was_quoted = false;
  const auto join = [&](size_t end) {
    if (!is_joined) joined_begin = joined_.size();
    is_joined = true;
    joined_.append(text, begin, end - begin);
  };
  const auto end_field = [&](size_t end) {
    if (is_joined) {
      joined_.append(text, begin, end - begin);
      parts_.push_back({joined_begin, joined_.size() - joined_begin, true});
    } else {
      parts_.push_back({begin, end - begin, false});
    }
    is_joined = was_quoted = false;
  };
  const auto end_record = [&](size_t length) {
    length_ = length;
    fields_.reserve(parts_.size());
    for (const Part& part : parts_)
      fields_.push_back((part.is_joined ? std::string_view(joined_) : text).substr(part.begin, part.size));
    return CsvFault::none;
  };
  while (i < text.size()) {
    if (quoted) {
      const char c = text[i];
      if (c == '\n') ++line_feeds_;
      if (c == '\0' && strict_) return CsvFault::nul;
      if (c != '"') {
        ++i;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        join(i + 1);
        begin = i += 2;
      } else if (i + 1 == text.size() && !at_end) {
        return CsvFault::incomplete;  // the next byte decides
      } else {
        quoted = false;
        was_quoted = true;
        // The field ends here, unless the text is lenient and more follows.
        const bool field_ends =
            i + 1 == text.size() || text[i + 1] == delimiter_ || text[i + 1] == '\n' || text[i + 1] == '\r';
        if (!field_ends && strict_) return CsvFault::text_after_quote;
        join(i);
        begin = ++i;
      }
      continue;
    }
    while (i < text.size() && !special_[static_cast<unsigned char>(text[i])]) ++i;
    if (i == text.size()) break;
    const char c = text[i];
    if (c == delimiter_) {
      end_field(i);
      begin = ++i;
    } else if (c == '\n') {
      end_field(i);
      ++line_feeds_;
      return end_record(i + 1);
    } else if (c == '"') {
      const bool at_start = i == begin && !is_joined && !was_quoted;
      if (strict_ && !at_start) return was_quoted ? CsvFault::text_after_quote : CsvFault::quote_in_field;
      if (!at_start) join(i);
      quoted = true;
      begin = ++i;
    } else if (c == '\r') {
      if (i + 1 == text.size() && !at_end) return CsvFault::incomplete;
      if (i + 1 < text.size() && text[i + 1] == '\n') {
        end_field(i);
        ++line_feeds_;
        return end_record(i + 2);
      }
      if (i + 1 == text.size()) {
        end_field(i);
        return end_record(i + 1);
      }
      if (strict_) return was_quoted ? CsvFault::text_after_quote : CsvFault::lone_return;
      ++i;
    } else {
      if (strict_) return CsvFault::nul;
      ++i;
    }
  }
  if (quoted || !at_end) return CsvFault::incomplete;
  end_field(i);
  return end_record(i);
}

std::optional<std::vector<std::string>> read_csv_row(std::string_view text, size_t& position) {
  CsvScanner scanner(',', /*strict=*/false);
  if (position > text.size() || scanner.scan(text.substr(position), /*at_end=*/false) != CsvFault::none)
    return std::nullopt;
  position += scanner.length();
  return std::vector<std::string>(scanner.fields().begin(), scanner.fields().end());
}

std::string csv_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return format_double(value);
}

}  // namespace fulgur
