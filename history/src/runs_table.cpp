#include "fulgur/history/runs_table.h"

#include <algorithm>

#include "drawing/number_text.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "json_values.h"
#include "reading/config_keys.h"
#include "reading/shown_differences.h"
#include "run_fields.h"

namespace fulgur::history {
namespace {

// `key` has a value in at least one run; a mistyped key would else select nothing without a word.
void check_run_key(const std::vector<Run>& runs, const std::string& key) {
  const auto known = known_keys(runs);
  if (runs.empty() || std::find(known.begin(), known.end(), key) != known.end()) return;
  if (std::any_of(runs.begin(), runs.end(), [&](const Run& run) { return field_of(run, key).has_value(); })) return;
  throw ConfigError(cat("[history.runs] a key is a property of the runs, a metric or a key of the config; no run has '",
                        escape_controls(key), "'", as_sentence(did_you_mean(key, known)),
                        "--json shows the metrics, and `compare` the config."));
}

void sort_runs(std::vector<Run>& runs, std::string key) {
  if (key.empty()) return;
  bool largest_first = key.front() == '-';
  if (largest_first) key.erase(0, 1);
  check_run_key(runs, key);
  // The best run is first, and with `-best` the worst.
  const bool larger_is_better =
      key == "best" && !runs.empty() && runs.front().monitor && !runs.front().monitor->smaller_is_better;
  largest_first = largest_first != larger_is_better;
  struct Place {
    std::optional<RunField> field;
    size_t index;
  };
  std::vector<Place> places;
  for (size_t i = 0; i < runs.size(); ++i) {
    places.push_back({field_of(runs[i], key), i});
    if (auto& field = places.back().field; field && field->number && std::isnan(*field->number)) field.reset();
  }
  std::stable_sort(places.begin(), places.end(), [&](const Place& a, const Place& b) {
    if (!a.field || !b.field) return a.field.has_value() && !b.field.has_value();
    const RunField &x = largest_first ? *b.field : *a.field, &y = largest_first ? *a.field : *b.field;
    if (x.number.has_value() != y.number.has_value()) return x.number.has_value();
    return x.number ? *x.number < *y.number : key != "name" && x.text < y.text;
  });
  // Runs are in the order of their names, in which version_10 is after version_9.
  if (key == "name" && largest_first) std::reverse(places.begin(), places.end());
  std::vector<Run> sorted;
  for (const Place& place : places) sorted.push_back(std::move(runs[place.index]));
  runs = std::move(sorted);
}

std::string best_text(const Run& run) {
  const auto best = run.best();
  return best ? cat(escape_controls(run.monitor->metric), "=", value_text(best->first)) : "-";
}

// What a table has no room for: where a run is, and what it shows.
bool is_minor(std::string_view key) { return key == "trainer.default_root_dir" || key.starts_with("trainer.enable_"); }

// Components in a list inside another component, such as the transforms of images, are many: a table shows their
// classes.
std::string shown_component(const ShownDifferences::Entry& entry, const std::string& text) {
  return entry.key.find(".init_args.") == std::string::npos ? text : text.substr(0, text.find('('));
}

std::vector<std::string> differences_text(const std::vector<Run>& runs) {
  std::vector<const ConfigKeys*> configs;
  for (const Run& run : runs) configs.push_back(&run.config);
  auto [entries] = shown_differences(configs);
  std::erase_if(entries, [](const auto& entry) { return is_minor(entry.key); });
  std::vector<std::string> keys;
  for (const auto& entry : entries) keys.push_back(entry.key);
  const auto names = short_names(keys);
  std::vector<std::string> texts;
  for (size_t run = 0; run < runs.size(); ++run) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string& text = entries[i].texts[run];
      if (text == "-") continue;
      parts.push_back(
          escape_controls(entries[i].is_listed ? shown_component(entries[i], text) : cat(names[i], "=", text)));
    }
    texts.push_back(join(parts, " "));
  }
  return texts;
}

std::string fitted(const std::string& text, int64_t columns) {
  if (columns_of(text) <= columns) return text;
  if (columns <= 1) return "";
  return text.substr(0, fit_columns(text, columns - 1).bytes) + "…";
}

// Shortens the names, and then the last column, so that a line fits.
void fit_table(std::vector<TextRow>& rows, int64_t columns) {
  const auto total = [&] {
    int64_t sum = 0;
    for (const int64_t width : column_widths(rows)) sum += width + 2;
    return sum - 2;
  };
  const int64_t longest_name = std::max<int64_t>(columns / 3, 12);
  if (total() > columns)
    for (TextRow& row : rows) row.front() = fitted(row.front(), longest_name);
  const auto widths = column_widths(rows);
  int64_t before = 0;
  for (size_t i = 0; i + 1 < widths.size(); ++i) before += widths[i] + 2;
  for (TextRow& row : rows) {
    row.back() = fitted(row.back(), std::max<int64_t>(columns - before, 0));
  }
}

const char* colour_of(RunStatus status) {
  switch (status) {
    case RunStatus::running:
      return "\x1b[36m";
    case RunStatus::finished:
      return "\x1b[32m";
    case RunStatus::failed:
      return "\x1b[31m";
    case RunStatus::interrupted:
      break;
  }
  return "\x1b[33m";
}

}  // namespace

std::vector<Run> select_runs(std::vector<Run> runs, const RunsQuery& query) {
  const std::vector<Condition> conditions = parse_filter(query.filter);
  for (const Condition& condition : conditions) {
    check_run_key(runs, condition.key);
    check_condition(runs, condition);
  }
  for (const Condition& condition : conditions)
    std::erase_if(runs, [&](const Run& run) { return !matches(run, condition); });
  sort_runs(runs, query.sort);
  return runs;
}

std::string runs_table(const std::vector<Run>& runs, const TextStyle& style) {
  std::vector<TextRow> rows{{"run", "status", "epochs", "steps", "best", "time", "differs in"}};
  const auto differences = differences_text(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    std::vector<std::string> notes;
    if (!run.damage.empty())
      notes.emplace_back("damaged");
    else if (run.config.empty())
      notes.emplace_back("no config");
    if (!differences[i].empty()) notes.push_back(differences[i]);
    if (run.status == RunStatus::failed) notes.push_back(escape_controls(run.reason));
    rows.push_back({escape_controls(run.name), std::string(status_name(run.status)), cat(run.epochs), cat(run.steps),
                    best_text(run), duration_text(run.duration_s), join(notes, " · ")});
  }
  if (style.columns) fit_table(rows, *style.columns);
  const auto widths = column_widths(rows);
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::string line = aligned(rows[i], widths);
    line.erase(line.find_last_not_of(' ') + 1);
    if (style.columns) line = fitted(line, *style.columns);
    if (style.colour && i > 0) {
      const std::string& status = rows[i][1];
      // The second column begins after the first one, which is padded.
      const size_t at = padded(rows[i][0], widths[0]).size() + 2;
      if (at + status.size() <= line.size()) {
        line.insert(at + status.size(), "\x1b[0m");
        line.insert(at, colour_of(runs[i - 1].status));
      }
    }
    text += line + "\n";
  }
  return text;
}

std::string runs_json(const std::vector<Run>& runs) {
  std::vector<const ConfigKeys*> configs;
  for (const Run& run : runs) configs.push_back(&run.config);
  const auto keys = different_keys_of_runs(configs);
  OrderedJson all = OrderedJson::array();
  for (const Run& run : runs) {
    OrderedJson json = json_of_run(run);
    json["differs_in"] = OrderedJson::object();
    for (const std::string& key : keys) {
      const std::string* const text = find_key(run.config, key);
      json["differs_in"][key] = text ? OrderedJson(*text) : OrderedJson(nullptr);
    }
    all.push_back(std::move(json));
  }
  return json_text(all);
}

}  // namespace fulgur::history
