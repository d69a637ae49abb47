#include "profiling/kineto_profiler.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "profiling/profile_path.h"

namespace fulgur::detail {

namespace fs = std::filesystem;
namespace libtorch_profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

namespace {

ProfilerConfig kineto_config(const KinetoProfiler::Options& options) {
  return ProfilerConfig(ProfilerState::KINETO, options.record_shapes, options.profile_memory);
}

std::set<ActivityType> kineto_activities(at::Device device) {
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  return activities;
}

// The recorder does not report that a file could not be written to its end, such as on a full disk.
bool is_whole_trace(const fs::path& path) {
  std::ifstream file(path, std::ios::ate | std::ios::binary);
  char last = ' ';
  for (int64_t at = static_cast<int64_t>(file.tellg()) - 1; at >= 0 && std::isspace(static_cast<unsigned char>(last));
       --at)
    if (!file.seekg(at).get(last)) return false;
  return last == '}';
}

}  // namespace

void KinetoProfiler::Options::fields(Fields& f) {
  f(skip_first, "skip_first", "Steps before the first cycle, counted from the start of this process.").at_least(0);
  f(wait, "wait", "Steps of a cycle that are not recorded.").at_least(0);
  f(warmup, "warmup",
    "Steps of a cycle in which the recorder runs but what it records is discarded, since its start is slow.")
      .at_least(0);
  f(active, "active", "Steps of a cycle that are recorded; a trace takes a few hundred kilobytes per step.")
      .at_least(1);
  f(repeat, "repeat", "Number of cycles, each with its own file; 0: until the run ends.").at_least(0);
  f(record_shapes, "record_shapes", "Records the shapes of the inputs of each operation.");
  f(profile_memory, "profile_memory", "Records each allocation and each release of tensor memory.");
}

KinetoProfiler::KinetoProfiler(Options options)
    : options_(options),
      schedule_{.skip_first = options.skip_first,
                .wait = options.wait,
                .warmup = options.warmup,
                .active = options.active,
                .repeat = options.repeat} {}

KinetoProfiler::~KinetoProfiler() {
  if (state_ != State::recording && state_ != State::prepared) return;
  run_.run_dir.clear();  // the run was abandoned before its end
  try {
    finish(step_);
  } catch (const std::exception& error) {
    log::error(cat("kineto: ", first_line(error.what())));
  }
}

void KinetoProfiler::start(const ProfiledRun& run) {
  run_ = run;
  step_ = 0;
  state_ = State::idle;
  if (run.run_dir.empty())
    log::warn("trainer.profile",
              "the profiler kineto records, but this run has no run folder, so no trace is written. Leave out "
              "fast_dev_run and barebones");
  enter_step();
}

void KinetoProfiler::begin(const ProfiledAction& action) {
  const bool recording = state_ == State::recording;
  has_work_ |= recording && (action.name == "training_batch" || action.name.ends_with("_step"));
  ranges_.begin(action.name, recording);
}

void KinetoProfiler::end(const ProfiledAction&) noexcept { ranges_.end(); }

void KinetoProfiler::step_done() {
  end_step_range();
  if (schedule_.at(step_) == StepSchedule::Phase::record_last) finish(step_);
  ++step_;
  enter_step();
}

void KinetoProfiler::enter_step() {
  if (state_ == State::refused) return;
  const StepSchedule::Phase phase = schedule_.at(step_);
  if (phase == StepSchedule::Phase::wait) return;
  if (state_ == State::idle) prepare();
  if (phase == StepSchedule::Phase::warmup || state_ == State::refused) return;
  if (state_ == State::prepared) record();
  // In an evaluation, steps are inside an action, and what begins inside it must end inside it.
  if (!ranges_.empty()) return;
  step_name_ = cat("ProfilerStep#", step_);  // the name that tools look for
  step_range_.emplace(at::RecordScope::USER_SCOPE);
  if (step_range_->isActive()) step_range_->before(std::string_view(step_name_));
}

void KinetoProfiler::end_step_range() { step_range_.reset(); }

void KinetoProfiler::prepare() {
  if (torch::profiler::impl::profilerType() != torch::profiler::impl::ActiveProfilerType::NONE) {
    state_ = State::refused;
    return log::warn("trainer.profiler_in_use",
                     "the profiler kineto: another profiler of LibTorch already records in this thread, so no trace is "
                     "written");
  }
  // On a machine without a GPU, the recorder would print a warning that there is none.
  if (!run_.device.is_cuda()) ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  libtorch_profiler::prepareProfiler(kineto_config(options_), kineto_activities(run_.device));
  state_ = State::prepared;
}

void KinetoProfiler::record() {
  libtorch_profiler::enableProfiler(
      kineto_config(options_), kineto_activities(run_.device),
      {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
  state_ = State::recording;
}

void KinetoProfiler::finish(int64_t last_step) {
  end_step_range();
  ranges_.hide();
  if (state_ == State::prepared) record();  // what was prepared can only be stopped after a start
  if (state_ != State::recording) return;
  state_ = State::idle;
  const auto trace = libtorch_profiler::disableProfiler();
  if (!std::exchange(has_work_, false) || run_.run_dir.empty()) return;
  const std::string name = cat("trace_rank", run_.rank, "_cycle", schedule_.cycle_of(last_step));
  const fs::path path = free_profile_path(run_.run_dir, name), temporary = run_.run_dir / cat(".tmp_", name, ".json");
  std::error_code error;
  fs::remove(temporary, error);
  trace->save(temporary.string());
  const bool is_whole = is_whole_trace(temporary);
  if (is_whole) fs::rename(temporary, path, error);
  if (is_whole && !error) return log::info(cat("kineto: ", path));
  log::error(cat("kineto: the trace could not be written to ", path, ": ",
                 error ? error.message() : "the file is incomplete. Is the disk full?"));
  fs::remove(temporary, error);
}

std::optional<Profile> KinetoProfiler::stop() {
  finish(step_);
  const int64_t unrecorded = schedule_.skip_first + schedule_.wait + schedule_.warmup;
  if (state_ != State::refused && step_ > 0 && step_ <= unrecorded && !run_.run_dir.empty())
    log::warn("trainer.profile", cat("the profiler kineto wrote no trace: it records from step ", unrecorded + 1,
                                     " on (after skip_first, wait and warmup), and this process made only ",
                                     counted(step_, "step"), ". Lower them"));
  return std::nullopt;
}

[[maybe_unused]] static const bool registered_kineto_profiler = Registry<Profiler>::add<KinetoProfiler>(
    "kineto", "Writes what happens in a few steps as a Chrome trace, for each rank.");

}  // namespace fulgur::detail
