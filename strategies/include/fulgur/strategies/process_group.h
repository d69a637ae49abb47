#pragma once

#include <memory>
#include <string>

#include "fulgur/core/collectives.h"
#include "fulgur/core/process_place.h"

namespace fulgur {

/// How the processes of a run are connected.
struct FULGUR_API ProcessGroupOptions {
  std::string backend = "gloo";    ///< of tensors on `device`: gloo or nccl; those on the host always go through gloo
  at::Device device{at::kCPU};
  double start_timeout_s = 300;    ///< for all to come together, and up to the end of the first step
  double timeout_s = 60;           ///< for each exchange from then on
};

/// The processes of a run, connected. Made and used by the thread of the run; backward's thread may exchange through
/// `collectives()` too.
class FULGUR_API ProcessGroup {
 public:
  /// All ranks call it. Throws a DistributedError that names address, port and rank where they cannot come together, and
  /// which ranks are missing.
  static std::shared_ptr<ProcessGroup> connect(const ProcessPlace& place, const ProcessGroupOptions& options);
  /// Waits for nobody. Called where all ranks have ended, or where this one has failed.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// That of this rank; under MPI its node's number is known only now.
  const ProcessPlace& place() const;
  Collectives& collectives();
  /// From now on an exchange that takes longer fails.
  void use_short_timeout();
  /// `gloo over 10.0.0.7 (the way to node0)`, for the person at the console.
  std::string text() const;
  /// Turns an error of an exchange into a DistributedError that says what each rank was last seen doing; another error is
  /// thrown on as it is. Inside a catch block.
  [[noreturn]] void rethrow(const char* operation) const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
