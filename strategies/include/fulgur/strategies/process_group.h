#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/contracts/process_place.h"

namespace fulgur {

/// The largest limit for ranks to connect or to exchange, in seconds: clocks overflow with much larger ones.
inline constexpr double kLongestTimeout = 1e8;

/// How the processes of a run are connected.
struct FULGUR_API ProcessGroupOptions {
  std::string backend = "gloo";  ///< gloo or nccl, for tensors on `device`; those on the host always use gloo
  at::Device device{at::kCPU};
  /// Limit for all ranks to connect, and for each exchange until the end of the first step.
  double start_timeout_s = 300;
  double timeout_s = 60;  ///< limit for each exchange from then on
};

/// The connected processes of a run. Created and used by the run's thread; backward's thread may also exchange through
/// `collectives()`.
class FULGUR_API ProcessGroup {
 public:
  /// All ranks must call it. Throws a DistributedError that names address, port, rank and missing ranks if they cannot
  /// connect.
  static std::shared_ptr<ProcessGroup> connect(const ProcessPlace& place, const ProcessGroupOptions& options);
  /// Aborts what `shut_down` has not ended, without waiting.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// The place of this rank. Under MPI its node number is known only after connecting.
  const ProcessPlace& place() const;
  Collectives& collectives();
  /// From now on an exchange that takes longer than the short timeout fails.
  void use_short_timeout();
  /// Ends the communication in order. All ranks that reach the end call it; they agree, and NCCL ends on all of them.
  /// If one does not arrive within the timeout, or an exchange has failed, this rank aborts.
  void shut_down() noexcept;
  /// Ends this rank alone: kernels that wait for other ranks return, and no more exchanges are allowed.
  void abort() noexcept;
  /// Aborts device work whose exchanges LibTorch's own thread does not watch: kernels that wait for other ranks return,
  /// and `check` throws. Callable from any thread.
  void abort_late_launch() noexcept;
  /// The current timeout of an exchange.
  std::chrono::milliseconds timeout() const;
  /// Throws a DistributedError if an exchange over NCCL has failed since the start. Such a failure is detected by a
  /// LibTorch thread, and what the device computes from then on is undefined; so call this after the host has
  /// synchronized with it.
  void check() const;
  /// `gloo over 10.0.0.7 (the route to node0)`, for the console.
  std::string describe() const;
  /// Turns an error of an exchange into a DistributedError that says what each rank was last doing; other errors are
  /// rethrown unchanged. Call inside a catch block.
  [[noreturn]] void rethrow(const char* operation) const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  [[noreturn]] void lose(const char* operation, bool late, std::string_view why) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
