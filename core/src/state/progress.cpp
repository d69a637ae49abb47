#include "fulgur/core/state/progress.h"

#include <algorithm>

namespace fulgur {
namespace {

StateTree counter_state(const Counter& c) {
  return StateTree::map(
      {{"ready", c.ready}, {"started", c.started}, {"processed", c.processed}, {"completed", c.completed}});
}

Counter counter_from(const StateTree& s) {
  return {s.at("ready").as_int(), s.at("started").as_int(), s.at("processed").as_int(), s.at("completed").as_int()};
}

}  // namespace

double Progress::epochs_done(std::optional<int64_t> batches_in_epoch) const {
  const double part = batches_in_epoch && *batches_in_epoch > 0
                          ? static_cast<double>(batches.processed) / static_cast<double>(*batches_in_epoch)
                          : 0;
  return std::max(static_cast<double>(epoch) + part, static_cast<double>(epochs.processed));
}

StateTree Progress::state() const {
  return StateTree::map({{"epoch", epoch},
                         {"global_step", global_step},
                         {"skipped_steps", skipped_steps},
                         {"samples_seen", samples_seen},
                         {"tokens_seen", tokens_seen},
                         {"fit_time_s", fit_time_s},
                         {"validations", validations},
                         {"batches_total", counter_state(batches_total)},
                         {"batches", counter_state(batches)},
                         {"epochs", counter_state(epochs)}});
}

void Progress::load_state(const StateTree& state) {
  Progress loaded;
  loaded.epoch = state.at("epoch").as_int();
  loaded.global_step = state.at("global_step").as_int();
  loaded.skipped_steps = state.at("skipped_steps").as_int();
  loaded.samples_seen = state.at("samples_seen").as_int();
  loaded.tokens_seen = state.at("tokens_seen").as_int();
  loaded.fit_time_s = state.at("fit_time_s").as_double();
  loaded.validations = state.at("validations").as_int();
  loaded.batches_total = counter_from(state.at("batches_total"));
  loaded.batches = counter_from(state.at("batches"));
  loaded.epochs = counter_from(state.at("epochs"));
  *this = loaded;
}

}  // namespace fulgur
