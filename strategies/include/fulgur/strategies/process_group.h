#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "fulgur/core/collectives.h"
#include "fulgur/core/process_place.h"

namespace fulgur {

/// How the processes of a run are connected.
struct FULGUR_API ProcessGroupOptions {
  std::string backend = "gloo";  ///< of tensors on `device`: gloo or nccl; those on the host always go through gloo
  at::Device device{at::kCPU};
  double start_timeout_s = 300;  ///< for all to come together, and up to the end of the first step
  double timeout_s = 60;         ///< for each exchange from then on
};

/// The processes of a run, connected. Made and used by the thread of the run; backward's thread may exchange through
/// `collectives()` too.
class FULGUR_API ProcessGroup {
 public:
  /// All ranks call it. Throws a DistributedError that names address, port and rank where they cannot come together,
  /// and which ranks are missing.
  static std::shared_ptr<ProcessGroup> connect(const ProcessPlace& place, const ProcessGroupOptions& options);
  /// Aborts what `shut_down` has not ended; waits for nobody.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// That of this rank; under MPI its node's number is known only now.
  const ProcessPlace& place() const;
  Collectives& collectives();
  /// From now on an exchange that takes longer fails.
  void use_short_timeout();
  /// The orderly end, called by all ranks that come to it: they agree, and NCCL ends on all of them. Where one does not
  /// come within the timeout, or an exchange has failed, this rank aborts.
  void shut_down() noexcept;
  /// The end of this rank alone: kernels that wait for other ranks return, and nothing may be exchanged any more.
  void abort() noexcept;
  /// For work of the device with exchanges that LibTorch's own thread does not watch, from any thread: kernels that
  /// wait for other ranks return, and `check` throws.
  void abort_late_launch() noexcept;
  /// How long an exchange may take now.
  std::chrono::milliseconds timeout() const;
  /// Throws a DistributedError where an exchange over NCCL has failed since the start. Such a failure is found by a
  /// thread of LibTorch, and what the device computes from then on is undefined; so this is called where the host has
  /// waited for it.
  void check() const;
  /// `gloo over 10.0.0.7 (the way to node0)`, for the person at the console.
  std::string text() const;
  /// Turns an error of an exchange into a DistributedError that says what each rank was last seen doing; another error
  /// is thrown on as it is. Inside a catch block.
  [[noreturn]] void rethrow(const char* operation) const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  [[noreturn]] void lose(const char* operation, bool late, std::string_view why) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
