#include "tuning/tuned_config.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace {

// Other callbacks watch, stop or save a run, or act over its whole length.
bool changes_steps(const Spec<Callback>& callback) {
  return callback.class_path() == "Finetuning" || callback.class_path() == "GradientAccumulationScheduler";
}

// The options of a component that are learning rates; by name as well if `by_name`.
std::vector<RateOption> rates_in(const ComponentSpec& component, const std::string& prefix, bool by_name) {
  std::vector<RateOption> rates;
  const ConfigNode written = component.write();
  const ConfigNode* const values = written.find("init_args");
  const ComponentInfo* const info = component_registry(component.kind()).find(component.class_path());
  if (values == nullptr || info == nullptr) return rates;
  const OptionFields options(info->make_options());
  for (const Field& field : options.fields.all()) {
    const bool is_rate = field.is_learning_rate || (by_name && (field.name == "lr" || field.name == "learning_rate"));
    const ConfigNode* const value = values->find(field.name);
    if (!is_rate || value == nullptr || !value->is_scalar()) continue;
    char* end = nullptr;
    const double rate = std::strtod(value->text().c_str(), &end);
    if (end == value->text().c_str() || *end != '\0') continue;
    rates.push_back({cat(prefix, ".", field.name), rate});
  }
  std::ranges::stable_sort(rates, {}, [](const RateOption& rate) { return !rate.key.ends_with(".lr"); });
  return rates;
}

// Sets options of a component of the config, whose key is `key`.
void set_options(ComponentSpec& component, const std::string& key,
                 const std::vector<std::pair<std::string, ConfigNode>>& options) {
  ConfigNode node = component.write();
  for (const auto& [name, value] : options) node.get_or_add("init_args").set(name, value);
  Problems problems;
  component.read(node, problems, key);
  problems.throw_if_any();
}

}  // namespace

Config trial_config(Config config) {
  TrainerOptions& trainer = config.trainer;
  trainer.barebones = true;
  trainer.fast_dev_run = {};
  trainer.min_epochs.reset();
  trainer.min_steps.reset();
  trainer.max_time.reset();
  trainer.validate_first = false;
  trainer.scale_lr = ScaleLr::none;
  trainer.base_batch_size.reset();
  trainer.capture = false;
  trainer.profiler = Spec<Profiler>("none");
  trainer.stop_after.reset();
  trainer.log_every_n_steps = 0;
  std::erase_if(trainer.callbacks, [](const auto& callback) { return !changes_steps(callback); });
  config.lr_scheduler.reset();
  config.lr_scheduler_monitor.reset();
  config.lr_scheduler_name.reset();
  config.silence.emplace_back("trainer.barebones_log");
  if (config.ckpt_path == "auto") config.ckpt_path.reset();
  // The trial begins at step 0, with the weights of the checkpoint.
  config.load.weights_only = config.ckpt_path.has_value();
  return config;
}

double four_digits(double rate) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, rate, std::chars_format::general, 4);
  return parse_whole<double>(std::string_view(text, end)).value_or(rate);
}

std::vector<RateOption> rates_of(const Config& config) {
  if (config.optimizer && *config.optimizer) return rates_in(*config.optimizer, "optimizer", /*by_name=*/false);
  return rates_in(config.model, "model", /*by_name=*/true);
}

void set_rates(Config& config, double lr) {
  if (!config.optimizer || !*config.optimizer)
    throw ConfigError(
        "[tune.lr] the learning rate is set in the config's optimizer; the config names none, and the module plans its "
        "own. Name an optimizer in the config, or use `trainer tune lr` and set the rate in the module.");
  const std::vector<RateOption> rates = rates_of(config);
  if (rates.empty() || !(rates.front().value > 0))
    throw ConfigError(cat("[tune.lr] the optimizer must have a learning rate above 0 in its options; ",
                          config.optimizer->class_path(), " has none. Set it."));
  constexpr size_t kPrefix = std::string_view("optimizer.").size();
  std::vector<std::pair<std::string, ConfigNode>> options;
  for (size_t i = 0; i < rates.size(); ++i)
    options.emplace_back(rates[i].key.substr(kPrefix),
                         ConfigNode::number(i == 0 ? lr : rates[i].value * (lr / rates.front().value)));
  set_options(*config.optimizer, "optimizer", options);
  config.trainer.scale_lr = ScaleLr::none;
  config.trainer.base_batch_size.reset();
}

int64_t batch_size_of(const Config& config) {
  if (!config.data)
    throw ConfigError(
        "[tune.batch_size] the batch size is an option of the data module; the config names none. Set `data`.");
  const ConfigNode written = config.data.write();
  const ConfigNode* const options = written.find("init_args");
  const ConfigNode* const size = options != nullptr ? options->find("batch_size") : nullptr;
  const auto value = size != nullptr && size->is_scalar() ? parse_whole<int64_t>(size->text()) : std::nullopt;
  if (!value)
    throw ConfigError(cat("[tune.batch_size] the data module must have an option batch_size that is a number; ",
                          config.data.class_path(),
                          " has none. Add it, or tune the option that sets its batches "
                          "by hand."));
  return *value;
}

void set_batch_size(Config& config, int64_t batch_size) {
  set_options(config.data, "data", {{"batch_size", ConfigNode::integer(batch_size)}});
}

}  // namespace fulgur::cli
