#include "run/rank_consensus.h"

#include <algorithm>
#include <utility>

#include "run/run.h"
#include "run/signals.h"

namespace fulgur::detail {
namespace {

enum Slot : size_t { kStop, kSignal, kSave, kSaveDone, kClock, kInterval, kSlots };

constexpr double kEvery_s = 1.0;
constexpr int64_t kMostSteps = 10000;

double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

}  // namespace

bool RankConsensus::alone() const { return run_.world_size() == 1; }

void RankConsensus::start_clock() {
  started_ = read_at_ = std::chrono::steady_clock::now();
  clock_s_ = 0;
}

double RankConsensus::clock_s() const { return !run_.strategy || alone() ? seconds_since(started_) : clock_s_; }

void RankConsensus::begin() {
  std::vector<int64_t> pending(kSlots, 0);
  // The first rank that asks has the largest number.
  pending[kStop] = run_.stop_reason ? run_.world_size() - run_.rank() : 0;
  pending[kSignal] = signals::received().value_or(0);
  pending[kSave] = signals::take_save_request() ? 1 : 0;
  // The clock is rank 0's, and so is what hangs on it.
  if (run_.is_global_zero()) {
    pending[kSaveDone] = run_.checkpoints.save_is_done() ? 1 : 0;
    pending[kClock] = static_cast<int64_t>(seconds_since(started_) * 1e6);
    const int64_t done = steps_ - read_at_step_;
    const double each_s = done > 0 ? seconds_since(read_at_) / static_cast<double>(done) : kEvery_s;
    const auto& every = run_.options.agree_every.value;
    pending[kInterval] =
        every ? *every : std::clamp<int64_t>(static_cast<int64_t>(kEvery_s / std::max(each_s, 1e-9)), 1, kMostSteps);
  }
  pending_ = run_.collectives().start_max(std::move(pending));
}

void RankConsensus::read() {
  const std::vector<int64_t> agreed = pending_->take();
  run_.collectives().check();
  pending_.reset();
  if (agreed[kStop] != 0 && !std::exchange(stop_, true))
    run_.stop_reason =
        run_.collectives().broadcast_text(run_.stop_reason.value_or(""), run_.world_size() - agreed[kStop]);
  if (agreed[kSignal] != 0) signal_ = static_cast<int>(agreed[kSignal]);
  save_ = save_ || agreed[kSave] != 0;
  save_done_ = save_done_ || agreed[kSaveDone] != 0;
  clock_s_ = static_cast<double>(agreed[kClock]) / 1e6;
  interval_ = std::max<int64_t>(agreed[kInterval], 1);
  read_at_ = std::chrono::steady_clock::now();
  read_at_step_ = steps_;
}

void RankConsensus::step() {
  if (alone()) return;
  if (++steps_ < next_) return;
  if (pending_) read();
  begin();
  next_ = steps_ + interval_;
}

void RankConsensus::change_pace() {
  if (alone()) return;
  if (pending_) read();
  read_at_ = std::chrono::steady_clock::now();
  read_at_step_ = steps_;
  interval_ = 1;
  next_ = steps_ + 1;
}

void RankConsensus::settle() {
  if (alone()) return;
  if (pending_) read();
  begin();
  read();
  next_ = steps_ + interval_;
}

std::optional<int> RankConsensus::signal() const {
  if (alone()) return signals::received();
  return signal_ == 0 ? std::nullopt : std::optional(signal_);
}

bool RankConsensus::stop() const { return alone() ? run_.stop_reason.has_value() : stop_; }

bool RankConsensus::take_save_request() { return alone() ? signals::take_save_request() : std::exchange(save_, false); }

bool RankConsensus::take_save_done() { return std::exchange(save_done_, false); }

}  // namespace fulgur::detail
