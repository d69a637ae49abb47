#include "loops/auto_micro_batch.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/parallel_apply.h"
#include "loops/micro_batches.h"
#include "run/callback_states.h"

namespace fulgur::detail {

/// The run before an attempt. Gradients of earlier batches of the window are put aside, so that an attempt can be
/// undone without a copy of them.
struct AutoMicroBatch::Before {
  explicit Before(RunState& run, const Services& services)
      : state(run),
        rng(rng_state(run.strategy->devices())),
        logs(services.logs.mark()),
        metrics(services.metrics.mark()),
        media(services.rows.media_of_batch()),
        progress(run.step.progress),
        batch_samples(run.position.batch_samples),
        callbacks(run.callbacks, {Hook::on_before_backward, Hook::on_after_backward}) {
    const at::NoGradGuard no_grad;
    for (const Tensor& buffer : run.model->buffers())
      if (buffer.defined()) buffers.emplace_back(buffer, buffer.clone());
    for (const auto& [name, value] : unique_parameters(*run.model)) {
      if (!value.grad().defined()) continue;
      gradients.emplace_back(value, value.grad());
      value.mutable_grad().reset();
    }
  }

  /// After an attempt: adds the gradients that were put aside.
  void add_gradients() {
    const at::NoGradGuard no_grad;
    for (const auto& [parameter, gradient] : gradients) {
      Tensor& now = parameter.mutable_grad();
      if (now.defined()) gradient.add_(now);
      now = gradient;
    }
  }

  /// Undoes the attempt, except for what it drew, logged and did to buffers: enough before an exception ends the batch.
  void drop_gradients() const {
    state.strategy->drop_gradients_of_copies();
    for (const auto& [name, value] : unique_parameters(*state.model)) value.mutable_grad().reset();
    for (const auto& [parameter, gradient] : gradients) parameter.mutable_grad() = gradient;
  }

  void restore(Services& services) const {
    const at::NoGradGuard no_grad;
    drop_gradients();
    load_rng_state(state.strategy->devices(), rng);
    services.logs.restore(logs);
    services.metrics.restore(metrics);
    services.rows.drop_media_after(media);
    callbacks.restore();
    for (const auto& [buffer, values] : buffers) buffer.copy_(values);
    state.step.progress = progress;
    state.position.batch_samples = batch_samples;
  }

  RunState& state;
  StateTree rng;
  LogStore::Mark logs;
  MetricStore::Mark metrics;
  size_t media;
  StepProgress progress;
  double batch_samples;
  CallbackStates callbacks;                                   // of those with hooks of an attempt
  std::vector<std::pair<Tensor, Tensor>> buffers, gradients;  // with their values, by parameter
};

StepOutput AutoMicroBatch::run(const Batch& batch, const Part& part) {
  for (;;) {
    const int64_t samples = std::max<int64_t>(batch.size(), 1);
    const int64_t most = run_.micro_batch_samples > 0 ? std::min(run_.micro_batch_samples, samples) : samples;
    const std::vector<int64_t> sizes = nn::even_parts(samples, (samples + most - 1) / most);
    Before before(run_, services_);
    StepOutput output;
    bool here = false;
    try {
      here = ran_out(batch, sizes, part, output);
    } catch (...) {
      before.drop_gradients();
      throw;
    }
    const bool anywhere = run_.world_size() > 1 ? run_.collectives().any(here) : here;
    if (!anywhere) {
      before.add_gradients();
      return output;
    }
    output = {};
    before.restore(services_);
    halve(*std::ranges::max_element(sizes), here);
    // Copies of the module's parts take the restored buffers.
    run_.strategy->before_forward(*run_.model, GradSync::deferred);
  }
}

// A function of its own, so that nothing of a failed attempt is left on the stack.
bool AutoMicroBatch::ran_out(const Batch& batch, const std::vector<int64_t>& sizes, const Part& part,
                             StepOutput& output) {
  failure_ = nullptr;
  try {
    output = compute(batch, sizes, part);
    return false;
  } catch (const c10::OutOfMemoryError&) {
    failure_ = std::current_exception();
    return true;
  }
}

StepOutput AutoMicroBatch::compute(const Batch& batch, const std::vector<int64_t>& sizes, const Part& part) const {
  bool stop = false;
  if (sizes.size() == 1) return part(batch, 1, stop);
  const double samples = static_cast<double>(batch.size()), batch_samples = run_.position.batch_samples;
  StepOutput whole;
  std::vector<MicroBatch> parts;
  std::vector<Outputs> extra;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    const double share = static_cast<double>(size) / samples;
    parts.push_back({.module = run_.model.get(), .batch = batch.narrow(begin, size), .share = share});
    begin += size;
    // Logged values are weighted by the samples of their part.
    run_.position.batch_samples = static_cast<double>(size);
    StepOutput output = part(parts.back().batch, share, stop);
    run_.position.batch_samples = batch_samples;
    const Tensor weighted = output.loss * share;
    whole.loss = whole.loss.defined() ? whole.loss + weighted : weighted;
    extra.push_back(std::move(output.extra));
    if (stop) return whole;
  }
  whole.extra = join_outputs(run_, parts, extra);
  return whole;
}

void AutoMicroBatch::halve(int64_t samples, bool here) {
  const std::exception_ptr failure = std::exchange(failure_, nullptr);
  const std::string device = run_.device().str();
  std::vector<std::string> who;
  if (run_.world_size() > 1) {
    const std::vector<std::string> devices = run_.collectives().gather_text(here ? device : std::string());
    for (size_t rank = 0; rank < devices.size(); ++rank)
      if (!devices[rank].empty()) who.push_back(cat("rank ", static_cast<int64_t>(rank), " (", devices[rank], ")"));
    samples = run_.collectives().start_max({samples})->take().front();
  } else {
    who.push_back(device);
  }
  if (samples <= 1) {
    if (failure) std::rethrow_exception(failure);
    throw Error(cat("[trainer.auto_micro_batch] ", join(who),
                    " ran out of memory with a single sample. Make the model "
                    "smaller, or see docs/memory.md."));
  }
  run_.micro_batch_samples = (samples + 1) / 2;
  for (const at::Device& each : run_.strategy->devices()) release_cached_memory(each);
  const std::string news =
      cat(join(who), " ran out of memory with ", counted(samples, "sample"),
          " in a training step: from here on, batches are computed in micro-batches of at most ",
          counted(run_.micro_batch_samples, "sample"), ". The global batch and its gradients stay the same");
  // A warning is shown once; the batch may have to be halved again.
  if (!std::exchange(reported_, true)) return log::warn("trainer.micro_batches", news);
  run_.print(news);
}

}  // namespace fulgur::detail
