#include "fulgur/core/logger.h"

namespace fulgur {
Logger::~Logger() = default;
void Logger::log_hyperparams(const ConfigNode&) {}
void Logger::log_media(const MediaRecord&, int64_t) {}
void Logger::log_artifact(const std::filesystem::path&) {}
void Logger::after_save_checkpoint(const CheckpointInfo&) {}
}  // namespace fulgur
