// The program `trainer`, started once for many commands: a third of a second of LibTorch's start is paid once.
//
//   fork_server     each line of stdin is a JSON object: {"argv": [...], "folder": "...", "environment": {...}, "out": FILE, "err": FILE}
//
// A command runs in a child that main() of `trainer` never saw before; its exit code is a line of stdout. Verbs that start
// this program again (launched ranks, trials of a sweep) are not for it.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// The linker gives main() of `trainer` the first name, and begins the program with the second (--wrap=main).
extern "C" int __real_main(int argc, char** argv);
extern "C" int __wrap_main(int argc, char** argv);

namespace {

void write_to(const std::string& path, int target) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || ::dup2(file, target) < 0) ::_exit(127);
  ::close(file);
}

[[noreturn]] void run_child(const nlohmann::json& command) {
  std::vector<std::string> words = command.at("argv");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  write_to(command.at("out"), STDOUT_FILENO);
  write_to(command.at("err"), STDERR_FILENO);
  if (::chdir(command.at("folder").get<std::string>().c_str()) != 0) ::_exit(127);
  for (const auto& [name, value] : command.at("environment").items())
    ::setenv(name.c_str(), value.get<std::string>().c_str(), 1);
  const int code = __real_main(static_cast<int>(words.size()), argv.data());
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

int __wrap_main(int /*argc*/, char** /*argv*/) {
  for (std::string line; std::getline(std::cin, line);) {
    const pid_t child = ::fork();
    if (child < 0) return 1;
    if (child == 0) run_child(nlohmann::json::parse(line));
    int status = 0;
    ::waitpid(child, &status, 0);
    std::cout << (WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)) << std::endl;
  }
  return 0;
}
