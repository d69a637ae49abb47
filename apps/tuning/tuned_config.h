#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/trainer/config.h"

namespace fulgur::cli {

/// The config of a trial run: it has no run folder, checkpoints, loggers, limits of the fit and schedule, and only
/// those callbacks that change what a step computes. A checkpoint in `ckpt_path` provides the first weights.
Config trial_config(Config config);

/// The options of a callback of the config, if it is the class T, which is registered by `name`; else nullptr.
template <class T>
const typename T::Options* options_of(const Spec<Callback>& callback, std::string_view name) {
  if (callback.class_path() != name) return nullptr;
  return &static_cast<const OptionsOf<typename T::Options>&>(callback.options()).value;
}
template <class T>
typename T::Options* options_of(Spec<Callback>& callback, std::string_view name) {
  return const_cast<typename T::Options*>(options_of<T>(std::as_const(callback), name));
}

/// A learning rate in a config, and the option that sets it.
struct RateOption {
  std::string key;  ///< as the command line takes it, such as `optimizer.lr`
  double value = 0;
};

/// The rate with four digits, as it is shown and suggested: the search is not more exact.
double four_digits(double rate);

/// The learning rates of the config's optimizer, `lr` first; those of the model's options if the module plans its
/// optimizer; empty if there is none, since the rate is set in code.
std::vector<RateOption> rates_of(const Config& config);

/// Sets the first of `rates_of` to `lr`, and multiplies the others by the same factor. `scale_lr` is switched off,
/// since `lr` is the rate of the run. Throws a ConfigError if the config has no optimizer with a learning rate.
void set_rates(Config& config, double lr);

/// The option of the data module that sets its batch size, as the config has it. Throws a ConfigError if there is no
/// data module, or it has no option `batch_size`.
int64_t batch_size_of(const Config& config);
/// Sets that option. Throws a ConfigError for a value that the data module does not accept.
void set_batch_size(Config& config, int64_t batch_size);

}  // namespace fulgur::cli
