#include "run/rewind_point.h"

#include <ATen/core/grad_mode.h>

#include "fulgur/core/rng.h"
#include "run/run_state.h"

namespace fulgur::detail {

void RewindPoint::take(RunState& run) {
  const at::NoGradGuard no_grad;
  Taken now{.counters = run.counters,
            .seen = run.seen.mark(),
            .logs = run.logs.mark(),
            .rng = rng_state(run.strategy->devices()),
            .loaders = {},
            .buffers = {},
            .logged_step = run.logged_step,
            .batch_samples = run.position.batch_samples};
  for (const auto& loader : run.stages[RunningStage::train].loaders) now.loaders.push_back(loader->state());
  for (const Tensor& buffer : run.model->buffers())
    if (buffer.defined()) now.buffers.emplace_back(buffer, buffer.clone());
  taken_ = std::move(now);
}

void RewindPoint::restore(RunState& run) {
  const at::NoGradGuard no_grad;
  const Taken& then = *taken_;
  const double fit_time_s = run.counters.fit_time_s;
  run.counters = then.counters;
  run.counters.fit_time_s = fit_time_s;
  run.seen.restore(then.seen);
  run.logs.restore(then.logs);
  load_rng_state(run.strategy->devices(), then.rng);
  for (const auto& [buffer, values] : then.buffers) buffer.copy_(values);
  for (auto& [name, value] : unique_parameters(*run.model)) value.mutable_grad().reset();
  run.window.done = run.window.losses = 0;
  run.logged_step = then.logged_step;
  run.position.batch_samples = then.batch_samples;
}

}  // namespace fulgur::detail
