#include "fulgur/core/text/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <fstream>
#include <mutex>
#include <set>

#include "fulgur/core/text/text.h"

namespace fulgur::log {

namespace {

struct State {
  std::mutex mutex;
  Level level = Level::info;
  std::set<std::string, std::less<>> shown, silenced;
  ConsoleGuard* guard = nullptr;
  Sink sink = nullptr;
  void* sink_user = nullptr;
  std::shared_ptr<spdlog::logger> console;
  std::string process;  // not empty: lines go to `file`, or are kept in `kept`
  std::string kept;
  std::ofstream file;

  State() {
    // Not registered with spdlog, so that it does not interfere with a program's own use of spdlog.
    console = std::make_shared<spdlog::logger>("fulgur", std::make_shared<spdlog::sinks::stderr_sink_st>());
    console->set_pattern("%v");
    console->set_level(spdlog::level::trace);
    console->flush_on(spdlog::level::trace);
  }
};

State& state() {
  // Never destroyed: threads that outlive main may still log.
  static State* const the_state = new State;
  return *the_state;
}

spdlog::level::level_enum to_spdlog(Level level) {
  if (level == Level::debug) return spdlog::level::debug;
  if (level == Level::warning) return spdlog::level::warn;
  return level == Level::error ? spdlog::level::err : spdlog::level::info;
}

/// The state, locked.
class Locked {
 public:
  State* operator->() { return &state_; }
  State& operator*() { return state_; }

 private:
  State& state_ = state();
  std::lock_guard<std::mutex> lock_{state_.mutex};
};

/// Calls the guard before and after a line, even if writing it throws.
class AroundLine {
 public:
  explicit AroundLine(ConsoleGuard* guard) : guard_(guard) {
    if (guard_ != nullptr) guard_->before_line();
  }
  ~AroundLine() {
    if (guard_ != nullptr) guard_->after_line();
  }
  AroundLine(const AroundLine&) = delete;
  AroundLine& operator=(const AroundLine&) = delete;

 private:
  ConsoleGuard* guard_;
};

/// The caller holds the mutex.
void write(State& s, Level level, const std::string& line) {
  if (level < s.level) return;
  if (s.sink != nullptr) s.sink(level, line, s.sink_user);
  if (!s.process.empty()) {
    if (s.file.is_open())
      s.file << line << '\n' << std::flush;
    else
      s.kept += line + '\n';
    if (level != Level::error) return;
    const std::string marked = cat("[", s.process, "] ", line);
    s.console->log(to_spdlog(level), spdlog::string_view_t(marked.data(), marked.size()));
    return;
  }
  const AroundLine around(s.guard);
  s.console->log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

void write_locked(Level level, std::string_view prefix, std::string_view message) {
  const std::string line = cat(prefix, escape_controls(message));
  write(*Locked(), level, line);
}

}  // namespace

void set_level(Level level) { Locked()->level = level; }
Level level() { return Locked()->level; }

void debug(std::string_view message) { write_locked(Level::debug, "debug: ", message); }
void info(std::string_view message) { write_locked(Level::info, "", message); }
void error(std::string_view message) { write_locked(Level::error, "error: ", message); }

void warn(std::string_view id, std::string_view message) {
  const std::string line = cat("warning: ", escape_controls(message), " [", escape_controls(id), "]");
  Locked s;
  if (!s->silenced.contains(id) && s->shown.emplace(id).second) write(*s, Level::warning, line);
}

void silence(const std::vector<std::string>& ids) { Locked()->silenced.insert(ids.begin(), ids.end()); }

void reset_warnings() {
  Locked s;
  s->shown.clear();
  s->silenced.clear();
}

void leave_console(std::string_view name) {
  Locked s;
  if (s->process == name) return;
  s->process = escape_controls(name);
  s->kept.clear();
  s->file.close();
}

std::string process_name() { return Locked()->process; }

void write_to(const std::filesystem::path& file) {
  Locked s;
  if (s->process.empty()) return;
  s->file.close();
  s->file.clear();
  // Opening a fifo would wait for its reader.
  std::error_code error;
  const auto there = std::filesystem::status(file, error);
  if (!std::filesystem::exists(there) || std::filesystem::is_regular_file(there)) s->file.open(file, std::ios::app);
  if (!s->file.is_open()) return;
  s->file << s->kept << std::flush;
  s->kept.clear();
}

void set_console_guard(ConsoleGuard* guard) { Locked()->guard = guard; }

void set_sink(Sink sink, void* user) {
  Locked s;
  s->sink = sink;
  s->sink_user = user;
}

}  // namespace fulgur::log
