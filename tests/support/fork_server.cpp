// The program `trainer`, which starts once and forks for each command: LibTorch needs a quarter of a second to start,
// and tests run the program some thousand times.
//
//   trainer_server --serve SOCKET     receives the names of files with a ChildStart; sends the number of each process
//   trainer_server ARGUMENTS          is `trainer`; so are the processes that a verb starts of itself
//
// Whoever asks becomes the parent of the process, if it is a subreaper meanwhile, and waits for it as for its child.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>

#include "child_start.h"

// The linker gives main() of `trainer` the first name, and begins the program with the second (--wrap=main).
extern "C" int __real_main(int argc, char** argv);
extern "C" int __wrap_main(int argc, char** argv);

namespace {

using fulgur::test::ChildStart;

[[noreturn]] void run_child(const std::string& file) {
  const ChildStart start = fulgur::test::read_child_start(file);
  ::clearenv();
  for (const std::string& variable : start.environment) ::putenv(const_cast<char*>(variable.c_str()));
  fulgur::test::apply(start);
  std::exit(__real_main(static_cast<int>(start.argv.size()), fulgur::test::pointers_to(start.argv).data()));
}

/// The parent of the child ends, and with it the child gets the nearest subreaper as its parent; then it begins.
pid_t start_child(const std::string& file, int socket) {
  int number[2], begin[2];
  if (::pipe(number) != 0 || ::pipe(begin) != 0) return -1;
  const pid_t parent = ::fork();
  if (parent < 0) return -1;
  if (parent == 0) {
    const pid_t child = ::fork();
    if (child == 0) {
      char byte = 0;
      ::close(begin[1]);
      const bool begins = ::read(begin[0], &byte, 1) == 1;
      for (const int end : {number[0], number[1], begin[0], socket}) ::close(end);
      if (!begins) ::_exit(127);
      run_child(file);
    }
    ::_exit(::write(number[1], &child, sizeof child) == sizeof child ? 0 : 1);
  }
  ::close(number[1]);
  ::close(begin[0]);
  pid_t child = -1;
  if (::read(number[0], &child, sizeof child) != sizeof child) child = -1;
  ::waitpid(parent, nullptr, 0);
  if (child > 0 && ::write(begin[1], "", 1) != 1) child = -1;
  ::close(number[0]);
  ::close(begin[1]);
  return child;
}

int serve(int socket) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  char name[PATH_MAX];
  for (ssize_t length = 0; (length = ::recv(socket, name, sizeof name, 0)) > 0;) {
    const pid_t child = start_child(std::string(name, static_cast<size_t>(length)), socket);
    if (::send(socket, &child, sizeof child, MSG_NOSIGNAL) != sizeof child) return 1;
  }
  return 0;
}

}  // namespace

int __wrap_main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--serve") return serve(std::atoi(argv[2]));
  return __real_main(argc, argv);
}
