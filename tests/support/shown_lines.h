#pragma once

#include <string>

#include "fulgur/core/text/log.h"

namespace fulgur::test {

/// The messages that `function` shows, a line each; warnings that were shown before are shown again. What `function`
/// throws is left to `error`.
template <class Function>
std::string shown_lines(Function function, std::string* error = nullptr) {
  std::string lines;
  log::reset_warnings();
  log::set_sink(
      [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; }, &lines);
  struct Remove {
    ~Remove() { log::set_sink(nullptr, nullptr); }
  } remove;
  try {
    function();
  } catch (const std::exception& thrown) {
    if (!error) throw;
    *error = thrown.what();
  }
  return lines;
}

}  // namespace fulgur::test
