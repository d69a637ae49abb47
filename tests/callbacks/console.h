#pragma once

#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/temporary_folder.h"

namespace fulgur::test {

/// An environment variable while it lives; nothing: unset.
class Environment {
 public:
  Environment(const char* name, std::optional<std::string> value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Environment() { set(before_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const std::optional<std::string>& value) { value ? setenv(name_, value->c_str(), 1) : unsetenv(name_); }
  const char* name_;
  std::optional<std::string> before_;
};

inline size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// What `body` writes to stderr while that is a file.
template <class Body>
std::string in_file(Body body) {
  TemporaryFolder folder;
  const int before = dup(STDERR_FILENO);
  const int file = open((folder / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(file, STDERR_FILENO);
  close(file);
  body();
  dup2(before, STDERR_FILENO);
  close(before);
  return read_text(folder / "err");
}

/// The same while it is a terminal of that many columns, which calls itself `term`.
template <class Body>
std::string on_terminal(unsigned short columns, Body body, const std::string& term = "xterm",
                        std::optional<std::string> no_color = {}) {
  const Environment terminal("TERM", term), colour("NO_COLOR", std::move(no_color));
  int master = -1, slave = -1;
  winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  REQUIRE(openpty(&master, &slave, nullptr, nullptr, &size) == 0);
  std::string text;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t got = read(master, buffer, sizeof buffer); got > 0; got = read(master, buffer, sizeof buffer))
      text.append(buffer, static_cast<size_t>(got));
  });
  const int before = dup(STDERR_FILENO);
  dup2(slave, STDERR_FILENO);
  close(slave);
  body();
  dup2(before, STDERR_FILENO);  // closes the last end of the terminal: the reader ends
  close(before);
  reader.join();
  close(master);
  return text;
}

/// Each drawing of a bar in what a terminal got, without colours.
inline std::vector<std::string> drawings(std::string text) {
  for (const std::string colour : {"\x1b[35m", "\x1b[0m"})
    for (size_t at = text.find(colour); at != std::string::npos; at = text.find(colour, at))
      text.erase(at, colour.size());
  const std::string clear = "\r\x1b[2K";
  std::vector<std::string> drawn;
  for (size_t at = text.find(clear); at != std::string::npos; at = text.find(clear, at)) {
    at += clear.size();
    const std::string line = text.substr(at, text.find_first_of("\r\n\x1b", at) - at);
    if (!line.empty()) drawn.push_back(line);
  }
  return drawn;
}

/// The lines that a terminal shows after it got `text`. The last one is not ended.
inline std::vector<std::string> screen_lines(const std::string& text) {
  const std::string clear = "\r\x1b[2K", end = "\r\n";
  std::vector<std::string> lines(1);
  for (size_t at = 0; at < text.size();) {
    if (text.compare(at, clear.size(), clear) == 0) {
      lines.back().clear();
      at += clear.size();
    } else if (text.compare(at, end.size(), end) == 0) {
      lines.emplace_back();
      at += end.size();
    } else {
      lines.back() += text[at++];
    }
  }
  return lines;
}

/// Columns that a line takes, where characters from U+1000 on but blocks take two.
inline int64_t width(const std::string& line) {
  int64_t columns = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    if ((byte & 0xC0) == 0x80) continue;
    columns += byte >= 0xE1 && line.compare(i, 3, "█") != 0 ? 2 : 1;
  }
  return columns;
}

}  // namespace fulgur::test
