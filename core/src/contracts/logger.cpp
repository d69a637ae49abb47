#include "fulgur/core/contracts/logger.h"

#include "text/class_name.h"

namespace fulgur {
namespace {
thread_local std::optional<std::chrono::system_clock::time_point> logged_at_of_thread;
}  // namespace

std::chrono::system_clock::time_point Logger::logged_at() {
  return logged_at_of_thread.value_or(std::chrono::system_clock::now());
}
LoggedAt::LoggedAt(std::chrono::system_clock::time_point time) { logged_at_of_thread = time; }
LoggedAt::~LoggedAt() { logged_at_of_thread.reset(); }

Logger::~Logger() = default;
std::string Logger::state_key() const { return detail::class_name(typeid(*this)); }
StateTree Logger::state() { return nullptr; }
void Logger::load_state(const StateTree&) {}
void Logger::log_hyperparams(const ConfigNode&) {}
void Logger::log_media(const MediaRecord&, int64_t) {}
void Logger::log_artifact(const std::filesystem::path&) {}
void Logger::after_save_checkpoint(const CheckpointInfo&) {}
}  // namespace fulgur
