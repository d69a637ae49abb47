#include "fulgur/strategies/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <utility>

#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

[[noreturn]] void fail(const std::filesystem::path& program, int error) {
  throw DistributedError(cat("[strategies.launcher] the program of the run's processes, '", program,
                             "', cannot be started: ", std::strerror(error),
                             ". Check its permissions and the limits of processes and open files (ulimit -a)."));
}

void make_pipe(UniqueFd& read, UniqueFd& write, const std::filesystem::path& program) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail(program, errno);
  read.reset(ends[0]);
  write.reset(ends[1]);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

ChildProcess::ChildProcess(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                           Environment environment, const SignalPipe& signals, int output) {
  UniqueFd words_read, words_write, error_read, error_write;
  make_pipe(words_read, words_write, program);
  make_pipe(error_read, error_write, program);
  ::fcntl(words_read.get(), F_SETFL, O_NONBLOCK);
  struct stat status {};
  ::fstat(words_write.get(), &status);
  environment["FULGUR_FAILURE_PIPE"] = cat(words_write.get(), ":", static_cast<uint64_t>(status.st_ino));

  // Allocate everything before fork: other threads may hold the allocator's lock.
  std::vector<std::string> argument_texts = arguments, variable_texts;
  for (const auto& [name, value] : environment) variable_texts.push_back(cat(name, "=", value));
  const std::vector<char*> argv = pointers(argument_texts), envp = pointers(variable_texts);
  const pid_t parent = ::getpid();

  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // the parent died before the previous line
    if (const int empty = ::open("/dev/null", O_RDONLY); empty > 0) ::dup2(empty, 0), ::close(empty);
    if (output >= 0) ::dup2(output, 1), ::dup2(output, 2);
    ::fcntl(words_write.get(), F_SETFD, 0);
    signals.restore();
    ::execve(program.c_str(), argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(error_write.get(), &error, sizeof error);
    ::_exit(127);
  }
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0) fail(program, fork_error);
  ::setpgid(pid_, pid_);  // done in both processes, since either may come first
  error_write.reset();
  int error = 0;
  ssize_t count = 0;
  while ((count = ::read(error_read.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (count == sizeof error) {
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
    fail(program, error);
  }
  words_ = words_read.release();
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), words_(std::exchange(other.words_, -1)) {}

ChildProcess::~ChildProcess() {
  if (running()) {
    kill();
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (words_ >= 0) ::close(words_);
}

std::optional<ProcessEnd> ChildProcess::reap() {
  if (!running()) return std::nullopt;
  // Check before reaping: while it is a zombie, its pid is not reused.
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return std::nullopt;
  const bool by_signal = info.si_code != CLD_EXITED;
  if (by_signal || info.si_status != 0) kill();
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
  return ProcessEnd{by_signal, info.si_status};
}

void ChildProcess::send(int signal) const {
  if (running()) ::kill(pid_, signal);
}

void ChildProcess::kill() const {
  if (!running()) return;
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
}

std::string ChildProcess::words() {
  char text[PIPE_BUF];
  const ssize_t count = words_ >= 0 ? ::read(words_, text, sizeof text) : 0;
  return count > 0 ? std::string(text, static_cast<size_t>(count)) : std::string();
}

}  // namespace fulgur::detail
