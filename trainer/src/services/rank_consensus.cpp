#include "services/rank_consensus.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "process/run_clock.h"

namespace fulgur::detail {
namespace {

enum Slot : size_t { kStop, kSignal, kSave, kSaveDone, kClock, kInterval, kSlots };

// Votes about a save: the largest counts.
enum SaveVote : int64_t { kNoSave, kWritten, kBeingWritten };

constexpr double kEvery_s = 1.0;
constexpr int64_t kMostSteps = 10000;

double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(run_clock_now() - then).count();
}

}  // namespace

RankConsensus::RankConsensus(LocalVotes votes, std::function<void(std::string)> on_stop)
    : votes_(std::move(votes)), on_stop_(std::move(on_stop)) {}

void RankConsensus::start(Collectives& collectives, std::optional<int64_t> every) {
  collectives_ = &collectives;
  every_ = every;
  started_ = read_at_ = run_clock_now();
  clock_s_ = 0;
}

double RankConsensus::clock_s() const { return alone() ? seconds_since(started_) : clock_s_; }

void RankConsensus::begin() {
  std::vector<int64_t> votes(kSlots, 0);
  // The first rank that asks has the largest number.
  votes[kStop] = votes_.stop_reason() ? collectives_->world_size() - collectives_->rank() : 0;
  votes[kSignal] = votes_.signal().value_or(0);
  votes[kSave] = votes_.take_save_request() ? 1 : 0;
  if (votes_.writes_parts && votes_.writes_parts()) votes[kSaveDone] = kBeingWritten;
  // Rank 0's clock counts, and so do the values derived from it.
  if (collectives_->rank() == 0) {
    if (votes_.save_is_done()) votes[kSaveDone] = kWritten;
    votes[kClock] = static_cast<int64_t>(seconds_since(started_) * 1e6);
    const int64_t done = steps_ - read_at_step_;
    const double each_s = done > 0 ? seconds_since(read_at_) / static_cast<double>(done) : kEvery_s;
    votes[kInterval] =
        every_ ? *every_ : std::clamp<int64_t>(static_cast<int64_t>(kEvery_s / std::max(each_s, 1e-9)), 1, kMostSteps);
  }
  pending_ = collectives_->start_max(std::move(votes));
}

void RankConsensus::read() {
  const std::vector<int64_t> agreed = pending_->take();
  collectives_->check();
  pending_.reset();
  if (agreed[kStop] != 0 && !std::exchange(stop_, true))
    on_stop_(
        collectives_->broadcast_text(votes_.stop_reason().value_or(""), collectives_->world_size() - agreed[kStop]));
  if (agreed[kSignal] != 0) signal_ = static_cast<int>(agreed[kSignal]);
  save_ = save_ || agreed[kSave] != 0;
  save_done_ = save_done_ || agreed[kSaveDone] == kWritten;
  clock_s_ = static_cast<double>(agreed[kClock]) / 1e6;
  interval_ = std::max<int64_t>(agreed[kInterval], 1);
  read_at_ = run_clock_now();
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
  read_at_ = run_clock_now();
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
  if (alone()) return votes_.signal();
  return signal_ == 0 ? std::nullopt : std::optional(signal_);
}

bool RankConsensus::stop_agreed() const { return alone() ? votes_.stop_reason().has_value() : stop_; }

bool RankConsensus::take_save_request() { return alone() ? votes_.take_save_request() : std::exchange(save_, false); }

bool RankConsensus::take_save_done() { return std::exchange(save_done_, false); }

}  // namespace fulgur::detail
