#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace fulgur::cli {

bool stdout_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && !(term && std::string_view(term) == "dumb");
}

history::TextStyle style_of_stdout() {
  history::TextStyle style;
  if (!stdout_is_terminal()) return style;
  struct winsize size {};
  style.columns = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  const char* no_color = std::getenv("NO_COLOR");
  style.colour = !no_color || *no_color == '\0';
  return style;
}

int64_t terminal_rows() {
  struct winsize size {};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 ? size.ws_row : 24;
}

}  // namespace fulgur::cli
