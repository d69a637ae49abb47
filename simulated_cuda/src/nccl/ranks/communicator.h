#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "ranks/data_types.h"
#include "ranks/segment.h"

namespace fulgur::simulated_nccl {

/// A communicator, as one rank has it.
class Communicator {
 public:
  Communicator(int world_size, int rank, int device, std::unique_ptr<Segment> segment, const Origin& origin)
      : world_size_(world_size), rank_(rank), device_(device), segment_(std::move(segment)), origin_(origin) {}

  int world_size() const { return world_size_; }
  int rank() const { return rank_; }
  int device() const { return device_; }
  Segment& segment() { return *segment_; }
  /// "rank 1 of 2"
  std::string place() const;

  /// Waits until every rank has attached. Returns an error if two ranks use the same GPU, as NCCL does.
  ncclResult_t wait_for_all();

  /// Makes every wait of this rank return. The other ranks are not notified.
  void abort() { aborted_ = true; }
  bool aborted() const { return aborted_; }
  void set_error(ncclResult_t error) { error_ = error; }
  ncclResult_t error() const { return error_; }

  /// Work of a communicator runs in the order in which it was submitted, on any streams: call `submit`, then `begin`
  /// (which waits for the work's turn; false if the communicator was aborted) and `end`. Work that a graph runs has no
  /// ticket: it runs as soon as no other work runs.
  static constexpr uint64_t kNoTicket = 0;
  uint64_t submit();
  bool begin(uint64_t ticket);
  void end(uint64_t ticket);
  /// Gives up a ticket, whose work will never run.
  void drop(uint64_t ticket);
  /// Waits until all submitted work has ended, or the communicator was aborted.
  void drain();

  /// The number of the next message between this rank and another.
  uint64_t next_call(int peer, bool outgoing, bool collective);

  /// A custom reduction, numbered from ncclNumOps on.
  ncclRedOp_t add_reduction(const Reduction& reduction);
  bool find_reduction(ncclRedOp_t op, Reduction& reduction);
  bool remove_reduction(ncclRedOp_t op);

  uint64_t next_split() { return ++splits_; }

 private:
  const int world_size_, rank_, device_;
  const std::unique_ptr<Segment> segment_;
  const Origin origin_;
  std::atomic<bool> aborted_{false};
  std::atomic<ncclResult_t> error_{ncclSuccess};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<uint64_t> outstanding_;
  uint64_t tickets_ = 0;
  bool running_ = false;
  std::vector<uint64_t> calls_ = std::vector<uint64_t>(static_cast<size_t>(world_size_) * 4);
  std::vector<std::unique_ptr<Reduction>> reductions_;
  std::atomic<uint64_t> splits_{0};
};

/// Names the communicator of a handle, or returns from the function with the error.
#define FIND_COMMUNICATOR(name, handle)     \
  const auto name = find(handle, __func__); \
  if (!name) return ncclInvalidUsage

/// The communicator of a handle. For a handle that was destroyed, aborted or never created, prints a message and
/// returns nullptr. Handles are never freed, so that a late use is detected and does not crash.
std::shared_ptr<Communicator> find(ncclComm_t handle, const char* function);
ncclComm_t new_handle(std::shared_ptr<Communicator> communicator);
/// The same; invalidates the handle.
std::shared_ptr<Communicator> take(ncclComm_t handle, const char* function);

}  // namespace fulgur::simulated_nccl
