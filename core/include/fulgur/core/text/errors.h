#pragma once

#include <stdexcept>
#include <string>

#include "fulgur/core/export.h"

namespace fulgur {

/// The exit code of a Fulgur process. The numbers are part of the contract (docs/errors.md).
enum class ExitCode : int {
  ok = 0,
  other = 1,
  usage = 2,        ///< wrong command line or config
  data = 3,         ///< a data set is missing, damaged or empty
  checkpoint = 4,   ///< a checkpoint cannot be written or read, or does not fit
  distributed = 5,  ///< processes or devices cannot work together
  non_finite = 6,   ///< NaN or infinity in loss or gradients
  preempted = 75,   ///< stopped by SIGTERM after a checkpoint was written
  interrupted = 130,
  terminated = 143,  ///< stopped by SIGTERM without a checkpoint
};

/// Base of every error that Fulgur throws. The message has the form `[component.function] rule; what was found. What to
/// do.`
class FULGUR_API Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = ExitCode::other);
  ~Error() override;
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// Wrong config or command line, or incompatible options (exit code 2).
class FULGUR_API ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message);
  ~ConfigError() override;
};

/// Data that is missing, damaged, empty or out of range (exit code 3).
class FULGUR_API DataError : public Error {
 public:
  explicit DataError(const std::string& message);
  ~DataError() override;
};

/// A checkpoint that cannot be written or read, or does not fit the module (exit code 4).
class FULGUR_API CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& message);
  ~CheckpointError() override;
};

/// Processes or devices that cannot work together (exit code 5).
class FULGUR_API DistributedError : public Error {
 public:
  explicit DistributedError(const std::string& message);
  ~DistributedError() override;
};

/// SIGINT or SIGTERM, or `trainer.stop_after`, ended the process of a run. Callbacks see it in `on_exception`; `fit`,
/// `validate`, `test` and `predict` return instead of throwing it.
class FULGUR_API Interrupted : public Error {
 public:
  /// What `signal()` returns if no signal but `trainer.stop_after` ended the fit.
  static constexpr int kStopAfter = 0;
  explicit Interrupted(int signal);
  ~Interrupted() override;
  int signal() const noexcept { return signal_; }

 private:
  int signal_;
};

/// NaN or infinity with which training cannot continue (exit code 6).
class FULGUR_API NonFiniteError : public Error {
 public:
  explicit NonFiniteError(const std::string& message);
  ~NonFiniteError() override;
};

}  // namespace fulgur
