#include "seeing/history_verbs.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "failure.h"
#include "fulgur/core/text/text.h"
#include "fulgur/history/comparison.h"
#include "fulgur/history/report_page.h"
#include "fulgur/history/run.h"
#include "fulgur/history/runs_table.h"
#include "fulgur/history/watch.h"
#include "print.h"
#include "report_file.h"
#include "terminal.h"

namespace fulgur::cli {
namespace {
constexpr const char* kDefaultRoot = "fulgur_logs";
}

ExitCode list_runs(const CommandLine& command) {
  const std::filesystem::path root = command.runs.empty() ? kDefaultRoot : command.runs.front();
  const auto all = history::read_runs(root);
  ExitCode code = ExitCode::ok;
  for (const history::Run& run : all) {
    if (run.damage.empty()) continue;
    print_error("", run.damage);
    code = ExitCode::data;
  }
  const auto runs = history::select_runs(all, {command.sort, command.filter});
  if (command.json) {
    print(history::runs_json(runs));
  } else if (command.quiet) {
    std::string folders;
    for (const history::Run& run : runs) folders += escape_controls(run.folder.string()) + "\n";
    print(folders);
  } else if (runs.empty()) {
    print(all.empty() ? cat("no runs below ", escape_controls(root.string()), "\n") : "no run matches the filter\n");
  } else {
    print(history::runs_table(runs, style_of_stdout()));
  }
  return code;
}

ExitCode compare_runs(const CommandLine& command) {
  // Runs in different folders often have the same version.
  const auto read = [&](const std::string& folder) {
    history::Run run = history::read_run(folder);
    run.name = std::filesystem::path(folder).lexically_normal().string();
    return run;
  };
  const history::Run a = read(command.runs.at(0)), b = read(command.runs.at(1));
  print(command.json ? history::comparison_json(a, b) : history::comparison_text(a, b, style_of_stdout()));
  return ExitCode::ok;
}

ExitCode report_runs(const CommandLine& command) {
  const std::filesystem::path output = command.output.value_or("report.html");
  std::error_code error;
  if (std::filesystem::is_directory(output, error))
    throw ConfigError(cat("[cli.report] --output names a file; got ", escape_controls(output.string()),
                          ", which is a folder. Give a file name, such as report.html."));
  std::vector<std::filesystem::path> folders;
  for (const std::string& folder : command.runs) {
    const auto runs = history::runs_at(folder);
    folders.insert(folders.end(), runs.begin(), runs.end());
  }
  const std::string page = history::report_page(folders);
  write_report(output, page);
  if (!command.quiet) print(escape_controls(output.string()) + "\n");
  return ExitCode::ok;
}

ExitCode watch_run(const CommandLine& command) {
  history::RunWatcher watcher(history::newest_run(command.runs.empty() ? kDefaultRoot : command.runs.front()));
  const bool live = stdout_is_terminal() && !command.quiet;
  int64_t shown = 0;  // lines on the terminal that the next view replaces
  for (bool trains = true; trains && std::ferror(stdout) == 0;) {
    trains = watcher.poll();
    if (live) {
      const history::TextStyle style = style_of_stdout();
      const std::string screen = watcher.screen(style, terminal_rows() - 1);
      print((shown > 0 ? cat("\x1b[", shown, "A\r\x1b[J") : "") + screen);
      shown = std::count(screen.begin(), screen.end(), '\n');
    } else if (!command.quiet) {
      std::string lines;
      for (const std::string& line : watcher.new_lines()) lines += line + "\n";
      print(lines);
    }
    if (trains) std::this_thread::sleep_for(std::chrono::duration<double>(command.every_s));
  }
  print(watcher.summary() + "\n");
  return ExitCode::ok;
}

}  // namespace fulgur::cli
