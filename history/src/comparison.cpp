#include "fulgur/history/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "drawing/number_text.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "json_values.h"
#include "reading/config_keys.h"
#include "reading/shown_differences.h"

namespace fulgur::history {
namespace {

using Pair = std::array<const Run*, 2>;

std::vector<std::string> metrics_of_both(const Pair& runs) {
  std::vector<std::string> names;
  for (const Run* run : runs)
    for (const MetricValues& metric : run->metrics)
      if (metric.count > 0 && std::find(names.begin(), names.end(), metric.name) == names.end())
        names.push_back(metric.name);
  return names;
}

/// b - a, with its sign; empty if one of them is missing or not finite.
std::string change_text(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b || !std::isfinite(*b - *a)) return "";
  const double change = *b - *a;
  const std::string share =
      *a != 0 && std::isfinite(change / *a)
          ? cat(" (", change / *a < 0 ? "" : "+", format_fixed(100 * change / std::abs(*a), 1), " %)")
          : "";
  return cat(change < 0 ? "" : "+", value_text(change), share);
}

std::optional<double> last_of(const Run& run, const std::string& metric) {
  const MetricValues* const values = run.find_metric(metric);
  return values ? std::optional(values->last) : std::nullopt;
}

std::optional<double> best_of(const Run& run) {
  const auto best = run.best();
  return best ? std::optional(best->first) : std::nullopt;
}

/// Which run has the better value of the metric that both monitor: 0 or 1; nullopt if that cannot be said.
std::optional<size_t> better_run(const Pair& runs) {
  const auto a = best_of(*runs[0]), b = best_of(*runs[1]);
  if (!a || !b || *a == *b || runs[0]->monitor->metric != runs[1]->monitor->metric ||
      runs[0]->monitor->smaller_is_better != runs[1]->monitor->smaller_is_better)
    return std::nullopt;
  return (*a < *b) == runs[0]->monitor->smaller_is_better ? 0 : 1;
}

std::vector<TextRow> rows_of(const Pair& runs) {
  const Run &a = *runs[0], &b = *runs[1];
  std::vector<TextRow> rows{{"", escape_controls(a.name), escape_controls(b.name), "change"}};
  const auto add = [&](std::string name, std::string x, std::string y, std::string change = "") {
    rows.push_back({std::move(name), std::move(x), std::move(y), std::move(change)});
  };
  const auto add_number = [&](std::string name, const std::optional<double>& x, const std::optional<double>& y) {
    add(std::move(name), value_text(x), value_text(y), change_text(x, y));
  };
  add("status", a.status_text(), b.status_text());
  const auto epochs_of = [](const Run& run) { return run.is_fit() ? cat(run.epochs) : std::string("-"); };
  if (a.is_fit() || b.is_fit()) add("epochs", epochs_of(a), epochs_of(b));
  add("steps", cat(a.steps), cat(b.steps));
  add("time", duration_text(a.duration_s), duration_text(b.duration_s), change_text(a.duration_s, b.duration_s));
  add_number("steps/s", a.steps_per_s(), b.steps_per_s());
  const auto better = better_run(runs);
  const auto best_cell = [&](size_t i) {
    const auto best = runs[i]->best();
    if (!best) return std::string("-");
    return cat(escape_controls(runs[i]->monitor->metric), "=", value_text(best->first), " at step ", best->second,
               better == i ? " (better)" : "");
  };
  const bool same_monitor = a.monitor && b.monitor && a.monitor->metric == b.monitor->metric;
  add("best", best_cell(0), best_cell(1), same_monitor ? change_text(best_of(a), best_of(b)) : "");
  for (const std::string& name : metrics_of_both(runs))
    add_number(cat("last ", escape_controls(name)), last_of(a, name), last_of(b, name));
  const ShownDifferences differences = shown_differences({&a.config, &b.config});
  for (const ShownDifferences::Entry& entry : differences.entries)
    add(escape_controls(entry.key), escape_controls(entry.texts[0]), escape_controls(entry.texts[1]));
  return rows;
}

std::string cut(const std::string& text, int64_t columns) {
  if (columns_of(text) <= columns) return text;
  return columns < 1 ? "" : text.substr(0, fit_columns(text, columns - 1).bytes) + "…";
}

}  // namespace

std::string comparison_text(const Run& a, const Run& b, const TextStyle& style) {
  auto rows = rows_of({&a, &b});
  if (style.columns)
    for (TextRow& row : rows)
      for (size_t i = 0; i < 3; ++i) row[i] = cut(row[i], std::max<int64_t>(*style.columns / 4, 8));
  const auto widths = column_widths(rows);
  std::string text;
  for (const TextRow& row : rows) {
    std::string line = aligned(row, widths);
    line.erase(line.find_last_not_of(' ') + 1);
    text += (style.columns ? cut(line, *style.columns) : line) + "\n";
  }
  for (const Run* run : {&a, &b})
    if (const std::string why = why_no_log(*run); !why.empty())
      text += cat(escape_controls(run->name), ": ", escape_controls(why), "\n");
  for (const Run* run : {&a, &b})
    if (run->config.empty())
      text += cat(escape_controls(run->name), ": the run has no config that could be compared\n");
  if (!a.config.empty() && !b.config.empty() && different_keys({&a.config, &b.config}).empty())
    text += "The configs are the same.\n";
  return text;
}

std::string comparison_json(const Run& a, const Run& b) {
  const Pair runs{&a, &b};
  OrderedJson json{{"a", json_of_run(a)}, {"b", json_of_run(b)}, {"config", OrderedJson::object()}};
  for (const std::string& key : different_keys_of_runs({&a.config, &b.config})) {
    OrderedJson values = OrderedJson::array();
    for (const Run* run : runs) {
      const std::string* const found = find_key(run->config, key);
      values.push_back(found ? OrderedJson(*found) : OrderedJson(nullptr));
    }
    json["config"][key] = std::move(values);
  }
  const auto better = better_run(runs);
  json["better"] = better ? OrderedJson(*better == 0 ? "a" : "b") : OrderedJson(nullptr);
  json["metrics"] = OrderedJson::object();
  for (const std::string& name : metrics_of_both(runs)) {
    const auto x = last_of(a, name), y = last_of(b, name);
    OrderedJson& values = json["metrics"][name];
    values = {{"a", json_number(x)}, {"b", json_number(y)}, {"change", nullptr}};
    if (x && y) values["change"] = json_number(*y - *x);
  }
  return json_text(json);
}

}  // namespace fulgur::history
