#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "fulgur/trainer/missing_data.h"
#include "fulgur/trainer/yaml.h"
#include "setup/setup_steps.h"

namespace fulgur::detail {
namespace {

// Options of data modules that divide the training data into parts.
constexpr std::array kDividing{"val_fraction", "test_fraction", "val_size", "split_seed", "fold", "stratify"};

bool divides_training_data(const std::string& option) {
  return std::ranges::find(kDividing, option) != kDividing.end();
}

// Options of data modules that say where the training data are.
bool names_training_data(const std::string& option) {
  return option.starts_with("train") || option == "path" || option == "paths" || option == "data_dir";
}

bool is_unset(const ConfigNode& value) {
  return value.is_null() || (value.is_list() && value.items().empty()) || (value.is_map() && value.entries().empty()) ||
         (value.is_scalar() && value.text().empty());
}

// An option that one of them does not have says nothing.
bool same_option(const ConfigNode& a, const ConfigNode& b, std::string_view name) {
  const ConfigNode *const x = a.find(name), *const y = b.find(name);
  if (x == nullptr || y == nullptr || x->same_as(*y)) return true;
  if (!x->is_scalar() || !y->is_scalar()) return false;
  const auto one = parse_whole<double>(x->text()), other = parse_whole<double>(y->text());
  return one && other && *one == *other;
}

// The options of the config's model or data module; nullptr without a config.
const ConfigNode* options_in_config(const RunState& run, std::string_view component) {
  if (!run.components.config) return nullptr;
  const ConfigNode* const node = run.components.config->find(component);
  const ConfigNode* const options = node ? node->find("init_args") : nullptr;
  return options && options->is_map() ? options : nullptr;
}

std::optional<std::vector<double>> numbers_of_fact(const StateTree& fact) {
  std::vector<double> numbers;
  for (const StateTree& item : fact.as_list()) {
    if (!item.holds<double>()) return std::nullopt;
    numbers.push_back(item.as_double());
  }
  return numbers;
}

std::string shown_numbers(const std::vector<double>& numbers) {
  std::vector<std::string> texts;
  for (const double number : numbers) texts.push_back(cat(number));
  return cat("[", join_some(texts, 5), "]");
}

// What is wrong with an option that says how many classes or outputs there are; nullopt if it fits the data.
std::optional<std::string> wrong_count(const std::string& name, const ConfigNode& option, const StateTree& fact) {
  if (!fact.holds<int64_t>() || fact.as_int() < 1 || !option.is_scalar()) return std::nullopt;
  const auto count = parse_whole<int64_t>(option.text());
  // 0: the model does not need the number, as networks of Python do not. Models that do refuse 0.
  if (!count || *count == 0 || *count == fact.as_int()) return std::nullopt;
  return cat(name, " is ", *count, ", but that of the data is ", fact.as_int());
}

// The same for the mean or the deviation of the targets. Without a value, `neutral` counts.
std::optional<std::string> wrong_scale(const std::string& name, const ConfigNode& option, const StateTree& fact,
                                       double neutral) {
  if (!fact.is_list()) return std::nullopt;
  const auto wanted = numbers_of_fact(fact);
  if (!wanted || wanted->empty()) return std::nullopt;
  const bool is_empty = option.is_null() || (option.is_list() && option.items().empty());
  // A value in the config was written by the user, or by a link.
  if (!is_empty || std::ranges::all_of(*wanted, [=](double number) { return number == neutral; })) return std::nullopt;
  return cat(name, " is empty, but that of the data is ", shown_numbers(*wanted));
}

// What `name` was when the checkpoint was trained, and what it is now.
std::string change_of(const ConfigNode& before, const ConfigNode& now, std::string_view name) {
  return cat("data.init_args.", name, " is ", now.find(name)->describe(), ", and was ", before.find(name)->describe());
}

// Options of data modules that say how long a sample is. Models of series and texts take other lengths as well, and
// predict worse with them, or differently.
constexpr std::array kLengths{"window", "block_size", "max_length"};

void warn_of_other_lengths(const ConfigNode& before, const ConfigNode& now) {
  std::vector<std::string> changed;
  for (const char* name : kLengths)
    if (!same_option(before, now, name)) changed.push_back(change_of(before, now, name));
  if (changed.empty()) return;
  log::warn("trainer.other_lengths",
            cat("the checkpoint was trained on samples of another length: ", join(changed, "; "),
                ". What the model predicts, and its metrics, depend on it. Use the value of the run that trained it, "
                "unless the change is meant"));
}

void warn_of_other_parts(const RunState& run, const ConfigNode& before, const ConfigNode& now) {
  // Other training files have nothing to do with the checkpoint's.
  const std::string prefix = run.fn == TrainerFn::validate ? "val_" : "test_";
  for (const auto& [name, value] : now.entries()) {
    if (names_training_data(name) && !same_option(before, now, name)) return;
    if (name.starts_with(prefix) && !divides_training_data(name) && !is_unset(value)) return;
  }
  std::vector<std::string> changed;
  for (const char* name : kDividing)
    if (!same_option(before, now, name)) changed.push_back(change_of(before, now, name));
  if (changed.empty()) return;
  log::warn("trainer.other_parts",
            cat("the checkpoint was trained with other parts of the data: ", join(changed, "; "), ". The ",
                run.fn == TrainerFn::validate ? "validation" : "test",
                " data contain samples that it was trained on, so the values are too good. Use the values of the run "
                "that trained it"));
}

}  // namespace

void warn_of_unlinked_options(const RunState& run) {
  const ConfigNode* const options = options_in_config(run, "model");
  if (!options || !run.data.module) return;
  constexpr std::array kNames{"num_classes", "num_outputs", "target_mean", "target_std"};
  if (std::ranges::none_of(kNames, [&](const char* name) { return options->find(name) != nullptr; })) return;
  const StateTree facts = run.data.module->exported_values();
  std::vector<std::string> wrong, links;
  for (const std::string name : kNames) {
    const ConfigNode* const option = options->find(name);
    if (!option || !facts.contains(name)) continue;
    const StateTree& fact = facts.at(name);
    const auto what = name == "target_mean"  ? wrong_scale(name, *option, fact, 0)
                      : name == "target_std" ? wrong_scale(name, *option, fact, 1)
                                             : wrong_count(name, *option, fact);
    if (!what) continue;
    wrong.push_back(cat("model.init_args.", *what));
    links.push_back(cat("model.init_args.", name, ": data.", name));
  }
  if (!wrong.empty())
    log::warn("trainer.not_linked", cat("options of the model do not fit the data: ", join(wrong, "; "),
                                        ". Add to the config: link: {", join(links), "}"));
}

std::string advice_for_missing_data(const RunState& run, RunningStage stage, bool trained) {
  return advice_for_missing_data(options_in_config(run, "data"), stage, trained);
}

void warn_of_other_data(const RunState& run, const StateTree& state) {
  if (run.fn == TrainerFn::fit) return;
  const ConfigNode* const now = options_in_config(run, "data");
  if (now == nullptr || !run.is_global_zero() || !state.contains(checkpoint_keys::kConfig)) return;
  Problems ignored;
  const ConfigNode saved = parse_yaml(state.at(checkpoint_keys::kConfig).as_string(), "config", ignored);
  const ConfigNode* const data = saved.is_map() ? saved.find("data") : nullptr;
  const ConfigNode* const before = data && data->is_map() ? data->find("init_args") : nullptr;
  if (!before || !before->is_map() || !same_option(*data, *run.components.config->find("data"), "class_path")) return;
  warn_of_other_lengths(*before, *now);
  if (run.fn != TrainerFn::predict) warn_of_other_parts(run, *before, *now);
}

std::string advice_for_missing_data(const ConfigNode* options, RunningStage stage, bool trained) {
  std::vector<std::string> prefixes{stage == RunningStage::validate ? "val" : std::string(name_of(stage))};
  // Most data modules predict the test data, unless they have data for predict.
  if (stage == RunningStage::predict) prefixes.emplace_back("test");
  std::vector<std::string> names, dividing;
  for (const std::string& prefix : prefixes)
    for (const auto& [name, value] : options ? options->entries() : std::vector<ConfigNode::Entry>())
      if (name.starts_with(prefix))
        (trained && divides_training_data(name) ? dividing : names).push_back(cat("data.init_args.", name));
  if (names.empty() && dividing.empty())
    return cat(
        "Does the data module have such a loader? --data NAME chooses another one",
        stage == RunningStage::predict ? ", such as PromptsDataModule with texts that a language model continues" : "",
        "; `", program_name(), " list data` shows them.");
  return cat(names.empty() ? "" : cat("Set ", names.size() > 1 ? "one of " : "", join(names), "."),
             names.empty() || dividing.empty() ? "" : " ",
             dividing.empty() ? ""
                              : cat(join(dividing),
                                    " must be set when the model is trained: it divides the training "
                                    "data, and the checkpoint was trained on all of them."));
}

}  // namespace fulgur::detail
