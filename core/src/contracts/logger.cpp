#include "fulgur/core/contracts/logger.h"

#include "fulgur/core/text/class_name.h"

namespace fulgur {
namespace {
thread_local std::optional<std::chrono::system_clock::time_point> logged_at_of_thread;
thread_local const std::atomic<bool>* must_return_of_thread = nullptr;
}  // namespace

std::chrono::system_clock::time_point Logger::logged_at() {
  return logged_at_of_thread.value_or(std::chrono::system_clock::now());
}
LoggedAt::LoggedAt(std::chrono::system_clock::time_point time) { logged_at_of_thread = time; }
LoggedAt::~LoggedAt() { logged_at_of_thread.reset(); }

bool Logger::must_return() { return must_return_of_thread != nullptr && *must_return_of_thread; }
MustReturn::MustReturn(const std::atomic<bool>& flag) { must_return_of_thread = &flag; }
MustReturn::~MustReturn() { must_return_of_thread = nullptr; }

Logger::~Logger() = default;
std::string Logger::state_key() const { return detail::class_name(typeid(*this)); }
}  // namespace fulgur
