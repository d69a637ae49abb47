#include "process.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include "support/fork_client.h"

namespace fulgur::test {

namespace {

/// This process's environment and `more`, which come later: the last value of a name counts.
std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> all;
  for (char** variable = ::environ; *variable != nullptr; ++variable) all.emplace_back(*variable);
  for (const std::string& each : more) {
    const std::string name = each.substr(0, each.find('=') + 1);
    std::erase_if(all, [&](const std::string& one) { return one.starts_with(name); });
    all.push_back(each);
  }
  return all;
}

[[noreturn]] void run_child(const ChildStart& child, int64_t address_space_mb) {
  // Room for very long command lines: the kernel allows a quarter of the stack's limit.
  rlimit stack{};
  ::getrlimit(RLIMIT_STACK, &stack);
  stack.rlim_cur = stack.rlim_max == RLIM_INFINITY ? rlim_t{64} << 20 : stack.rlim_max;
  ::setrlimit(RLIMIT_STACK, &stack);
  if (address_space_mb > 0) {
    const rlim_t bytes = static_cast<rlim_t>(address_space_mb) << 20;
    const rlimit memory{bytes, bytes};
    ::setrlimit(RLIMIT_AS, &memory);
  }
  apply(child);
  ::execve(child.argv.front().c_str(), pointers_to(child.argv).data(), pointers_to(child.environment).data());
  ::_exit(127);
}

}  // namespace

Running::Running(const std::vector<std::string>& arguments, const Start& start) {
  ChildStart child{.argv = {start.program.empty() ? FULGUR_TRAINER_BIN : start.program},
                   .environment = environment_with(start.environment),
                   .folder = start.folder.string(),
                   .out = (output_ / "out").string(),
                   .err = (output_ / "err").string(),
                   .file_size_kb = start.file_size_kb};
  child.argv.insert(child.argv.end(), arguments.begin(), arguments.end());
  if (start.close_stdout) child.out.clear();
  if (start.broken_pipe) child.out = "|";
  if (start.program.empty() && start.address_space_mb == 0 && can_be_forked(child)) {
    child_ = start_forked(child, output_ / "start");
    return;
  }
  child_ = ::fork();
  if (child_ < 0) throw std::runtime_error("fork failed");
  if (child_ == 0) run_child(child, start.address_space_mb);
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
