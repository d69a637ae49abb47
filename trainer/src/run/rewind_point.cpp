#include "run/rewind_point.h"

#include <ATen/core/grad_mode.h>

#include "fulgur/core/state/rng.h"
#include "run/services.h"

namespace fulgur::detail {

void RewindPoint::take(RunState& run, const Services& services, std::optional<StateTree> loggers) {
  const at::NoGradGuard no_grad;
  Taken now{.counters = run.counters,
            .seen = services.seen.mark(),
            .logs = services.logs.mark(),
            .rng = rng_state(run.strategy->devices()),
            .loaders = {},
            .callbacks = CallbackStates(run.callbacks),
            .loggers = std::move(loggers),
            .buffers = {},
            .gradients = {},
            .window_length = run.window.length,
            .window_done = run.window.done,
            .window_losses = run.window.losses,
            .logged_step = run.logged_step,
            .batch_samples = run.position.batch_samples};
  for (const auto& loader : run.stages[RunningStage::train].loaders) now.loaders.push_back(loader->state());
  for (const Tensor& buffer : run.model->buffers())
    if (buffer.defined()) now.buffers.emplace_back(buffer, buffer.clone());
  for (const auto& [name, value] : unique_parameters(*run.model))
    now.gradients.emplace_back(value, value.grad().defined() ? value.grad().clone() : Tensor());
  taken_ = std::move(now);
}

void RewindPoint::restore(RunState& run, Services& services) {
  const at::NoGradGuard no_grad;
  const Taken& then = *taken_;
  const double fit_time_s = run.counters.fit_time_s;
  run.counters = then.counters;
  run.counters.fit_time_s = fit_time_s;
  services.seen.restore(then.seen);
  services.logs.restore(then.logs);
  load_rng_state(run.strategy->devices(), then.rng);
  then.callbacks.restore();
  if (then.loggers) run.loggers_before = then.loggers;
  for (const auto& [buffer, values] : then.buffers) buffer.copy_(values);
  for (const auto& [parameter, gradient] : then.gradients) parameter.mutable_grad() = gradient;
  run.window.length = then.window_length;
  run.window.done = then.window_done;
  run.window.losses = then.window_losses;
  run.logged_step = then.logged_step;
  run.position.batch_samples = then.batch_samples;
}

}  // namespace fulgur::detail
