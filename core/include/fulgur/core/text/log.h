#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

/// Messages to the user on the console (stderr). Metrics go through `Logger` instead. Every function is thread-safe.
/// Control characters in messages are escaped.
namespace fulgur::log {

enum class Level { debug, info, warning, error, off };

FULGUR_API void set_level(Level level);
FULGUR_API Level level();

FULGUR_API void debug(std::string_view message);
FULGUR_API void info(std::string_view message);
FULGUR_API void error(std::string_view message);

/// A warning with an id such as `data.val_shuffled`. Each id is shown once per process, in brackets, unless the
/// config's `silence` list names it.
FULGUR_API void warn(std::string_view id, std::string_view message);

/// Silences warnings by id for this process (the config's `silence:` list).
FULGUR_API void silence(const std::vector<std::string>& ids);

/// Forgets which warnings were shown, for tests and for a second run in one process.
FULGUR_API void reset_warnings();

/// Call it in a process that is not the first of its run. Lines then go to a file instead of the console, and are
/// buffered until the file is set. Errors go to both, prefixed with `[name] ` on the console. An empty name restores
/// the console and closes the file.
FULGUR_API void leave_console(std::string_view name);
/// The name set by `leave_console`; empty for a process that writes to the console.
FULGUR_API std::string process_name();
/// Sets the file of such a process. If it cannot be written, lines are lost.
FULGUR_API void write_to(const std::filesystem::path& file);

/// Called around each line written to the console, so that a progress bar can clear and redraw itself. Both calls are
/// made by the thread that logs, which may be any, while it holds the log's lock: they must not log or throw.
struct ConsoleGuard {
  virtual ~ConsoleGuard() = default;
  virtual void before_line() = 0;
  virtual void after_line() = 0;
};

/// Installs `guard`; nullptr removes it. The caller keeps it alive until it is replaced.
FULGUR_API void set_console_guard(ConsoleGuard* guard);

/// Receives each message that is shown, for tests. An empty function removes it.
using Sink = void (*)(Level level, const std::string& line, void* user);
FULGUR_API void set_sink(Sink sink, void* user);

}  // namespace fulgur::log
