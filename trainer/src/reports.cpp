#include "fulgur/trainer/reports.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"

namespace fulgur {
namespace {

double value_of(std::string_view name, std::span<const Metrics> columns) {
  std::vector<std::string> names;
  for (const Metrics& metrics : columns) {
    for (const auto& [known, value] : metrics) {
      if (known == name) return value;
      names.push_back(known);
    }
  }
  const std::string hint = did_you_mean(name, names);
  throw Error(cat("[trainer.report] there is no metric '", name,
                  "'; the metrics are: ", names.empty() ? "none" : join(names), hint.empty() ? "." : hint));
}

}  // namespace

double FitReport::metric(std::string_view name) const { return value_of(name, {&metrics, 1}); }

double EvalReport::metric(std::string_view name) const { return value_of(name, loaders); }

std::string metrics_table(const std::string& title, const std::vector<Metrics>& columns) {
  std::vector<TextRow> rows;
  std::vector<std::string> header{title};
  if (columns.size() == 1) {
    header.emplace_back("Value");
  } else {
    for (size_t c = 0; c < columns.size(); ++c) header.push_back(cat("DataLoader ", c));
  }
  for (size_t c = 0; c < columns.size(); ++c) {
    for (const auto& [name, value] : columns[c]) {
      const std::string shown = escape_controls(name);
      auto row = std::ranges::find_if(rows, [&](const auto& r) { return r[0] == shown; });
      if (row == rows.end()) {
        rows.emplace_back(columns.size() + 1);
        row = rows.end() - 1;
        (*row)[0] = shown;
      }
      (*row)[c + 1] = std::isfinite(value) ? format_double(value) : format_fixed(value, 0);
    }
  }
  std::vector<TextRow> all = rows;
  all.push_back(header);
  const std::vector<int64_t> widths = column_widths(all);
  const auto rule = [&](const char* left, const char* middle, const char* right) {
    std::string line = left;
    for (size_t c = 0; c < widths.size(); ++c) {
      for (int64_t i = 0; i < widths[c] + 2; ++i) line += "─";
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
