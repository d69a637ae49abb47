#include "fulgur/callbacks/chrome_trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <set>
#include <utility>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

void ChromeTrace::Options::fields(Fields& f) {
  f(first_batch, "first_batch",
    "Training batches before the first recorded one, counted from the start of this process.")
      .at_least(0);
  f(batches, "batches", "Training batches to record; a trace takes a few hundred kilobytes per batch.").at_least(1);
}

ChromeTrace::ChromeTrace(Options options) : options_(options) {}

ChromeTrace::~ChromeTrace() { stop(nullptr); }

void ChromeTrace::on_train_batch_start(RunContext& run, const Batch&, int64_t) {
  if (started_++ != options_.first_batch) return;
  if (torch::profiler::impl::profilerType() != torch::profiler::impl::ActiveProfilerType::NONE)
    return log::warn("callbacks.profiler_in_use",
                     "ChromeTrace: another profiler is already recording; no trace is written");
  const ProfilerConfig config(ProfilerState::KINETO, /*report_input_shapes=*/true);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (run.device().is_cuda()) activities.insert(ActivityType::CUDA);
  // On a machine without a GPU, the recorder would print a warning that there is none.
  if (run.device().is_cpu()) ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(
      config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
  recording_ = true;
}

void ChromeTrace::on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) {
  if (++ended_ == options_.first_batch + options_.batches) stop(&run);
}

void ChromeTrace::on_exception(RunContext& run, const std::exception&) { stop(&run); }
void ChromeTrace::teardown(RunContext& run, TrainerFn) { stop(&run); }

void ChromeTrace::stop(RunContext* run) noexcept {
  if (!std::exchange(recording_, false)) return;
  try {
    const auto trace = profiler::disableProfiler();
    if (!run || run->log_dir().empty()) return;
    const std::filesystem::path path = run->log_dir() / cat("trace_rank", run->rank(), ".json");
    trace->save(path.string());
    log::info(cat("ChromeTrace: ", path));
  } catch (const std::exception& error) {
    log::error(cat("ChromeTrace: the trace could not be written: ", error.what()));
  }
}

[[maybe_unused]] static const bool registered_chrome_trace = Registry<Callback>::add<ChromeTrace>(
    "ChromeTrace", "Writes what happens in a few training steps as a Chrome trace, for each rank.");

}  // namespace fulgur
