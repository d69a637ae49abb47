#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fulgur::test {

/// A small run that a seed makes up: a config as JSON, without what is the same in all runs. `events` has the options
/// of DifferentialEvents. A key that is absent has its default, so a plan gets simpler by leaving keys out.
using Plan = nlohmann::ordered_json;

/// The same plan for the same seed, on every machine.
Plan make_plan(uint64_t seed);

/// Whether a ModelCheckpoint has the name of a link in the run folder, which is refused.
bool names_a_link(const Plan& plan);

/// The plan with one key or one entry of a list left out, in turn; then with smaller numbers.
std::vector<Plan> simpler(const Plan& plan);

/// The value at a path such as `/data/batch_size`, or `otherwise`.
template <class T>
T value_at(const Plan& plan, const std::string& path, T otherwise) {
  const Plan::json_pointer pointer(path);
  return plan.contains(pointer) ? plan.at(pointer).template get<T>() : otherwise;
}

/// The whole config of a plan: what `trainer fit --config` takes. Notes and run folders go into `folder`.
Plan config_of(const Plan& plan, const std::filesystem::path& folder, int64_t ranks = 1);

/// A config as YAML.
std::string to_yaml(const Plan& config);

}  // namespace fulgur::test
