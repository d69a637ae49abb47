#include "fulgur/core/contracts/logger.h"

#include "fulgur/core/text/class_name.h"

namespace fulgur {
Logger::~Logger() = default;
std::string Logger::state_key() const { return detail::class_name(typeid(*this)); }
}  // namespace fulgur
