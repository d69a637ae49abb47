#include "report_tables.h"

#include <algorithm>

#include "drawing/html.h"
#include "drawing/number_text.h"
#include "fulgur/core/text/text.h"
#include "reading/config_keys.h"
#include "reading/shown_differences.h"
#include "report_charts.h"

namespace fulgur::history {
namespace {

// So that the page stays small whatever the run folder contains.
constexpr size_t kMostKeys = 1000, kMostValues = 1000, kMostCheckpoints = 100, kMostConfigs = 4;

std::string shown_html(const std::string& text) { return html_escaped(shown_name(text)); }

std::string head_row(const std::vector<std::string>& cells) {
  std::string out = "<tr>";
  for (const std::string& cell : cells) out += cat("<th>", shown_html(cell), "</th>");
  return out + "</tr>\n";
}

std::string html_row(const std::vector<std::string>& cells) {
  std::string out = "<tr>";
  for (const std::string& cell : cells) out += cat("<td class=\"number\">", shown_html(cell), "</td>");
  return out + "</tr>\n";
}

std::string table_section(const char* title, const std::string& rows, const std::string& note = "") {
  return cat("<section><h2>", title, "</h2><div class=\"scroll\"><table>\n", rows, "</table></div>",
             note.empty() ? "" : cat("<p class=\"note\">", note, "</p>"), "</section>\n");
}

std::vector<std::string> names_with(const char* first, const std::vector<RunCurves>& runs) {
  std::vector<std::string> cells{first};
  for (const RunCurves& run : runs) cells.push_back(run.run.name);
  return cells;
}

std::string left_out(size_t count, size_t shown, const char* what) {
  return count > shown ? cat(count - shown, " more ", what, " are not shown.") : "";
}

}  // namespace

std::string summary_section(const std::vector<RunCurves>& runs) {
  std::string rows = head_row({"run", "status", "epochs", "steps", "best", "time", "steps/s"});
  std::string errors;
  for (const RunCurves& one : runs) {
    const Run& run = one.run;
    const auto best = run.best();
    const std::string status(status_name(run.status));
    rows += cat(
        "<tr><td class=\"wide\">", shown_html(run.name), "</td><td class=\"", status, "\">", run.status_text(),
        "</td><td>", run.is_fit() ? cat(run.epochs) : "-", "</td><td>", run.steps, "</td><td class=\"wide\">",
        best ? shown_html(cat(run.monitor->metric, " = ", value_text(best->first), " at step ", best->second)) : "-",
        "</td><td>", duration_text(run.duration_s), "</td><td>", value_text(run.steps_per_s()), "</td></tr>\n");
    if (!run.reason.empty())
      errors +=
          cat("<p class=\"note\">", shown_html(run.name),
              run.status == RunStatus::failed ? " failed: " : " stopped: ", html_escaped(run.reason.substr(0, 2000)),
              "</p>\n");
  }
  return cat("<section><div class=\"scroll\"><table>\n", rows, "</table></div>", errors, "</section>\n");
}

std::string metrics_section(const std::vector<RunCurves>& runs) {
  const size_t most = std::max<size_t>(kMostValues / runs.size(), 10);
  std::vector<std::string> names;
  for (const RunCurves& run : runs)
    for (const MetricValues& metric : run.run.metrics)
      if (names.size() <= most && metric.count > 0 && std::find(names.begin(), names.end(), metric.name) == names.end())
        names.push_back(metric.name);
  const size_t shown = std::min(names.size(), most);
  std::string rows = head_row({"metric", "run", "last", "at step", "smallest", "at step", "largest", "at step"});
  for (size_t i = 0; i < shown; ++i) {
    for (const RunCurves& run : runs) {
      const MetricValues* const metric = run.run.find_metric(names[i]);
      if (!metric) continue;
      const auto step = [&](const auto& value, int64_t at) { return value ? cat(at) : std::string("-"); };
      rows += html_row({names[i], run.run.name, value_text(metric->last), cat(metric->last_step),
                        value_text(metric->least), step(metric->least, metric->least_step), value_text(metric->most),
                        step(metric->most, metric->most_step)});
    }
  }
  return names.empty() ? "" : table_section("Values", rows, names.size() > shown ? "More metrics are not shown." : "");
}

std::string checkpoints_section(const std::vector<RunCurves>& runs) {
  std::string rows = head_row({"run", "checkpoint", "epoch", "step", "time", "size", "metrics", ""});
  size_t count = 0, shown = 0;
  const size_t most = std::max<size_t>(kMostCheckpoints / std::max<size_t>(runs.size(), 1), 4);
  for (const RunCurves& run : runs) {
    const auto& all = run.run.checkpoints;
    count += all.size();
    for (size_t i = all.size() - std::min(all.size(), most); i < all.size(); ++i, ++shown) {
      const CheckpointEntry& entry = all[i];
      std::vector<std::string> marks, metrics;
      if (entry.is_best) marks.emplace_back("best");
      if (entry.is_last) marks.emplace_back("last");
      if (entry.weights_only) marks.emplace_back("weights only");
      if (!entry.problem.empty()) marks.push_back(entry.problem);
      for (const auto& [name, value] : entry.metrics) metrics.push_back(cat(name, "=", value_text(value)));
      const bool good = entry.problem.empty();
      rows += html_row({run.run.name, entry.name, good ? cat(entry.epoch) : "-", good ? cat(entry.step) : "-",
                        duration_text(entry.fit_time_s), good ? bytes_text(entry.bytes) : "-", join(metrics, " "),
                        join(marks)});
    }
  }
  return count == 0 ? "" : table_section("Checkpoints", rows, left_out(count, shown, "older checkpoints"));
}

std::string config_section(const std::vector<RunCurves>& runs) {
  std::string out;
  std::vector<const ConfigKeys*> configs;
  for (const RunCurves& run : runs) configs.push_back(&run.run.config);
  if (runs.size() > 1) {
    const ShownDifferences differences = shown_differences(configs);
    const auto& entries = differences.entries;
    std::string rows = head_row(names_with("option", runs));
    const size_t shown = std::min(entries.size(), std::max<size_t>(kMostKeys / runs.size(), 10));
    for (size_t i = 0; i < shown; ++i) {
      std::vector<std::string> cells{entries[i].key};
      cells.insert(cells.end(), entries[i].texts.begin(), entries[i].texts.end());
      rows += html_row(cells);
    }
    out += entries.empty() ? "<section><h2>Options that differ</h2><p>The configs are the same.</p></section>\n"
                           : table_section("Options that differ", rows, left_out(entries.size(), shown, "options"));
  }
  std::string all;
  for (size_t r = 0; r < std::min(runs.size(), kMostConfigs); ++r) {
    if (configs[r]->empty()) continue;
    const size_t shown = std::min(configs[r]->size(), kMostKeys);
    all +=
        cat("<details><summary>Config of ", shown_html(runs[r].run.name), "</summary><div class=\"scroll\"><table>\n");
    for (size_t i = 0; i < shown; ++i) all += html_row({(*configs[r])[i].first, (*configs[r])[i].second});
    all += cat("</table></div><p class=\"note\">", left_out(configs[r]->size(), shown, "options"), "</p></details>\n");
  }
  return all.empty() ? out : cat(out, "<section><h2>Config</h2>", all, "</section>\n");
}

std::string system_section(const std::vector<RunCurves>& runs) {
  std::vector<std::string> names;
  const auto entries_of = [](const Run& run) {
    auto entries = run.system;
    for (const char* key : {"trainer.strategy.class_path", "trainer.precision.class_path"})
      if (const std::string* text = find_key(run.config, key))
        entries.emplace_back(
            std::string_view(key).find("strategy") != std::string_view::npos ? "strategy" : "precision", *text);
    return entries;
  };
  for (const RunCurves& run : runs)
    for (const auto& [name, text] : entries_of(run.run))
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  std::string rows = head_row(names_with("", runs));
  for (const std::string& name : names) {
    std::vector<std::string> cells{name};
    for (const RunCurves& run : runs) {
      const auto entries = entries_of(run.run);
      const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.first == name; });
      cells.push_back(found == entries.end() ? "-" : found->second);
    }
    rows += html_row(cells);
  }
  return names.empty() ? "" : table_section("System", rows);
}

}  // namespace fulgur::history
