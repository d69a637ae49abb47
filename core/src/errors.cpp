#include "fulgur/core/errors.h"

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

NonFiniteError::NonFiniteError(const std::string& message) : Error(message, ExitCode::non_finite) {}
NonFiniteError::~NonFiniteError() = default;

}  // namespace fulgur
