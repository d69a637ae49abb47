#include "console_line.h"

#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[2K";

void put_on_console(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

void ConsoleLine::install() {
  log::set_console_guard(this);
  installed_ = true;
}

void ConsoleLine::uninstall() {
  if (std::exchange(installed_, false)) log::set_console_guard(nullptr);
}

void ConsoleLine::show(std::string text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  shown_ = std::move(text);
  put_on_console(cat(kClearLine, shown_));
}

void ConsoleLine::finish(const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  put_on_console(cat(kClearLine, text, "\n"));
  shown_.clear();
}

void ConsoleLine::leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!shown_.empty()) put_on_console("\n");
  shown_.clear();
}

void ConsoleLine::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!shown_.empty()) put_on_console(kClearLine);
  shown_.clear();
}

void ConsoleLine::print(const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  put_on_console(cat(text, "\n"));
}

// Held until after_line, or the line could be drawn between the two. The order is always: the log's lock, then this
// one.
void ConsoleLine::before_line() {
  mutex_.lock();
  if (!shown_.empty()) put_on_console(kClearLine);
}

void ConsoleLine::after_line() {
  if (!shown_.empty()) put_on_console(shown_);
  mutex_.unlock();
}

}  // namespace fulgur::detail
