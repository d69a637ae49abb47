#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace fulgur::cli {

namespace {

constexpr int64_t kUsualColumns = 80;

bool shows_text(int descriptor) {
  const char* term = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && !(term && std::string_view(term) == "dumb");
}

int64_t columns_of_terminal(int descriptor) {
  struct winsize size {};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}

}  // namespace

bool stdout_is_terminal() { return shows_text(STDOUT_FILENO); }

std::optional<int64_t> stderr_columns() {
  return shows_text(STDERR_FILENO) ? std::optional(columns_of_terminal(STDERR_FILENO)) : std::nullopt;
}

history::TextStyle style_of_stdout() {
  history::TextStyle style;
  if (!stdout_is_terminal()) return style;
  style.columns = columns_of_terminal(STDOUT_FILENO);
  const char* no_color = std::getenv("NO_COLOR");
  style.colour = !no_color || *no_color == '\0';
  return style;
}

int64_t terminal_rows() {
  struct winsize size {};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 ? size.ws_row : 24;
}

}  // namespace fulgur::cli
