#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/history/run.h"

namespace fulgur::history {

/// A value of a run by its key (runs_table.h): a text, and a number if it is one.
struct RunField {
  std::string text;
  std::optional<double> number;
  std::vector<std::string> classes = {};  ///< of a key that names components: their classes, which the text lists
};

/// nullopt if the run has no value of the key.
std::optional<RunField> field_of(const Run& run, std::string_view key);

/// All keys of the runs, for messages.
std::vector<std::string> known_keys(const std::vector<Run>& runs);

/// `KEY OP VALUE`.
struct Condition {
  std::string key, op, value;
};

/// Throws a ConfigError if the expression cannot be read.
std::vector<Condition> parse_filter(const std::string& expression);

/// Throws a ConfigError if no value of these runs can fulfil the condition since it is of another type: a number and a
/// text, or an unknown status.
void check_condition(const std::vector<Run>& runs, const Condition& condition);

/// False if the run has no value of the key.
bool matches(const Run& run, const Condition& condition);

}  // namespace fulgur::history
