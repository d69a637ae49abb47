#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "command_line.h"
#include "failure.h"
#include "fulgur/core/errors.h"
#include "fulgur/core/log.h"
#include "fulgur/core/text.h"
#include "fulgur/strategies/launcher.h"
#include "verbs.h"

namespace {

using fulgur::ExitCode;

/// One block on stderr. The lines are ours; their contents may come from anywhere and must not reach the terminal as
/// control characters.
int fail(std::string_view message, ExitCode code) {
  const std::string process = fulgur::log::process_name();
  std::string block = process.empty() ? "error: " : "[" + process + "] error: ";
  for (size_t begin = 0; begin <= message.size();) {
    const size_t end = std::min(message.find('\n', begin), message.size());
    block += fulgur::escape_controls(message.substr(begin, end - begin)) + "\n";
    begin = end + 1;
  }
  std::fwrite(block.data(), 1, block.size(), stderr);
  fulgur::tell_launcher(message);
  return static_cast<int>(code);
}

std::vector<std::string> environment() {
  std::vector<std::string> out;
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("FULGUR_")) out.emplace_back(*variable);
  }
  return out;
}

int run(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (!fulgur::is_utf8(argument))
      return fail("[cli] arguments must be valid UTF-8; got '" + argument + "'", ExitCode::usage);
  }
  const fulgur::cli::CommandLine command = fulgur::cli::parse_command_line(arguments, environment());
  if (!command.text.empty()) {
    std::fputs(command.text.c_str(), command.is_error ? stderr : stdout);
    return static_cast<int>(command.is_error ? ExitCode::usage : ExitCode::ok);
  }
  return static_cast<int>(fulgur::cli::run(command, arguments));
}

}  // namespace

int main(int argc, char** argv) {
  // A closed pipe, or a file size limit, is an error of write(), not a death in the middle of a save.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run({argv + 1, argv + argc});
  } catch (...) {
    const fulgur::cli::Failure failure = fulgur::cli::current_failure();
    return fail(failure.message, failure.code);
  }
}
