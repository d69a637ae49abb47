// Mistakes of a config: in a terminal they are shown with their lines; elsewhere they have one line each.
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>

#include "process.h"

namespace terminal_errors_test {

using namespace fulgur::test;

namespace {

struct Shown {
  int exit_code = -1;
  std::string text;
};

/// Runs `trainer` with a terminal of this width as its stdout and stderr.
Shown in_terminal(std::vector<std::string> arguments, const std::filesystem::path& folder, unsigned short columns = 80,
                  const char* term = "xterm") {
  arguments.insert(arguments.begin(), FULGUR_TRAINER_BIN);
  struct winsize size {};
  size.ws_row = 24;
  size.ws_col = columns;
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  REQUIRE(child >= 0);
  if (child == 0) {
    ::setenv("TERM", term, 1);
    if (::chdir(folder.c_str()) != 0) ::_exit(127);
    std::vector<char*> argv;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(argv.front(), argv.data());
    ::_exit(127);
  }
  Shown shown;
  char buffer[4096];
  // A read fails with EIO once the program has ended.
  for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof buffer)) > 0;)
    shown.text.append(buffer, static_cast<size_t>(got));
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  shown.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::erase(shown.text, '\r');
  return shown;
}

constexpr const char* kWrong = R"(trainer:
  max_epochs: 010
  max_epoch: 3
model:
  class_path: Cnn
  init_args: {dropout: 7}
)";

}  // namespace

TEST_CASE("in a terminal, mistakes of a file are shown with their lines under a caret") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kWrong);
  const Shown shown = in_terminal({"config", "-c", "c.yaml"}, folder.path());
  INFO(shown.text);
  CHECK(shown.exit_code == 2);
  CHECK(says(shown.text, "error: [config] 3 problems:\n"));
  CHECK(says(shown.text,
             "c.yaml:2:15:\n"
             "      max_epochs: 010\n"
             "                  ^\n"
             "  trainer.max_epochs: expected int; got '010'"));
  CHECK(says(shown.text,
             "c.yaml:3:3:\n"
             "      max_epoch: 3\n"
             "      ^\n"
             "  trainer.max_epoch: unknown key; did you mean 'max_epochs'?\n"));
  CHECK(says(shown.text,
             "c.yaml:5:15:\n"
             "      class_path: Cnn\n"
             "                  ^\n"
             "  model.class_path: unknown model 'Cnn'"));
}

TEST_CASE("in a terminal, a value out of range and a syntax error have a caret") {
  const TemporaryFolder folder;
  write_text(folder / "range.yaml", "model: {class_path: CnnClassifier, init_args: {dropout: 7}}\n");
  const Shown range = in_terminal({"config", "-c", "range.yaml"}, folder.path());
  INFO(range.text);
  CHECK(says(range.text,
             "    model: {class_path: CnnClassifier, init_args: {dropout: 7}}\n"
             "                                                            ^\n"
             "  model.init_args.dropout: "));
  write_text(folder / "syntax.yaml", "trainer: {max_epochs: [3}\n");
  const Shown syntax = in_terminal({"config", "-c", "syntax.yaml"}, folder.path());
  INFO(syntax.text);
  CHECK(syntax.exit_code == 2);
  CHECK(says(syntax.text, "    trainer: {max_epochs: [3}\n"));
  CHECK(says(syntax.text, "^\n  is not valid YAML: "));
}

TEST_CASE("in a terminal, arguments have a caret under the value or the key") {
  const TemporaryFolder folder;
  const Shown value = in_terminal({"config", "--trainer.max_epochs=many"}, folder.path());
  INFO(value.text);
  CHECK(value.exit_code == 2);
  CHECK(says(value.text,
             "command line:\n"
             "    --trainer.max_epochs many\n"
             "                         ^\n"
             "  trainer.max_epochs: expected "));
  const Shown key = in_terminal({"config", "--seed_everything", "1", "--trainer.max_epoch", "3"}, folder.path());
  INFO(key.text);
  CHECK(says(key.text,
             "    --trainer.max_epoch 3\n"
             "      ^\n"
             "  trainer.max_epoch: unknown key; did you mean 'max_epochs'?"));
  const Shown component = in_terminal({"config", "--model", "Cnn"}, folder.path());
  INFO(component.text);
  CHECK(says(component.text,
             "    --model Cnn\n"
             "            ^\n"
             "  model.class_path: unknown model 'Cnn'"));
}

TEST_CASE("in a terminal, long lines are cut around the caret, and control characters are escaped") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", "silence: [" + std::string(300, 'a') + "]  # \u009b31m\ntrainer: {" +
                                    std::string(200, ' ') + "max_epochs: x}  # \u009b31m " + std::string(300, 'b') +
                                    "\n");
  const Shown shown = in_terminal({"config", "-c", "c.yaml"}, folder.path(), 60);
  INFO(shown.text);
  CHECK(says(shown.text, "max_epochs: x}"));
  CHECK_FALSE(says(shown.text, std::string(80, 'b')));
  CHECK_FALSE(says(shown.text, "\u009b"));
  CHECK(says(shown.text, "^\n  trainer.max_epochs: "));
}

TEST_CASE("in pipes, in a dumb terminal and in the report a mistake has one line") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", "trainer: {max_epochs: x}\n");
  const std::string line = "c.yaml:1:23: trainer.max_epochs: ";
  const Finished piped = trainer({"fit", "-c", "c.yaml", "--report", "r.json"}, {.folder = folder.path()});
  CHECK(piped.exit_code == 2);
  CHECK(piped.err.starts_with("error: [config] " + line));
  CHECK_FALSE(says(piped.err, "^"));
  const Shown dumb = in_terminal({"config", "-c", "c.yaml"}, folder.path(), 80, "dumb");
  CHECK(dumb.text.starts_with("error: [config] " + line));
  const Shown shown = in_terminal({"fit", "-c", "c.yaml", "--report", "t.json"}, folder.path());
  INFO(shown.text);
  CHECK(says(shown.text, "^"));
  // The report says the same, wherever stderr goes.
  CHECK(read_text(folder / "t.json") == read_text(folder / "r.json"));
  CHECK(says(read_text(folder / "t.json"), line));
}

}  // namespace terminal_errors_test
