#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "added_verb.h"
#include "command_line.h"
#include "completion/completion_verb.h"
#include "failure.h"
#include "fulgur/core/system/fast_exit.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/launcher.h"
#include "print.h"
#include "verbs.h"

namespace {

using fulgur::ExitCode;

int fail(const fulgur::cli::Failure& failure) {
  // The launcher shows the message of a rank above 0, unless another rank has the same one.
  if (!fulgur::tell_launcher(failure.message))
    fulgur::cli::print_error(fulgur::log::process_name(), failure.console.empty() ? failure.message : failure.console);
  return static_cast<int>(failure.code);
}

std::vector<std::string> environment() {
  std::vector<std::string> out;
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("FULGUR_")) out.emplace_back(*variable);
  }
  return out;
}

int run(const std::vector<std::string>& arguments, const std::string& program) {
  if (!arguments.empty() && arguments.front() == fulgur::cli::kAskCandidates) {
    fulgur::cli::print(fulgur::cli::candidates_text({arguments.begin() + 1, arguments.end()}));
    return static_cast<int>(ExitCode::ok);
  }
  for (const std::string& argument : arguments) {
    if (!fulgur::is_utf8(argument))
      return fail({"[cli] arguments must be valid UTF-8; got '" + argument + "'", ExitCode::usage});
  }
  if (const auto code = fulgur::cli::run_added_verb(arguments, fulgur::cli::is_built_in_verb))
    return static_cast<int>(*code);
  const fulgur::cli::CommandLine command = fulgur::cli::parse_command_line(arguments, environment());
  if (!command.text.empty()) {
    std::fputs(command.text.c_str(), command.is_error ? stderr : stdout);
    return static_cast<int>(command.is_error ? ExitCode::usage : ExitCode::ok);
  }
  return static_cast<int>(fulgur::cli::run(command, program, arguments));
}

}  // namespace

int main(int argc, char** argv) {
  fulgur::skip_destructors_if_asked();
  // A closed pipe or a file size limit makes write() fail, instead of killing the process in the middle of a save.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // It asks a fit to save, and ends no process: before a fit, after it, or in another verb. Ranks inherit this.
  std::signal(SIGUSR1, SIG_IGN);
  if (argc > 0) fulgur::set_program_name(argv[0]);
  // A rank was started as /proc/self/exe, so ps would show "exe".
  if (std::getenv("FULGUR_LAUNCHER") != nullptr) ::prctl(PR_SET_NAME, fulgur::program_name().c_str());
  try {
    return run({argv + 1, argv + argc}, argc > 0 ? argv[0] : "trainer");
  } catch (...) {
    return fail(fulgur::cli::current_failure());
  }
}
