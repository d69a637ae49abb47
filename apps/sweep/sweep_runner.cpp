#include "sweep/sweep_runner.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/history/sweep_schedule.h"

namespace fulgur::cli {
namespace {

using history::TrialRecord;
using history::TrialStatus;

// A scheduler may send one signal several times.
constexpr std::chrono::seconds kSecondSignal{2};

detail::UniqueFd open_log(const std::filesystem::path& file) {
  detail::UniqueFd log(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (log.get() < 0)
    throw Error(cat("[cli.sweep] the log of a trial cannot be written; ", escape_controls(file.string()), ": ",
                    std::strerror(errno), "."));
  return log;
}

bool is_stop_code(int code) {
  for (const ExitCode stop : {ExitCode::preempted, ExitCode::interrupted, ExitCode::terminated})
    if (code == static_cast<int>(stop)) return true;
  return false;
}

/// Whoever sends these signals asks the trial to end; it may not yet be able to save.
bool asks_to_end(int signal) { return signal == SIGTERM || signal == SIGINT || signal == SIGHUP; }

}  // namespace

void check_metric(const std::vector<TrialRecord>& trials) {
  const auto trial = history::trial_without_metric(trials);
  if (!trial) return;
  throw ConfigError(cat("[cli.sweep] the sweep ends, since no trial has a value of its metric; trial ", *trial, ": ",
                        as_sentence(trials[*trial].reason),
                        "Correct the metric in the sweep file: the same command then keeps what is trained, and "
                        "continues."));
}

SweepRunner::SweepRunner(const CommandLine& command, const std::string& program, const history::SweepPlan& plan,
                         std::vector<TrialRecord>& trials, std::filesystem::path folder, TrialSlots slots,
                         std::function<void()> save)
    : command_(command),
      program_(program),
      plan_(plan),
      trials_(trials),
      folder_(std::move(folder)),
      save_(std::move(save)),
      slots_of_devices_(std::move(slots)),
      slots_(static_cast<size_t>(slots_of_devices_.jobs)) {}

bool SweepRunner::is_running() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.process != nullptr; });
}

SweepRunner::End SweepRunner::run() {
  while (true) {
    if (end_.signal == 0) guarded([&] { start_trials(); });
    if (!is_running()) break;
    wait();
    reap();
  }
  if (error_) std::rethrow_exception(error_);
  return end_;
}

// An error of the sweep must not kill its trials, as unwinding would: they save and end.
template <class Step>
void SweepRunner::guarded(Step step) {
  try {
    step();
  } catch (...) {
    if (!error_) error_ = std::current_exception();
    if (end_.signal != 0) return;
    log::info("the sweep cannot continue: the running trials save and end");
    stop_trials(SIGTERM);
  }
}

void SweepRunner::start_trials() {
  for (Slot& slot : slots_) {
    if (slot.process) continue;
    history::promote(plan_, trials_);
    std::vector<TrialRecord> free = trials_;
    for (const size_t trial : set_aside_) free[trial].status = TrialStatus::running;
    const auto next = history::next_trial(plan_, free);
    if (!next) return;
    const TrialRecord before = trials_[*next];
    try {
      start(slot, *next);
    } catch (...) {
      trials_[*next] = before;
      throw;
    }
  }
}

void SweepRunner::start(Slot& slot, size_t trial) {
  TrialRecord& record = trials_[trial];
  const std::filesystem::path folder = folder_ / history::trial_folder(static_cast<int64_t>(trial));
  std::filesystem::create_directories(folder);
  const detail::UniqueFd log = open_log(folder / "log.txt");
  const char* const verb = record.status == TrialStatus::pending ? "starts" : "continues";
  record.status = TrialStatus::running;
  record.reason.clear();
  save_();
  std::vector<std::string> arguments{program_};
  const auto own = arguments_of_trial(command_, plan_, plan_.trials[trial], folder_, history::rung_of(plan_, record));
  arguments.insert(arguments.end(), own.begin(), own.end());
  const auto index = static_cast<size_t>(&slot - slots_.data());
  slot.trial = trial;
  slot.process = std::make_unique<detail::ChildProcess>(
      "/proc/self/exe", arguments, environment_of_slot(slots_of_devices_, index, process_environment()), signals_,
      log.get());
  log::info(cat("trial ", trial, " ", verb, ": ", history::trial_text(plan_, plan_.trials[trial])));
}

void SweepRunner::wait() {
  auto timeout = std::chrono::milliseconds(-1);
  if (end_.signal != 0 && !killed_) {
    const auto grace =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(command_.sweep.grace_s));
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(stopped_at_ + grace - Clock::now());
    timeout = std::clamp(left, std::chrono::milliseconds(0), std::chrono::milliseconds(3'600'000));
    if (left.count() <= 0) {
      log::info("the time of --grace is over: trials that have not ended are killed");
      killed_ = true;
      for (const Slot& slot : slots_)
        if (slot.process) slot.process->kill();
      timeout = std::chrono::milliseconds(-1);
    }
  }
  for (const int signal : signals_.wait(timeout))
    if (signal != SIGCHLD) take_signal(signal);
}

void SweepRunner::take_signal(int signal) {
  const bool first = end_.signal == 0;
  if (signal != SIGUSR1 && !first && signal != SIGINT && Clock::now() - stopped_at_ < kSecondSignal) return;
  if (signal != SIGUSR1 && !first) {
    end_ = {signal, true};
    killed_ = true;
    for (const Slot& slot : slots_)
      if (slot.process) slot.process->kill();
    return;
  }
  if (signal != SIGUSR1) {
    stop_trials(signal);
    log::info(cat("signal ", signal, ": the trials save and end; a second signal ends them at once"));
    return;
  }
  for (const Slot& slot : slots_)
    if (slot.process) slot.process->send(signal);
}

void SweepRunner::stop_trials(int signal) {
  for (const Slot& slot : slots_)
    if (slot.process) slot.process->send(signal);
  end_.signal = signal;
  stopped_at_ = Clock::now();
}

void SweepRunner::reap() {
  for (Slot& slot : slots_) {
    if (!slot.process) continue;
    const auto end = slot.process->reap();
    if (!end) continue;
    const std::string words = slot.process->words();
    slot.process.reset();
    guarded([&] { finish(slot.trial, *end, words); });
  }
}

void SweepRunner::finish(size_t trial, const detail::ProcessEnd& end, const std::string& words) {
  TrialRecord& record = trials_[trial];
  try {
    judge(record, history::read_trial(plan_.spec, folder_, static_cast<int64_t>(trial), record), end, words);
  } catch (const Error& error) {
    record.status = TrialStatus::failed;
    record.reason = first_line(error.what());
    record.lacks_metric = false;
  }
  if (record.status == TrialStatus::interrupted) set_aside_.insert(trial);
  save_();
  const bool failed = record.status == TrialStatus::failed;
  log::info(cat("trial ", trial, ": ", enum_text(record.status),
                failed         ? cat(", ", escape_controls(record.reason))
                : record.value ? cat(", ", escape_controls(plan_.spec.metric), " = ", *record.value)
                               : std::string()));
  check_metric(trials_);
}

void SweepRunner::judge(TrialRecord& record, TrialStatus found, const detail::ProcessEnd& end,
                        const std::string& words) const {
  const bool lacks_metric = std::exchange(record.lacks_metric, false);
  const auto fail = [&](std::string reason) {
    record.status = TrialStatus::failed;
    record.reason = std::move(reason);
  };
  const bool stops = end_.signal != 0;
  if (end.by_signal && !stops && !asks_to_end(end.value))
    return fail(cat("ended by signal ", end.value, " (", ::strsignal(end.value), ")"));
  if (end.by_signal || is_stop_code(end.value)) {
    record.status = TrialStatus::interrupted;
    record.reason.clear();
    return;
  }
  if (end.value != 0) {
    const std::string why = first_line(words.empty() ? record.reason : words);
    return fail(why.empty() ? cat("exit code ", end.value, "; see log.txt") : cat("exit code ", end.value, ": ", why));
  }
  if (found == TrialStatus::completed || found == TrialStatus::failed) {
    record.status = found;
    record.lacks_metric = lacks_metric;
    return;
  }
  const auto rung = history::rung_of(plan_, record);
  const int64_t reached = plan_.spec.halving && plan_.spec.halving->min_epochs ? record.epochs : record.steps;
  if (!rung || reached < *rung) return fail("the fit has ended, but its run is not finished; see log.txt");
  if (!record.value) {
    record.lacks_metric = lacks_metric;
    const std::string logged =
        lacks_metric ? cat("; ", history::logged_instead(plan_.spec, folder_ / record.run)) : std::string();
    return fail(cat("the metric '", plan_.spec.metric, "' has no finite value at rung ", *rung, as_sentence(logged),
                    "Validate earlier, or raise the length of the first rung"));
  }
  record.status = TrialStatus::paused;
  record.at_rungs.resize(static_cast<size_t>(record.target));
  record.at_rungs.push_back(record.value);
}

}  // namespace fulgur::cli
