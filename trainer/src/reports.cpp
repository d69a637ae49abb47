#include "fulgur/trainer/reports.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "fulgur/core/text.h"

namespace fulgur {
namespace {

// Display width: UTF-8 continuation bytes take no column.
size_t width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string padded(std::string_view text, size_t columns) {
  std::string out(text);
  out.append(columns - std::min(columns, width(text)), ' ');
  return out;
}

double value_of(std::string_view name, std::span<const Metrics> columns) {
  std::vector<std::string> names;
  for (const Metrics& metrics : columns) {
    for (const auto& [known, value] : metrics) {
      if (known == name) return value;
      names.push_back(known);
    }
  }
  const std::string hint = did_you_mean(name, names);
  throw Error(cat("[trainer.report] there is no metric '", name, "'; there are: ", names.empty() ? "none" : join(names),
                  hint.empty() ? "." : hint));
}

}  // namespace

double FitReport::metric(std::string_view name) const { return value_of(name, {&metrics, 1}); }

double EvalReport::metric(std::string_view name) const { return value_of(name, loaders); }

std::string metrics_table(const std::string& title, const std::vector<Metrics>& columns) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> header{title};
  if (columns.size() == 1) {
    header.emplace_back("Value");
  } else {
    for (size_t c = 0; c < columns.size(); ++c) header.push_back(cat("DataLoader ", c));
  }
  for (size_t c = 0; c < columns.size(); ++c) {
    for (const auto& [name, value] : columns[c]) {
      const std::string shown = escape_controls(name);
      auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r[0] == shown; });
      if (row == rows.end()) {
        rows.emplace_back(columns.size() + 1);
        row = rows.end() - 1;
        (*row)[0] = shown;
      }
      (*row)[c + 1] = format_double(value);
    }
  }
  std::vector<size_t> widths;
  for (size_t c = 0; c < header.size(); ++c) {
    size_t most = width(header[c]);
    for (const auto& row : rows) most = std::max(most, width(row[c]));
    widths.push_back(most);
  }
  const auto rule = [&](const char* left, const char* middle, const char* right) {
    std::string line = left;
    for (size_t c = 0; c < widths.size(); ++c) {
      for (size_t i = 0; i < widths[c] + 2; ++i) line += "─";
      line += c + 1 < widths.size() ? middle : right;
    }
    return cat(line, "\n");
  };
  const auto line_of = [&](const std::vector<std::string>& cells) {
    std::string line = "│";
    for (size_t c = 0; c < cells.size(); ++c) line += cat(" ", padded(cells[c], widths[c]), " │");
    return cat(line, "\n");
  };
  std::string table = cat(rule("┌", "┬", "┐"), line_of(header), rule("├", "┼", "┤"));
  for (const auto& row : rows) table += line_of(row);
  return cat(table, rule("└", "┴", "┘"));
}

}  // namespace fulgur
