#pragma once

#include <string>

#include "fulgur/history/sweep_state.h"
#include "fulgur/history/sweep_trials.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur::test {

inline history::SweepSpec spec_of(const std::string& yaml) {
  Problems problems;
  const ConfigNode node = parse_yaml(yaml, "s.yaml", problems);
  problems.throw_if_any();
  return history::read_sweep(node);
}

inline history::SweepPlan plan_of_text(const std::string& yaml, std::optional<int64_t> length = {}) {
  return history::plan_sweep(spec_of(yaml), length);
}

}  // namespace fulgur::test
