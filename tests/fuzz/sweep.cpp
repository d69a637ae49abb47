#include "fulgur/core/text/errors.h"
#include "fulgur/history/sweep_schedule.h"
#include "fulgur/history/sweep_state.h"
#include "fulgur/history/sweep_trials.h"
#include "fulgur/trainer/yaml.h"
#include "targets.h"

namespace fulgur::fuzz {
namespace {

void sweep_state(std::string_view input) {
  const history::SweepState state = history::parse_sweep_json(input, "sweep.json");
  const std::string text = history::sweep_json(state);
  expect(history::sweep_json(history::parse_sweep_json(text, "sweep.json")) == text,
         "a state that is written reads the same");
  // Decisions hold for any records.
  const history::SweepPlan plan = history::plan_of(state);
  std::vector<history::TrialRecord> trials = state.trials;
  history::continue_sweep(plan, trials, true);
  history::promote(plan, trials);
  for (const history::TrialRecord& record : trials) history::rung_of(plan, record);
  if (const auto next = history::next_trial(plan, trials))
    expect(*next < trials.size(), "the next trial is one of them");
}

void sweep_file(std::string_view input) {
  Problems problems;
  const ConfigNode node = parse_yaml(std::string(input), "fuzz", problems);
  if (!problems.empty()) return;
  const history::SweepSpec spec = history::read_sweep(node);
  if (spec.trials.value_or(0) > 100) return;
  const history::SweepPlan plan = history::plan_sweep(spec, 1000);
  expect(!plan.trials.empty(), "a sweep has trials");
  for (const auto& [key, value] : plan.trials.back().overrides) expect(!value.empty(), "an override has a value");
}

}  // namespace

// A sweep file, or the state of a sweep, which begins with a brace and has a version.
void sweep(std::string_view input) {
  try {
    if (input.starts_with("{\n  \"version\""))
      sweep_state(input);
    else
      sweep_file(input);
  } catch (const Error& error) {
    expect(std::string_view(error.what()).size() > 0, "a refusal has words");
  }
}

}  // namespace fulgur::fuzz
