#include "fork_client.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <mutex>
#include <stdexcept>
#include <string_view>

namespace fulgur::test {

namespace {

struct Server {
  Server() : owner(::getpid()) {
    for (char** variable = ::environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) throw std::runtime_error("no socket for the fork server");
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      const std::string end = std::to_string(ends[1]);
      ::execl(FULGUR_TRAINER_SERVER, FULGUR_TRAINER_SERVER, "--serve", end.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(ends[1]);
    socket = ends[0];
    // No other child may hold this end: the server ends when it is closed.
    if (pid < 0 || ::fcntl(socket, F_SETFD, FD_CLOEXEC) != 0) throw std::runtime_error("the fork server cannot start");
  }

  const pid_t owner;
  std::vector<std::string> environment;  ///< with which it started
  int socket = -1;
};

Server& server() {
  static Server one;
  return one;
}

/// What only `trainer` and the project's libraries read, after main() has begun.
bool is_read_late(std::string_view variable) {
  constexpr const char* kPrefixes[] = {"FULGUR_", "SLURM_", "MASTER_", "RANK=", "WORLD_SIZE=", "LOCAL_", "NODE_RANK="};
  return std::ranges::any_of(kPrefixes, [&](const char* prefix) { return variable.starts_with(prefix); });
}

bool has(const std::vector<std::string>& all, const std::string& one) {
  return std::ranges::find(all, one) != all.end();
}

}  // namespace

bool can_be_forked(const ChildStart& start) {
  const Server& one = server();
  const auto agree = [](const std::vector<std::string>& some, const std::vector<std::string>& others) {
    return std::ranges::all_of(some, [&](const std::string& each) { return is_read_late(each) || has(others, each); });
  };
  return one.owner == ::getpid() && agree(start.environment, one.environment) &&
         agree(one.environment, start.environment);
}

pid_t start_forked(const ChildStart& start, const std::filesystem::path& file) {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  write_child_start(file, start);
  const std::string& name = file.native();
  pid_t child = -1;
  // Orphans of other processes must not come here at other times.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const bool answered =
      ::send(server().socket, name.data(), name.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(name.size()) &&
      ::recv(server().socket, &child, sizeof child, 0) == sizeof child;
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  if (!answered || child <= 0) throw std::runtime_error("the fork server did not start the program");
  return child;
}

}  // namespace fulgur::test
