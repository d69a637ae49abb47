#include "process.h"

#include <fcntl.h>
#include <signal.h>
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
  if (start.close_stdout)
    ::close(STDOUT_FILENO);
  else if (!start.broken_pipe)
    redirect(output / "out", STDOUT_FILENO);
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
    const rlimit memory{static_cast<rlim_t>(start.address_space_mb) << 20, static_cast<rlim_t>(start.address_space_mb)
                                                                               << 20};
    ::setrlimit(RLIMIT_AS, &memory);
  }
  if (start.file_size_kb > 0) {
    const rlimit size{static_cast<rlim_t>(start.file_size_kb) << 10, static_cast<rlim_t>(start.file_size_kb) << 10};
    ::setrlimit(RLIMIT_FSIZE, &size);
  }
  ::execv(program, argv.data());
  ::_exit(127);
}

}  // namespace

Running::Running(const std::vector<std::string>& arguments, const Start& start) {
  child_ = ::fork();
  if (child_ < 0) throw std::runtime_error("fork failed");
  if (child_ == 0)
    run_child(start.program.empty() ? FULGUR_TRAINER_BIN : start.program.c_str(), arguments, start, output_);
}

Running::~Running() {
  if (status_) return;
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

void Running::signal(int number) const {
  if (!status_) ::kill(child_, number);
}

bool Running::has_ended() {
  int status = 0;
  if (!status_ && ::waitpid(child_, &status, WNOHANG) == child_) status_ = status;
  return status_.has_value();
}

bool Running::wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 30000; ++i) {
    if (condition()) return true;
    if (has_ended()) return condition();
    ::usleep(1000);
  }
  return false;
}

std::string Running::err() const { return read_text(output_ / "err"); }

Finished Running::wait() {
  if (!status_) {
    int status = 0;
    ::waitpid(child_, &status, 0);
    status_ = status;
  }
  Finished finished;
  finished.exit_code = WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
  if (finished.exit_code == 127) throw std::runtime_error("the trainer program could not be started");
  finished.out = read_text(output_ / "out");
  finished.err = read_text(output_ / "err");
  return finished;
}

Finished trainer(const std::vector<std::string>& arguments, const Start& start) {
  return Running(arguments, start).wait();
}

}  // namespace fulgur::test
