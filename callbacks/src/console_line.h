#pragma once

#include <mutex>
#include <string>

#include "fulgur/core/text/log.h"

namespace fulgur::detail {

/// The last line on stderr, a terminal, which is replaced in place, with log lines above it. One thread uses it, while
/// any thread may log: what is drawn and the lines of the log stay whole. A closed console is not an error.
class ConsoleLine final : private log::ConsoleGuard {
 public:
  ConsoleLine() = default;
  ~ConsoleLine() override { uninstall(); }
  ConsoleLine(const ConsoleLine&) = delete;
  ConsoleLine& operator=(const ConsoleLine&) = delete;

  /// From now on log lines are printed above the line. The log has room for one such line.
  void install();
  void uninstall();
  bool is_installed() const { return installed_; }

  /// Draws `text`, which must not fill the width of the terminal, in place of what is shown.
  void show(std::string text);
  /// The same, and ends the line: what is printed next comes below it.
  void finish(const std::string& text);
  /// Ends the line that is shown, if there is one.
  void leave();
  /// Removes the line that is shown, if there is one.
  void clear();
  /// Prints a plain line while no other is shown, also if stderr is not a terminal.
  void print(const std::string& text);

 private:
  void before_line() override;
  void after_line() override;

  bool installed_ = false;
  std::mutex mutex_;   ///< held for each output, and while the log writes a line
  std::string shown_;  ///< empty: there is no line
};

}  // namespace fulgur::detail
