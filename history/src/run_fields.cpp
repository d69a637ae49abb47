#include "run_fields.h"

#include <algorithm>
#include <charconv>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "reading/config_keys.h"

namespace fulgur::history {
namespace {

constexpr const char* kRunKeys[] = {"name", "status", "reason", "epochs", "steps", "best", "monitor", "duration"};
// Those of two characters first: `<=` begins with `<`.
constexpr const char* kOperators[] = {"!=", "<=", ">=", "=", "<", ">", "~"};

std::optional<double> number_in(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

RunField of_text(const std::string& text) { return {text, number_in(text)}; }
RunField of_number(double value) { return {cat(value), value}; }

std::optional<RunField> own_field(const Run& run, std::string_view key) {
  if (key == "name") return of_text(run.name);
  if (key == "status") return of_text(std::string(status_name(run.status)));
  if (key == "reason" && !run.reason.empty()) return of_text(run.reason);
  if (key == "epochs") return RunField{cat(run.epochs), static_cast<double>(run.epochs)};
  if (key == "steps") return RunField{cat(run.steps), static_cast<double>(run.steps)};
  if (key == "monitor" && run.monitor) return of_text(run.monitor->metric);
  if (key == "duration" && run.duration_s) return of_number(*run.duration_s);
  if (const auto best = run.best(); key == "best" && best) return of_number(best->first);
  return std::nullopt;
}

/// The classes of the components `key`: `callbacks`, `model`, and `class_path` for all.
std::vector<std::string> classes_at(const Run& run, std::string_view key) {
  constexpr std::string_view kEnd = ".class_path";
  std::vector<std::string> classes;
  for (const auto& [name, text] : run.config) {
    if (!name.ends_with(kEnd)) continue;
    std::string_view place = std::string_view(name).substr(0, name.size() - kEnd.size());
    if (place.ends_with(']')) place = place.substr(0, place.rfind('['));
    const bool is_end =
        place.size() > key.size() && place.ends_with(key) && place[place.size() - key.size() - 1] == '.';
    if (key == kEnd.substr(1) || place == key || is_end) classes.push_back(text);
  }
  return classes;
}

[[noreturn]] void refuse_filter(const std::string& what, std::string_view filter, const std::string& hint = "") {
  throw ConfigError(cat("[history.filter] ", what, "; got '", escape_controls(trimmed(filter)), "'", as_sentence(hint),
                        "Write, for example, --filter 'status=finished and val_acc>0.9'."));
}

bool has_operator(std::string_view text) {
  return std::any_of(std::begin(kOperators), std::end(kOperators),
                     [&](std::string_view op) { return text.find(op) != std::string_view::npos; });
}

Condition parse_condition(std::string_view text) {
  for (size_t at = 0; at < text.size(); ++at) {
    for (const std::string_view op : kOperators) {
      if (!text.substr(at).starts_with(op)) continue;
      Condition condition{std::string(trimmed(text.substr(0, at))), std::string(op),
                          std::string(trimmed(text.substr(at + op.size())))};
      if (condition.key.empty() || condition.value.empty()) continue;
      if (std::string_view("=<>~!").find(condition.value.front()) != std::string_view::npos)
        refuse_filter("an operator is one of = != < <= > >= ~", text);
      if (const size_t other = condition.value.find(" or ");
          other != std::string::npos && has_operator(std::string_view(condition.value).substr(other)))
        refuse_filter("conditions are joined by 'and', and not by 'or'", text);
      return condition;
    }
  }
  refuse_filter("a filter is KEY OP VALUE, with OP one of = != < <= > >= ~", text);
}

}  // namespace

std::optional<RunField> field_of(const Run& run, std::string_view key) {
  if (std::find(std::begin(kRunKeys), std::end(kRunKeys), key) != std::end(kRunKeys)) return own_field(run, key);
  if (const MetricValues* metric = run.find_metric(key)) return of_number(metric->last);
  if (const std::string* whole = find_key(run.config, key)) return of_text(*whole);
  if (auto classes = classes_at(run, key); !classes.empty()) {
    const std::string text = join(classes);
    return RunField{text, std::nullopt, std::move(classes)};
  }
  for (const auto& [name, text] : run.config)
    if (name.size() > key.size() && name.ends_with(key) && name[name.size() - key.size() - 1] == '.')
      return of_text(text);
  return std::nullopt;
}

std::vector<std::string> known_keys(const std::vector<Run>& runs) {
  std::vector<std::string> keys(std::begin(kRunKeys), std::end(kRunKeys));
  const auto add = [&](const std::string& key) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  };
  for (const Run& run : runs) {
    for (const MetricValues& metric : run.metrics) add(metric.name);
    for (const auto& [key, text] : run.config) {
      add(key);
      add(key.substr(key.rfind('.') + 1));
    }
  }
  return keys;
}

std::vector<Condition> parse_filter(const std::string& expression) {
  constexpr std::string_view kAnd = " and ";
  std::vector<Condition> conditions;
  if (trimmed(expression).empty()) return conditions;
  const std::string_view text = expression;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(kAnd, begin), text.size());
    conditions.push_back(parse_condition(text.substr(begin, end - begin)));
    begin = end + kAnd.size();
  }
  return conditions;
}

void check_condition(const std::vector<Run>& runs, const Condition& condition) {
  const auto& [key, op, value] = condition;
  if (op == "~") return;
  const std::string whole = cat(key, op, value);
  if (key == "status") {
    std::vector<std::string> states;
    for (const RunStatus status : {RunStatus::running, RunStatus::finished, RunStatus::failed, RunStatus::interrupted})
      states.emplace_back(status_name(status));
    if (std::find(states.begin(), states.end(), value) == states.end())
      refuse_filter(cat("the status of a run is one of ", join(states)), whole, did_you_mean(value, states));
    return;
  }
  bool has_number = false, has_text = false;
  for (const Run& run : runs) {
    const auto field = field_of(run, key);
    if (!field || field->text == "null") continue;
    (field->number ? has_number : has_text) = true;
  }
  const bool is_number = number_in(value).has_value();
  if (has_number && !has_text && !is_number && value != "null")
    refuse_filter(cat("'", escape_controls(key), "' is a number, and is compared with a number"), whole);
  if (has_text && !has_number && is_number && op != "=" && op != "!=")
    refuse_filter(cat("'", escape_controls(key), "' is a text in these runs, and has no order with a number"), whole);
}

bool matches(const Run& run, const Condition& condition) {
  const auto field = field_of(run, condition.key);
  if (!field) return false;
  const std::string& op = condition.op;
  if (op == "~") return field->text.find(condition.value) != std::string::npos;
  const auto wanted = number_in(condition.value);
  const auto& classes = field->classes;
  const bool equal = field->number && wanted ? *field->number == *wanted
                     : classes.empty()       ? field->text == condition.value
                                       : std::find(classes.begin(), classes.end(), condition.value) != classes.end();
  if (op == "=") return equal;
  if (op == "!=") return !equal;
  const auto holds = [&](const auto& a, const auto& b) {
    return op == "<" ? a < b : op == "<=" ? a <= b : op == ">" ? a > b : a >= b;
  };
  // A number is not compared with a text.
  if (field->number.has_value() != wanted.has_value()) return false;
  return wanted ? holds(*field->number, *wanted) : holds(field->text, condition.value);
}

}  // namespace fulgur::history
