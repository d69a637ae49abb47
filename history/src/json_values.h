#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "fulgur/history/run.h"

namespace fulgur::history {

using OrderedJson = nlohmann::ordered_json;

/// As reports of the program write numbers: those that are not finite become texts.
inline OrderedJson json_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return value;
}
inline OrderedJson json_number(const std::optional<double>& value) {
  return value ? json_number(*value) : OrderedJson(nullptr);
}

/// Names may come from outside: bytes that are not UTF-8 are replaced.
inline std::string json_text(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

/// Everything of a run but its config.
inline OrderedJson json_of_run(const Run& run) {
  OrderedJson json{{"name", run.name},
                   {"folder", run.folder.string()},
                   {"verb", run.verb},
                   {"status", status_name(run.status)},
                   {"reason", run.reason},
                   {"epochs", run.epochs},
                   {"steps", run.steps},
                   {"duration_s", json_number(run.duration_s)},
                   {"steps_per_s", json_number(run.steps_per_s())},
                   {"monitor", nullptr},
                   {"best", nullptr},
                   {"metrics", OrderedJson::object()}};
  if (run.monitor)
    json["monitor"] = {{"metric", run.monitor->metric}, {"mode", run.monitor->smaller_is_better ? "min" : "max"}};
  if (const auto best = run.best()) json["best"] = {{"value", best->first}, {"step", best->second}};
  for (const MetricValues& metric : run.metrics) {
    if (metric.count == 0) continue;
    json["metrics"][metric.name] = {{"last", json_number(metric.last)},
                                    {"min", json_number(metric.least)},
                                    {"max", json_number(metric.most)},
                                    {"count", metric.count}};
  }
  if (!run.damage.empty()) json["damage"] = run.damage;
  return json;
}

}  // namespace fulgur::history
