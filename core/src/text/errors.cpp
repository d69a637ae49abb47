#include "fulgur/core/text/errors.h"

#include <csignal>

namespace fulgur {

Error::Error(const std::string& message, ExitCode code) : std::runtime_error(message), code_(code) {}
Error::~Error() = default;

ConfigError::ConfigError(const std::string& message) : Error(message, ExitCode::usage) {}
ConfigError::~ConfigError() = default;

DataError::DataError(const std::string& message) : Error(message, ExitCode::data) {}
DataError::~DataError() = default;

CheckpointError::CheckpointError(const std::string& message) : Error(message, ExitCode::checkpoint) {}
CheckpointError::~CheckpointError() = default;

DistributedError::DistributedError(const std::string& message) : Error(message, ExitCode::distributed) {}
DistributedError::~DistributedError() = default;

namespace {

std::string signal_text(int signal) {
  if (signal == Interrupted::kStopAfter) return "trainer.stop_after";
  return signal == SIGINT ? "SIGINT (Ctrl-C)" : signal == SIGTERM ? "SIGTERM" : "signal " + std::to_string(signal);
}

}  // namespace

Interrupted::Interrupted(int signal)
    : Error("[trainer] the run was ended by " + signal_text(signal) + ".",
            signal == SIGINT ? ExitCode::interrupted : ExitCode::terminated),
      signal_(signal) {}
Interrupted::~Interrupted() = default;

NonFiniteError::NonFiniteError(const std::string& message) : Error(message, ExitCode::non_finite) {}
NonFiniteError::~NonFiniteError() = default;

}  // namespace fulgur
