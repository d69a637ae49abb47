#include "fulgur/history/sweep_state.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/yaml.h"
#include "json_values.h"
#include "reading/config_keys.h"

namespace fulgur::history {
namespace {

constexpr int kStateVersion = 1;

using SavedJson = nlohmann::json;

OrderedJson json_of_record(const TrialRecord& record) {
  OrderedJson rungs = OrderedJson::array();
  for (const auto& value : record.at_rungs) rungs.push_back(json_number(value));
  return {{"status", enum_text(record.status)},     {"target", record.target}, {"rungs", rungs},
          {"value", json_number(record.value)},     {"epochs", record.epochs}, {"steps", record.steps},
          {"seconds", json_number(record.seconds)}, {"reason", record.reason}, {"run", record.run},
          {"lacks_metric", record.lacks_metric}};
}

std::optional<double> number_of(const SavedJson& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<double>());
}

TrialRecord record_of(const SavedJson& json) {
  TrialRecord record;
  const auto status = enum_from<TrialStatus>(json.at("status").get<std::string>());
  if (!status) throw DataError("unknown status");
  record.status = *status;
  record.target = json.at("target").get<int64_t>();
  for (const SavedJson& value : json.at("rungs")) record.at_rungs.push_back(number_of(value));
  record.value = number_of(json.at("value"));
  record.epochs = json.at("epochs").get<int64_t>();
  record.steps = json.at("steps").get<int64_t>();
  record.seconds = number_of(json.at("seconds"));
  record.reason = json.at("reason").get<std::string>();
  record.run = json.at("run").get<std::string>();
  record.lacks_metric = json.value("lacks_metric", false);  // older files do not have it
  if (record.target < 0) throw DataError("negative target");
  return record;
}

ConfigNode nodes_of(const std::string& yaml, const std::string& name) {
  Problems problems;
  ConfigNode node = parse_yaml(yaml, name, problems);
  problems.throw_if_any();
  return node;
}

/// A value in a list; quotes that change nothing do not count.
std::string exact_item(const ConfigNode& item) {
  const std::string text = override_text(item);
  const bool is_ambiguous = item.is_scalar() && text.find_first_of(",[]{}") != std::string::npos;
  return is_ambiguous ? cat("\"", text, "\"") : text;
}

/// Values that mean something else have different texts: `1` and `"1"`, `[1, 2]` and `["1, 2"]`.
ConfigKeys exact_keys(const ConfigNode& node) { return flatten(node, override_text, exact_item); }

/// They rank the trials, and do not change what a trial trains.
bool ranks_trials(const std::string& key) { return key == "metric" || key == "mode" || key == "value"; }

bool halving_has_compared(const SweepState& state) {
  return std::any_of(state.trials.begin(), state.trials.end(),
                     [](const TrialRecord& record) { return !record.at_rungs.empty(); });
}

std::string lines_of_differences(const std::string& a, const std::string& b, const std::string& name,
                                 bool ranking_may_differ = false) {
  if (a == b) return "";
  const ConfigKeys before = exact_keys(nodes_of(a, name)), now = exact_keys(nodes_of(b, name));
  const auto text_of = [](const ConfigKeys& keys, const std::string& key) {
    const std::string* text = find_key(keys, key);
    return text ? escape_controls(*text) : std::string("not set");
  };
  std::string lines;
  for (const std::string& key : different_keys({&before, &now})) {
    if (ranking_may_differ && ranks_trials(key)) continue;
    lines += cat("\n", name, ": ", escape_controls(key), ": ", text_of(before, key), " in the sweep's folder, ",
                 text_of(now, key), " now");
  }
  return lines;
}

/// The first trial that has other values, although all keys are the same: the order of `space` numbers the trials.
std::string line_of_moved_trials(const SweepState& saved, const SweepState& given) {
  if (saved.sweep == given.sweep) return "";
  const SweepPlan before = plan_of(saved), now = plan_of(given);
  const auto sorted = [](const SweepTrial& trial) {
    auto overrides = trial.overrides;
    std::stable_sort(overrides.begin(), overrides.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return overrides;
  };
  for (size_t i = 0; i < std::min(before.trials.size(), now.trials.size()); ++i)
    if (sorted(before.trials[i]) != sorted(now.trials[i]))
      return cat("\nsweep: the order of the keys in space, which numbers the trials: trial ", i, " is ",
                 trial_text(before, before.trials[i]), " in the sweep's folder, ", trial_text(now, now.trials[i]),
                 " now");
  return "";
}

}  // namespace

std::string sweep_json(const SweepState& state) {
  OrderedJson json{{"version", kStateVersion},
                   {"sweep", state.sweep},
                   {"config", state.config},
                   {"length", state.length ? OrderedJson(*state.length) : OrderedJson(nullptr)},
                   {"threads", state.threads ? OrderedJson(*state.threads) : OrderedJson(nullptr)},
                   {"environment", state.environment},
                   {"trials", OrderedJson::array()}};
  for (const TrialRecord& record : state.trials) json["trials"].push_back(json_of_record(record));
  return json_text(json);
}

SweepState parse_sweep_json(std::string_view text, const std::filesystem::path& file) {
  const auto damaged = [&](std::string_view why) {
    return DataError(cat("[sweep.state] ", escape_controls(file.string()), " is damaged: ", why,
                         ". Remove it to begin the sweep again, or choose another --dir."));
  };
  try {
    const SavedJson json = SavedJson::parse(text);
    if (json.at("version") != kStateVersion) throw damaged("it has another version");
    SweepState state{json.at("sweep"), json.at("config"), std::nullopt, {}, {}};
    if (!json.at("length").is_null()) state.length = json.at("length").get<int64_t>();
    if (const auto threads = json.find("threads"); threads != json.end() && !threads->is_null())
      state.threads = threads->get<int64_t>();
    state.environment = json.value("environment", std::map<std::string, std::string>());  // older files lack it
    if (state.threads.value_or(1) < 1) throw DataError("the number of threads is below 1");
    for (const SavedJson& record : json.at("trials")) state.trials.push_back(record_of(record));
    const size_t expected = plan_of(state).trials.size();
    if (state.trials.size() != expected)
      throw DataError(cat("it has ", state.trials.size(), " trials, and the sweep has ", expected));
    return state;
  } catch (const nlohmann::json::exception& error) {
    throw damaged(first_line(error.what()));
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with("[sweep.state]")) throw;
    throw damaged(error.what());
  }
}

SweepPlan plan_of(const SweepState& state) {
  return plan_sweep(read_sweep(nodes_of(state.sweep, "sweep")), state.length);
}

std::string sweep_differences(const SweepState& saved, const SweepState& given) {
  std::string lines = lines_of_differences(saved.sweep, given.sweep, "sweep", !halving_has_compared(saved));
  lines += lines_of_differences(saved.config, given.config, "config");
  for (const auto& [name, hash] : saved.environment)
    if (const auto now = given.environment.find(name); now != given.environment.end() && now->second != hash)
      lines += cat("\nconfig: ${env:", escape_controls(name), "} had another value when the sweep began");
  if (lines.empty() && saved.length != given.length)
    lines = cat("\nconfig: the length of the run: ", saved.length.value_or(0), " in the sweep's folder, ",
                given.length.value_or(0), " now");
  return lines.empty() ? line_of_moved_trials(saved, given) : lines;
}

bool is_ranked_otherwise(const SweepState& saved, const SweepState& given) {
  if (saved.sweep == given.sweep) return false;
  const SweepSpec before = plan_of(saved).spec, now = plan_of(given).spec;
  return before.metric != now.metric || before.mode != now.mode || before.value != now.value;
}

void rank_again(const SweepPlan& plan, const std::filesystem::path& sweep_folder, std::vector<TrialRecord>& trials) {
  for (size_t i = 0; i < trials.size(); ++i) {
    TrialRecord& record = trials[i];
    const auto index = static_cast<int64_t>(i);
    if (record.status != TrialStatus::failed || !record.lacks_metric) {
      record = collected_trial(plan, sweep_folder, index, record);
      continue;
    }
    TrialRecord read = record;
    const TrialStatus found = read_trial(plan.spec, sweep_folder, index, read);
    if (found == TrialStatus::completed || found == TrialStatus::failed) {
      record = read;
      record.status = found;
    } else if (!plan.rungs.empty()) {
      // Its run is not finished: it is started again, and ends at once, at its rung.
      record.status = TrialStatus::interrupted;
      record.reason.clear();
      record.lacks_metric = false;
    }
  }
}

}  // namespace fulgur::history
