#include "ranks/communicator.h"

#include <algorithm>
#include <chrono>

#include "ranks/report.h"
#include "ranks/waiting.h"

struct ncclComm {
  std::shared_ptr<fulgur::simulated_nccl::Communicator> communicator;
};

namespace fulgur::simulated_nccl {
namespace {

// Only this process wakes the condition variable. Aborts by other threads are checked at this interval.
constexpr auto kLook = std::chrono::milliseconds(5);

// Never freed, since LibTorch's threads may still use handles while the process exits.
struct Handles {
  std::mutex mutex;
  std::vector<std::unique_ptr<ncclComm>> all;
};

Handles& handles() {
  static auto* made = new Handles;
  return *made;
}

std::shared_ptr<Communicator> look_up(ncclComm_t handle, const char* function, bool take_it) {
  Handles& table = handles();
  {
    const std::lock_guard lock(table.mutex);
    for (const auto& known : table.all)
      if (known.get() == handle && known->communicator)
        return take_it ? std::exchange(known->communicator, nullptr) : known->communicator;
  }
  fail(ncclInvalidUsage, std::string(function) + ": the communicator was destroyed, aborted or never created");
  return nullptr;
}

}  // namespace

std::string Communicator::place() const {
  return "rank " + std::to_string(rank_) + " of " + std::to_string(world_size_);
}

ncclResult_t Communicator::wait_for_all() {
  Waiting waiting(
      [this] { return place() + ": " + std::to_string(segment_->attached()) + " ranks have joined the communicator"; });
  while (segment_->attached() < world_size_ && !aborted()) waiting.pause();
  Segment::close(origin_);
  for (int other = 0; other < world_size_ && !aborted(); ++other)
    if (other != rank_ && segment_->gpu(other) == segment_->gpu(rank_))
      return fail(ncclInvalidUsage, "Duplicate GPU detected: " + place() + " and rank " + std::to_string(other) +
                                        " both use GPU " + std::to_string(segment_->gpu(rank_)));
  return ncclSuccess;
}

uint64_t Communicator::submit() {
  const std::lock_guard lock(mutex_);
  outstanding_.insert(++tickets_);
  return tickets_;
}

bool Communicator::begin(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  const auto may = [&] { return aborted() || (!running_ && (ticket == kNoTicket || *outstanding_.begin() == ticket)); };
  while (!may()) changed_.wait_for(lock, kLook);
  if (aborted()) return false;
  running_ = true;
  return true;
}

void Communicator::end(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  running_ = false;
  outstanding_.erase(ticket);
  changed_.notify_all();
}

void Communicator::drop(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  outstanding_.erase(ticket);
  changed_.notify_all();
}

void Communicator::drain() {
  std::unique_lock lock(mutex_);
  while (!outstanding_.empty() && !aborted()) changed_.wait_for(lock, kLook);
}

uint64_t Communicator::next_call(int peer, bool outgoing, bool collective) {
  return ++calls_[static_cast<size_t>(peer) * 4 + (outgoing ? 2 : 0) + (collective ? 1 : 0)];
}

ncclRedOp_t Communicator::add_reduction(const Reduction& reduction) {
  const std::lock_guard lock(mutex_);
  auto free = std::find(reductions_.begin(), reductions_.end(), nullptr);
  if (free == reductions_.end()) free = reductions_.insert(free, nullptr);
  *free = std::make_unique<Reduction>(reduction);
  return static_cast<ncclRedOp_t>(ncclNumOps + (free - reductions_.begin()));
}

bool Communicator::find_reduction(ncclRedOp_t op, Reduction& reduction) {
  if (op < ncclNumOps) {
    reduction = {.op = op};
    return op >= 0;
  }
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(op - ncclNumOps);
  if (index >= reductions_.size() || !reductions_[index]) return false;
  reduction = *reductions_[index];
  return true;
}

bool Communicator::remove_reduction(ncclRedOp_t op) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(op - ncclNumOps);
  if (op < ncclNumOps || index >= reductions_.size() || !reductions_[index]) return false;
  reductions_[index].reset();
  return true;
}

std::shared_ptr<Communicator> find(ncclComm_t handle, const char* function) { return look_up(handle, function, false); }
std::shared_ptr<Communicator> take(ncclComm_t handle, const char* function) { return look_up(handle, function, true); }

ncclComm_t new_handle(std::shared_ptr<Communicator> communicator) {
  Handles& table = handles();
  const std::lock_guard lock(table.mutex);
  return table.all.emplace_back(new ncclComm{std::move(communicator)}).get();
}

}  // namespace fulgur::simulated_nccl
