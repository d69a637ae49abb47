// What the launcher's tests start: a process of a run without LibTorch, which does as its arguments say.
//
//   launched_program FOLDER [when=RANK|when=RANK@RESTART] ACTION… — each action of the ranks and restarts that `when`
//   named last
//
// It begins by writing FOLDER/started.RANK.RESTART with its environment. Actions: exit=CODE, kill=SIGNAL (itself),
// say=TEXT (to the launcher), wait=NAME (for the file FOLDER/NAME), touch=NAME, hang, term=CODE (on SIGTERM, SIGINT,
// SIGHUP exit so, after "got" was added to got.RANK.SIGNAL; SIGUSR1 is noted only), ignore (SIGTERM), child (starts a
// process that hangs; its id into FOLDER/child.RANK).
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "fulgur/strategies/launcher.h"

extern char** environ;

namespace {

std::string g_got_prefix;
volatile std::sig_atomic_t g_code = 0;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

void publish(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path temporary = path.string() + ".part";
  std::ofstream(temporary) << text;
  std::filesystem::rename(temporary, path);
}

[[noreturn]] void hang() {
  while (true) ::pause();
}

void on_signal(int number) {
  // Not async-signal-safe, but this program does nothing else when a signal comes.
  std::ofstream(g_got_prefix + std::to_string(number), std::ios::app) << "got";
  if (number != SIGUSR1) ::_exit(g_code);
}

bool applies(std::string_view when, const std::string& rank, const std::string& restart) {
  const size_t mark = when.find('@');
  return when.substr(0, mark) == rank && (mark == std::string_view::npos || when.substr(mark + 1) == restart);
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path folder = argv[1];
  const std::string rank = variable("RANK"), restart = variable("FULGUR_RESTARTS");
  g_got_prefix = (folder / ("got." + rank + ".")).string();
  std::string environment = "pid=" + std::to_string(::getpid()) + "\npgid=" + std::to_string(::getpgrp()) + "\n";
  for (char** entry = environ; *entry; ++entry) environment += std::string(*entry) + "\n";
  // Handlers first: who sees the file may send a signal.
  for (int i = 2; i < argc; ++i) {
    const std::string_view action = argv[i];
    if (!action.starts_with("term=")) continue;
    g_code = std::atoi(argv[i] + 5);
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) std::signal(number, on_signal);
  }
  publish(folder / ("started." + rank + "." + restart), environment);

  bool now = true;
  for (int i = 2; i < argc; ++i) {
    const std::string action = argv[i];
    const std::string value = action.substr(std::min(action.find('=') + 1, action.size()));
    if (action.starts_with("when=")) {
      now = applies(value, rank, restart);
    } else if (!now) {
      continue;
    } else if (action.starts_with("exit=")) {
      return std::atoi(value.c_str());
    } else if (action.starts_with("kill=")) {
      ::kill(::getpid(), std::atoi(value.c_str()));
    } else if (action.starts_with("say=")) {
      fulgur::tell_launcher(value);
    } else if (action.starts_with("keep=")) {
      fulgur::keep_for_launcher(value);
    } else if (action.starts_with("wait=")) {
      while (!std::filesystem::exists(folder / value)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    } else if (action.starts_with("touch=")) {
      publish(folder / value, "");
    } else if (action == "ignore") {
      std::signal(SIGTERM, SIG_IGN);
    } else if (action == "child") {
      const pid_t child = ::fork();
      if (child == 0) hang();
      publish(folder / ("child." + rank), std::to_string(child));
    } else if (action == "hang") {
      hang();
    }
  }
  return 0;
}
