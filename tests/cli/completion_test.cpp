// Completion in a shell: what the program answers, and what bash makes of it.
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <set>

#include "process.h"

namespace completion_test {

using namespace fulgur::test;

namespace {

/// The lines that the program answers with, without what words mean. The last word is being completed.
std::set<std::string> candidates(const std::vector<std::string>& words, const std::string& shell = "zsh",
                                 const std::filesystem::path& folder = {}) {
  std::vector<std::string> arguments{"__complete", shell};
  arguments.insert(arguments.end(), words.begin(), words.end());
  const Finished answer = trainer(arguments, {.folder = folder});
  INFO(answer.err);
  CHECK(answer.exit_code == 0);
  CHECK(answer.err.empty());
  std::set<std::string> found;
  for (size_t begin = 0; begin < answer.out.size();) {
    const size_t end = answer.out.find('\n', begin);
    const std::string line = answer.out.substr(begin, end - begin);
    found.insert(line.substr(0, line.find('\t')));
    begin = end + 1;
  }
  return found;
}

bool has_program(const char* name) {
  return std::system((std::string("command -v ") + name + " >/dev/null 2>&1").c_str()) == 0;
}

/// What bash completes in `line`: a script loads the completion and calls its function as a terminal does.
std::string completed_by_bash(const std::string& words, int current) {
  const TemporaryFolder folder;
  write_text(folder / "ask.sh", std::string("set -u\nsource <('" FULGUR_TRAINER_BIN "' completion bash)\n") +
                                    "COMP_WORDS=('" FULGUR_TRAINER_BIN "' " + words +
                                    ")\nCOMP_CWORD=" + std::to_string(current) +
                                    "\nhow=$(complete -p trainer)\n[[ $how == 'complete -F '*' trainer' ]] || exit 3\n"
                                    "_trainer_completion\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
  write_text(folder / "mine.yaml", "model: CnnClassifier\n");
  const Finished bash = trainer({"--norc", "ask.sh"}, {.program = "/bin/bash", .folder = folder.path()});
  INFO(bash.out << bash.err);
  CHECK(bash.exit_code == 0);
  CHECK(bash.err.empty());
  return bash.out;
}

}  // namespace

TEST_CASE("completion: verbs, and the places of a verb") {
  const auto verbs = candidates({""});
  for (const char* verb : {"fit", "validate", "tokenize", "doctor", "completion"}) CHECK(verbs.contains(verb));
  CHECK_FALSE(verbs.contains("__complete"));
  CHECK(candidates({"va"}) == std::set<std::string>{"validate"});
  CHECK(candidates({"--trainer.max_epochs", "fit", "va"}) == std::set<std::string>{"validate"});
  CHECK(candidates({"completion", ""}) == std::set<std::string>{"bash", "fish", "zsh"});
  CHECK(candidates({"tune", ""}) == std::set<std::string>{"batch_size", "lr"});
  CHECK(candidates({"tune", "lr", ""}).empty());
  CHECK(candidates({"describe", "CnnC"}) == std::set<std::string>{"CnnClassifier"});
  CHECK(candidates({"list", ""}).contains("callback"));
  CHECK(candidates({"inspect", ""}) == std::set<std::string>{":files"});
  CHECK(candidates({"compare", ""}) == std::set<std::string>{":folders"});
  CHECK(candidates({"compare", "a", ""}) == std::set<std::string>{":folders"});
  CHECK(candidates({"compare", "a", "b", ""}).empty());
}

TEST_CASE("completion: options of a verb, and keys of the config") {
  CHECK(candidates({"fit", "--res"}) == std::set<std::string>{"--resume"});
  CHECK(candidates({"test", "--res"}).empty());
  CHECK(candidates({"runs", "--"}) ==
        std::set<std::string>{"--filter", "--help", "--help-all", "--json", "--quiet", "--sort"});
  CHECK(candidates({"fit", "--trai"}) == std::set<std::string>{"--trainer.", ":continues"});
  CHECK(candidates({"fit", "--trainer.max_e"}) == std::set<std::string>{"--trainer.max_epochs"});
  CHECK(candidates({"fit", "--trainer.callb"}) == std::set<std::string>{"--trainer.callbacks", "--trainer.callbacks+"});
  CHECK(candidates({"fit", "--trainer.no_such."}).empty());
  CHECK(candidates({"runs", "--trainer.max_e"}).empty());
}

TEST_CASE("completion: options of the class that the config or the command line chooses") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml",
             "model: CnnClassifier\ntrainer: {callbacks: [EarlyStopping, {class_path: ModelCheckpoint}]}\n");
  const auto of_file = [&](const std::string& word) {
    return candidates({"fit", "-c", "c.yaml", word}, "zsh", folder.path());
  };
  CHECK(of_file("--model.chan") == std::set<std::string>{"--model.channels"});
  CHECK(of_file("--model.init_args.chan") == std::set<std::string>{"--model.init_args.channels"});
  CHECK(of_file("--trainer.callbacks.pat").empty());
  CHECK(of_file("--trainer.callbacks.0.pat") == std::set<std::string>{"--trainer.callbacks.0.patience"});
  CHECK(of_file("--trainer.callbacks.save_t") == std::set<std::string>{"--trainer.callbacks.save_top_k"});
  CHECK(candidates({"--model", "MlpClassifier", "fit", "--model.hid"}) == std::set<std::string>{"--model.hidden"});
  CHECK(candidates({"fit", "--model.chan"}).empty());
  CHECK(candidates({"fit", "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.pat"}) ==
        std::set<std::string>{"--trainer.callbacks.patience"});
  // A file that does not exist, or is no config, costs only its candidates.
  CHECK(candidates({"fit", "-c", "no.yaml", "--trainer.max_e"}) == std::set<std::string>{"--trainer.max_epochs"});
}

TEST_CASE("completion: the keys of link are options, and its values are what the data module provides") {
  CHECK(candidates({"fit", "--lin"}) == std::set<std::string>{"--link", "--link."});
  CHECK(candidates({"fit", "--model", "CnnClassifier", "--optimizer", "AdamW", "--link."}) ==
        std::set<std::string>{"--link.model.", "--link.optimizer.", ":continues"});
  CHECK(candidates({"fit", "--model", "CnnClassifier", "--link.model.num_c"}) ==
        std::set<std::string>{"--link.model.num_classes"});
  CHECK(candidates({"fit", "--model", "CnnClassifier", "--link.model.init_args.num_c"}, "fish") ==
        std::set<std::string>{"--link.model.init_args.num_classes"});
  CHECK(candidates({"fit", "--data", "MnistDataModule", "--link.model.num_classes", "data.num_"}) ==
        std::set<std::string>{"data.num_classes", "data.num_features"});
  CHECK(candidates({"fit", "--data", "MnistDataModule", "--link.model.num_classes", "=", "data.ch"}, "bash") ==
        std::set<std::string>{"data.channels"});
  CHECK(candidates({"fit", "--link.model.num_classes", "data."}).empty());
}

TEST_CASE("completion: values are classes, choices, switches or files") {
  const auto models = candidates({"fit", "--model", ""});
  CHECK(models.contains("CnnClassifier"));
  CHECK(models.contains(":files"));
  CHECK_FALSE(models.contains("AdamW"));
  CHECK(candidates({"fit", "--model", "Cnn"}).contains("CnnClassifier"));
  CHECK(candidates({"fit", "--model=Cnn"}).contains("--model=CnnClassifier"));
  CHECK(candidates({"fit", "--trainer.callbacks+", "EarlyS"}).contains("EarlyStopping"));
  CHECK(candidates({"fit", "--trainer.accelerator", ""}) ==
        std::set<std::string>{"auto", "cpu", "cuda", "gpu", "virtual"});
  CHECK(candidates({"fit", "--trainer.barebones", ""}) == std::set<std::string>{"false", "true"});
  CHECK(candidates({"fit", "--trainer.default_root_dir", ""}) == std::set<std::string>{":files"});
  CHECK(candidates({"fit", "--trainer.max_epochs", "x"}).empty());
  CHECK(candidates({"fit", "--config", ""}) == std::set<std::string>{":files"});
  CHECK(candidates({"fit", "-c", ""}) == std::set<std::string>{":files"});
  CHECK(candidates({"fit", "--ckpt_path", ""}) == std::set<std::string>{":files", "best", "last"});
  CHECK(candidates({"fit", "--verify", ""}) == std::set<std::string>{"needed", "whole"});
  CHECK(candidates({"export", "a.ckpt", "--format", ""}) == std::set<std::string>{"pt", "safetensors", "torchscript"});
}

TEST_CASE("completion: candidates have meanings, except for bash, which gets only what follows `=`") {
  CHECK(says(trainer({"__complete", "fish", "va"}).out, "validate\tEvaluate on the validation data\n"));
  CHECK(trainer({"__complete", "bash", "va"}).out == "validate\n");
  CHECK(candidates({"fit", "--model", "=", "Cnn"}, "bash").contains("CnnClassifier"));
  CHECK(candidates({"fit", "--trainer.barebones", "="}, "bash") == std::set<std::string>{"false", "true"});
  CHECK(candidates({"fit", "--model", "=", "CnnClassifier", "--model.chan"}, "bash") ==
        std::set<std::string>{"--model.channels"});
}

TEST_CASE("completion: whatever the words are, the program answers and reports no error") {
  for (const std::vector<std::string>& words : {std::vector<std::string>{},
                                                {"--"},
                                                {"-"},
                                                {"--="},
                                                {"="},
                                                {"fit", "--."},
                                                {"fit", "--trainer..x"},
                                                {"fit", "-c"},
                                                {"\xff\xfe"},
                                                {"fit", "--model", "Cnn\x1b[31m\n", "--model."},
                                                {"fit", std::string(5000, '.')}}) {
    const auto found = candidates(words);
    for (const std::string& line : found) CHECK_FALSE(says(line, "\x1b"));
  }
  CHECK(trainer({"__complete"}).exit_code == 0);
}

TEST_CASE("completion: the scripts name the program, and other shells are refused") {
  const TemporaryFolder folder;
  const std::string mine = (folder / "my-tool").string();
  std::filesystem::create_symlink(FULGUR_TRAINER_BIN, mine);
  CHECK(says(trainer({"completion", "bash"}, {.program = mine, .folder = {}}).out,
             "complete -F _my_tool_completion my-tool\n"));
  CHECK(trainer({"completion", "zsh"}).out.starts_with("#compdef trainer\n"));
  CHECK(says(trainer({"completion", "fish"}).out, "complete -c trainer "));
  const Finished other = trainer({"completion", "tcsh"});
  CHECK(other.exit_code == 2);
  CHECK(says(other.err, "bash or zsh or fish; got 'tcsh'"));
}

TEST_CASE("completion: bash completes verbs, keys, values and files") {
  CHECK(completed_by_bash("va", 1) == "validate\n");
  CHECK(completed_by_bash("fit --trainer.max_e", 2) == "--trainer.max_epochs\n");
  CHECK(completed_by_bash("fit --trainer.barebones = t", 4) == "true\n");
  CHECK(completed_by_bash("fit -c mi", 3) == "mine.yaml\n");
  CHECK(completed_by_bash("fit -c mine.yaml --model.chan", 4) == "--model.channels\n");
}

TEST_CASE("completion: zsh accepts its script") {
  if (!has_program("zsh")) SKIP("zsh is not installed");
  const TemporaryFolder folder;
  write_text(folder / "script", trainer({"completion", "zsh"}).out);
  CHECK(trainer({"zsh", "-n", "script"}, {.program = "/usr/bin/env", .folder = folder.path()}).exit_code == 0);
}

TEST_CASE("completion: fish completes a verb") {
  if (!has_program("fish")) SKIP("fish is not installed");
  const TemporaryFolder folder;
  std::filesystem::create_symlink(FULGUR_TRAINER_BIN, folder / "trainer");
  write_text(folder / "ask.fish", "./trainer completion fish | source\ncomplete -C './trainer va'\n");
  const Finished fish =
      trainer({"fish", "--no-config", "ask.fish"}, {.program = "/usr/bin/env", .folder = folder.path()});
  INFO(fish.err);
  CHECK(says(fish.out, "validate"));
}

}  // namespace completion_test
