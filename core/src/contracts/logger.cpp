#include "fulgur/core/contracts/logger.h"

#include "fulgur/core/text/class_name.h"

namespace fulgur {
Logger::~Logger() = default;
std::string Logger::state_key() const { return detail::class_name(typeid(*this)); }
StateTree Logger::state() { return nullptr; }
void Logger::load_state(const StateTree&) {}
void Logger::log_hyperparams(const ConfigNode&) {}
void Logger::log_media(const MediaRecord&, int64_t) {}
void Logger::log_artifact(const std::filesystem::path&) {}
void Logger::after_save_checkpoint(const CheckpointInfo&) {}
}  // namespace fulgur
