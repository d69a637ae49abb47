#include "process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace fulgur::test {

namespace {

void redirect(const std::filesystem::path& path, int target) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(file, target);
  ::close(file);
}

[[noreturn]] void run_child(const char* program, const std::vector<std::string>& arguments, const Start& start,
                            const TemporaryFolder& output) {
  // Room for very long command lines: the kernel allows a quarter of the stack's limit.
  rlimit stack{};
  ::getrlimit(RLIMIT_STACK, &stack);
  stack.rlim_cur = stack.rlim_max == RLIM_INFINITY ? rlim_t{64} << 20 : stack.rlim_max;
  ::setrlimit(RLIMIT_STACK, &stack);
  redirect(output / "err", STDERR_FILENO);
  if (start.close_stdout) ::close(STDOUT_FILENO);
  else if (!start.broken_pipe) redirect(output / "out", STDOUT_FILENO);
  else {
    int ends[2];
    if (::pipe(ends) == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::close(ends[0]);
      ::close(ends[1]);
    }
  }
  for (const std::string& variable : start.environment) ::putenv(const_cast<char*>(variable.c_str()));
  if (!start.folder.empty() && ::chdir(start.folder.c_str()) != 0) ::_exit(127);
  std::vector<char*> argv{const_cast<char*>(program)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  if (start.address_space_mb > 0) {
    const rlimit memory{static_cast<rlim_t>(start.address_space_mb) << 20, static_cast<rlim_t>(start.address_space_mb) << 20};
    ::setrlimit(RLIMIT_AS, &memory);
  }
  ::execv(program, argv.data());
  ::_exit(127);
}

}  // namespace

Finished trainer(const std::vector<std::string>& arguments, const Start& start) {
  const char* program = FULGUR_TRAINER_BIN;  // by the build
  const TemporaryFolder output;
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) run_child(program, arguments, start, output);
  int status = 0;
  ::waitpid(child, &status, 0);
  Finished finished;
  finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (finished.exit_code == 127) throw std::runtime_error("the trainer program could not be started");
  finished.out = read_text(output / "out");
  finished.err = read_text(output / "err");
  return finished;
}

}  // namespace fulgur::test
