#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <nlohmann/json.hpp>

#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "process.h"

namespace command_line_test {

using namespace fulgur::test;

namespace {

struct Folder : TemporaryFolder {
  /// Writes a config and gives its path.
  std::string config(const std::string& yaml) const {
    write_text(*this / "c.yaml", yaml);
    return (*this / "c.yaml").string();
  }
};

Finished check(const std::string& yaml, std::vector<std::string> more = {}) {
  const Folder folder;
  std::vector<std::string> arguments{"config", "--config", folder.config(yaml)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return trainer(arguments);
}

}  // namespace

TEST_CASE("F42 no arguments: help on stderr, exit 2") {
  const Finished finished = trainer({});
  CHECK(finished.exit_code == 2);
  CHECK(finished.out.empty());
  CHECK(says(finished.err, "a verb is missing"));
  CHECK(says(finished.err, "Usage: trainer"));
}

TEST_CASE("F40 betas of a wrong number are refused by the config, with their key") {
  const Folder folder;
  const std::string net =
      "model: {class_path: MlpClassifier, init_args: {in_features: 4, num_classes: 3, hidden: [8]}}\n"
      "data: {class_path: SyntheticDataModule, init_args: {num_classes: 3, shape: [4]}}\n";
  for (const auto& [betas, count] : {std::pair("[0.9]", 1), std::pair("[0.9, 0.99, 0.999]", 3)}) {
    const Finished run =
        trainer({"config", "-c", folder.config(net), "--optimizer", "AdamW", "--optimizer.betas", betas});
    CHECK(run.exit_code == 2);
    CHECK(says(run.err, "optimizer.init_args.betas: needs 2 items; got " + std::to_string(count)));
  }
}

TEST_CASE("the script that simulates GPUs explains itself under the name that it was called by") {
  const std::string script = FULGUR_SOURCE_DIR "/scripts/simulated_gpu.sh";
  const Folder folder;
  const std::string installed = (folder / "fulgur-simulated-gpu").string();
  std::filesystem::create_symlink(script, installed);
  for (const auto& [program, name] :
       {std::pair{script, "simulated_gpu.sh"}, std::pair{installed, "fulgur-simulated-gpu"}})
    for (const char* option : {"--help", "-h"}) {
      const Finished help = trainer({option}, {.program = program, .folder = {}});
      INFO(help.out << help.err);
      CHECK(help.exit_code == 0);
      CHECK(says(help.out, "Runs COMMAND with CUDA simulated on the CPU"));
      CHECK(says(help.out, std::string("SIMULATED_CUDA_DEVICES=2 ") + name + " my_program\n"));
      CHECK(says(help.out, "FULGUR_SIMULATED_CUDA_DIR"));
      CHECK_FALSE(says(help.out, "set -euo"));
      CHECK_FALSE(says(help.out, "#"));
      CHECK(help.err.empty());
    }
  const Finished none = trainer({}, {.program = script, .folder = {}});
  CHECK(none.exit_code == 2);
  CHECK(none.out.empty());
  CHECK(says(none.err, "Runs COMMAND with CUDA simulated on the CPU"));
}

TEST_CASE("F42 help and version are on stdout, exit 0, with stdout closed or broken too") {
  const std::vector<std::string> arguments =
      GENERATE(std::vector<std::string>{"--help"}, std::vector<std::string>{"-h"},
               std::vector<std::string>{"fit", "--help"}, std::vector<std::string>{"--version"});
  const Finished finished = trainer(arguments);
  CHECK(finished.exit_code == 0);
  CHECK_FALSE(finished.out.empty());
  CHECK(finished.err.empty());
  for (const char* fast : {"FULGUR_FAST_EXIT=0", "FULGUR_FAST_EXIT=1"}) {
    const Finished flushed = trainer(arguments, {.folder = {}, .environment = {fast}});
    CHECK(flushed.exit_code == 0);
    CHECK(flushed.out == finished.out);
  }
  CHECK(trainer(arguments, {.folder = {}, .close_stdout = true}).exit_code == 0);
  CHECK(trainer(arguments, {.folder = {}, .broken_pipe = true}).exit_code == 0);
}

TEST_CASE("options that a verb does not read are refused") {
  const auto error = [](const std::vector<std::string>& arguments) {
    const Finished run = trainer(arguments);
    CHECK(run.exit_code == 2);
    return run.err;
  };
  CHECK(says(error({"schema", "--trainer.max_epochs", "3"}), "schema does not read --trainer.max_epochs"));
  CHECK(says(error({"list", "-c", "c.yaml", "--model", "x"}), "list does not read --model. `trainer list --help`"));
  CHECK(says(error({"describe", "AdamW", "--trainer.max_epochs", "3"}), "describe does not read --trainer.max_epochs"));
  CHECK(says(error({"env", "--seed_everything", "4"}), "env does not read --seed_everything"));
  CHECK(says(error({"runs", "--ckpt_path", "last"}), "runs does not read --ckpt_path"));
  CHECK(says(error({"inspect", "a.ckpt", "--plugin", "b.so"}), "inspect does not read --plugin"));
  CHECK(says(error({"export", "a.ckpt", "--config", "c.yaml"}), "export does not read --config"));
  CHECK(says(error({"runs", "--resume"}), "--resume is for fit\n"));
  CHECK(says(error({"test", "--resume"}), "test takes --ckpt_path last, best or a path"));
}

TEST_CASE("the help of a verb has one usage, and the options that the verb takes") {
  const auto count = [](const std::string& text, const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  const std::string fit = trainer({"fit", "--help"}).out;
  CHECK(count(fit, "Usage: ") == 1);
  CHECK(says(fit, "Usage: trainer fit "));
  for (const char* option : {"--config", "--plugin", "--report", "--print_config", "--resume", "--verify", "--help"}) {
    INFO(option);
    CHECK(says(fit, option));
  }
  CHECK_FALSE(says(fit, "Overrides of the config"));
  const std::string whole = trainer({"fit", "--help-all"}).out;
  CHECK(count(whole, "Usage: ") == 1);
  for (const char* part : {"Usage: trainer fit ", "Overrides of the config", "Exit codes: ", "nothing is saved"}) {
    INFO(part);
    CHECK(says(whole, part));
  }
  const std::string test = trainer({"test", "--help"}).out;
  CHECK(says(test, "--config"));
  CHECK_FALSE(says(test, "--resume"));
  const std::string exports = trainer({"export", "--help"}).out;
  CHECK(count(exports, "Usage: ") == 1);
  CHECK(says(exports, "--format"));
  CHECK_FALSE(says(exports, "--config"));
}

TEST_CASE("the help of the program and of each verb fits a screen, with examples, and says where the rest is") {
  const auto shown = [](std::vector<std::string> arguments) {
    arguments.emplace_back("--help");
    return trainer(arguments).out;
  };
  const auto check = [](const std::string& help) {
    INFO(help);
    int64_t lines = 0;
    for (const std::string& line : fulgur::split_text(help, '\n')) {
      ++lines;
      CHECK(fulgur::columns_of(line) <= 80);
    }
    CHECK(lines - 1 <= 24);  // the text ends with a line end
  };
  const std::string program = shown({});
  check(program);
  CHECK(says(program, "Examples:\n  trainer fit -c config.yaml"));
  CHECK(says(program, "--help-all"));
  const std::string whole = trainer({"--help-all"}).out;
  int verbs = 0;
  for (const std::string& line : fulgur::split_text(trainer({"__complete", "bash", ""}).out, '\n')) {
    if (line.empty()) continue;
    ++verbs;
    INFO(line);
    // Each verb is in both helps of the program.
    CHECK(says(program, " " + line));
    CHECK(says(whole, "\n  " + line + " "));
    const std::string help = shown({line});
    check(help);
    CHECK(says(help, "Usage: trainer " + line));
    CHECK(says(help, "Examples:\n  trainer " + line));
    // What the help leaves out is in the other one.
    const size_t cut = help.find("…\n");
    if (cut != std::string::npos && help[cut - 1] != ' ')
      CHECK(says(help, "`trainer " + line + " --help-all` shows the rest."));
  }
  CHECK(verbs >= 20);
}

TEST_CASE("the example of each verb that needs no files runs") {
  for (const char* verb : {"schema", "list", "describe", "env"}) {
    INFO(verb);
    const std::string help = trainer({verb, "--help"}).out, mark = std::string("Examples:\n  trainer ");
    const size_t begin = help.find(mark);
    REQUIRE(begin != std::string::npos);
    const std::string example =
        help.substr(begin + mark.size(), help.find('\n', begin + mark.size()) - begin - mark.size());
    std::vector<std::string> words = fulgur::split_text(example, ' ');
    words.erase(std::find(words.begin(), words.end(), ">"), words.end());
    CHECK(trainer(words).exit_code == 0);
  }
}

TEST_CASE("a program is called by its own name in help, messages and the processes of its ranks") {
  const TemporaryFolder folder;
  const std::string mine = (folder / "mine").string();
  std::filesystem::create_symlink(FULGUR_TRAINER_BIN, mine);
  CHECK(says(trainer({"--help"}, {.program = mine, .folder = {}}).out, "Usage: mine "));
  CHECK(says(trainer({"fit", "--help"}, {.program = mine, .folder = {}}).out, "Usage: mine fit "));
  CHECK(says(trainer({"fit"}, {.program = mine, .folder = {}}).err, "`mine list model`"));
  CHECK(says(trainer({"--fooo"}, {.program = mine, .folder = {}}).err, "`mine VERB --help`"));
  CHECK(says(trainer({"describe", "Nothing"}, {.program = mine, .folder = {}}).err, "`mine list`"));
}

TEST_CASE("F42 unknown options, verbs and keys exit 2 and name the nearest") {
  const auto [arguments, hint] = GENERATE(
      std::pair{std::vector<std::string>{"fit", "--confg", "x.yaml"}, "did you mean '--config'?"},
      std::pair{std::vector<std::string>{"--foo", "fit"}, "unknown option '--foo'"},
      std::pair{std::vector<std::string>{"fit", "--max_epochs", "3"}, "did you mean '--trainer.max_epochs'?"},
      std::pair{std::vector<std::string>{"fit", "--gpus=2"}, "accelerator: cuda"},
      std::pair{std::vector<std::string>{"fti"}, "did you mean 'fit'? `--help` lists the verbs"},
      std::pair{std::vector<std::string>{"fit", "--lr", "0.1"}, "did you mean '--optimizer.lr'?"},
      std::pair{std::vector<std::string>{"fit", "--batch_size", "8"}, "did you mean '--data.batch_size'?"},
      std::pair{
          std::vector<std::string>{"fit", "test"},
          "unexpected argument 'test'; a command has one verb, and 'fit' is it. `trainer fit --help` shows the usage."},
      std::pair{std::vector<std::string>{"fit", "--nope"}, "'--nope'. `trainer fit --help` lists those of fit, `"},
      std::pair{std::vector<std::string>{"--nope"}, "`trainer VERB --help` lists those of a verb, `"},
      std::pair{std::vector<std::string>{"sweep", "--jbos"}, "did you mean '--jobs'?"},
      std::pair{std::vector<std::string>{"fit", "c.yaml"},
                "unexpected argument 'c.yaml'; did you mean `--config c.yaml`?"},
      std::pair{std::vector<std::string>{"fit", "-x"}, "unexpected argument '-x'"},
      std::pair{std::vector<std::string>{"fit", "--trainer.max_epoch", "3"},
                "command line: trainer.max_epoch: unknown key; did you mean 'max_epochs'?"},
      std::pair{std::vector<std::string>{"fit", "--trainer.max_epochs"}, "needs a value"},
      std::pair{std::vector<std::string>{"fit", "--trainer.max_epochs", "--version"}, "needs a value"},
      std::pair{std::vector<std::string>{"fit", "--config"}, "--config"},
      std::pair{std::vector<std::string>{"config", "--print_config=coments"}, "takes comments and skip_null"},
      std::pair{std::vector<std::string>{"list", "callbacks"}, "did you mean 'callback'?"},
      std::pair{std::vector<std::string>{"describe", "MlpClasifier"}, "did you mean 'MlpClassifier'?"},
      std::pair{std::vector<std::string>{"describe"},
                "describe` needs NAME (Name of the component); got none. `trainer describe --help` shows"},
      std::pair{std::vector<std::string>{"tune"}, "tune` needs WHAT (lr or batch_size); got none."},
      std::pair{std::vector<std::string>{"tune", "learning_rate"},
                "got 'learning_rate'. Use tune lr or tune batch_size."},
      std::pair{std::vector<std::string>{"compare", "a"}, "compare` needs RUN (Two run folders); got 1."},
      std::pair{std::vector<std::string>{"report"}, "report` needs RUN ("},
      std::pair{std::vector<std::string>{"fit", "--profile"}, "--profile needs a value: --profile STEPS. "},
      std::pair{std::vector<std::string>{"export", "a", "--format", "onnx"},
                "--format takes safetensors or pt or torchscript; got 'onnx'."},
      std::pair{std::vector<std::string>{"sweep", "--jobs", "0"}, "--jobs must be in the range "},
      std::pair{std::vector<std::string>{"sweep", "--jobs", "0"}, "; got '0'."},
      std::pair{std::vector<std::string>{"tune", "lr", "--steps", "ten"}, "--steps does not take the value 'ten'."},
      std::pair{std::vector<std::string>{"fit", "plain.yaml"}, "did you mean `--config plain.yaml`?"},
      std::pair{std::vector<std::string>{"fit", "my net.yaml"}, "did you mean `--config 'my net.yaml'`?"},
      std::pair{std::vector<std::string>{"train", "--config", "x.yaml"}, "did you mean 'fit'?"},
      std::pair{std::vector<std::string>{"evaluate"}, "did you mean 'validate'?"},
      std::pair{std::vector<std::string>{"fit"}, "fit needs a model"},
      std::pair{std::vector<std::string>{"fit", "--config", "/nowhere/c.yaml"}, "/nowhere/c.yaml: cannot be opened"},
      std::pair{std::vector<std::string>{"config", "--config", "trainer.max_epochs=2"},
                "; did you mean --trainer.max_epochs=2?"});
  INFO(hint);
  const Finished finished = trainer(arguments);
  INFO(finished.err);
  CHECK(finished.exit_code == 2);
  CHECK(finished.out.empty());
  CHECK(finished.err.starts_with("error: ["));
  CHECK(says(finished.err, hint));
}

TEST_CASE("F42 arguments that are not UTF-8 exit 2") {
  const Finished finished = trainer({"fit", "--ckpt_path=\xFF\xFE"});
  CHECK(finished.exit_code == 2);
  CHECK(says(finished.err, "valid UTF-8; got '--ckpt_path=\\xff\\xfe'"));
}

TEST_CASE("F42 values may contain any characters") {
  const auto [argument, line] = GENERATE(
      std::pair{"--ckpt_path=a=b", "ckpt_path: a=b"}, std::pair{"--ckpt_path=a\nb", "ckpt_path: \"a\\nb\""},
      std::pair{"--ckpt_path=it's \"x\"", "ckpt_path: it's \"x\""}, std::pair{"--ckpt_path=fit", "ckpt_path: fit"},
      std::pair{"--ckpt_path=", "ckpt_path: null"}, std::pair{"--ckpt_path=--x", "ckpt_path: \"--x\""});
  const Finished finished = trainer({"config", argument});
  CHECK(finished.exit_code == 0);
  INFO(finished.out);
  CHECK(says(finished.out, line));
  const Finished two = trainer({"config", "--ckpt_path", "fit", "--trainer.max_epochs", "-1"});
  CHECK(two.exit_code == 0);
  CHECK(says(two.out, "ckpt_path: fit"));
  CHECK(says(two.out, "max_epochs: -1"));
}

TEST_CASE("F42 100,000 arguments") {
  std::vector<std::string> arguments{"config"};
  for (int i = 0; i < 100'000; ++i) arguments.push_back("--trainer.max_epochs=" + std::to_string(i));
  const Finished finished = trainer(arguments);
  CHECK(finished.exit_code == 0);
  CHECK(says(finished.out, "max_epochs: 99999"));
}

TEST_CASE("options may come before or after the verb") {
  const Folder folder;
  const std::string path = folder.config("trainer: {max_epochs: 2}\n");
  const Finished before = trainer({"-c", path, "--trainer.max_steps", "5", "config"});
  const Finished after = trainer({"config", "--trainer.max_steps=5", "--config=" + path});
  CHECK(before.exit_code == 0);
  CHECK(before.out == after.out);
  CHECK(says(after.out, "max_epochs: 2"));
  CHECK(says(after.out, "max_steps: 5"));
}

TEST_CASE("the printed config reads back as itself, with comments too") {
  const Folder folder;
  for (const char* style : {"--print_config", "--print_config=comments", "--print_config=comments,skip_null"}) {
    INFO(style);
    const Finished first =
        trainer({"fit", "--model", "MlpClassifier", "--model.dropout", "0.5", "--optimizer=AdamW", "--optimizer.lr",
                 "1e-4", "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.monitor", "val_acc", style});
    CHECK(first.exit_code == 0);
    CHECK(says(first.out, "lr: 0.0001"));
    CHECK(says(first.out, "monitor: val_acc"));
    CHECK(says(first.out, "# ") == says(style, "comments"));
    const Finished second = trainer({"fit", "-c", folder.config(first.out), style});
    CHECK(second.exit_code == 0);
    CHECK(second.out == first.out);
  }
}

TEST_CASE("F40 wrong configs exit 2 with place, path and hint, all in one go") {
  const Finished many = check("optimzer: {}\ntrainer:\n  max_epochs: 1.0\n  accumulate_grad_batches: -1\n");
  CHECK(many.exit_code == 2);
  CHECK(many.out.empty());
  CHECK(says(many.err, "error: [config] 3 problems:\n"));
  CHECK(says(many.err, "c.yaml:1:1: optimzer: unknown key; did you mean 'optimizer'?\n"));
  CHECK(
      says(many.err, "c.yaml:3:15: trainer.max_epochs: expected int; got '1.0'; write 1, without point or exponent\n"));
  CHECK(says(many.err, "c.yaml:4:28: trainer.accumulate_grad_batches: must be at least 1; got -1\n"));
  for (const char* yaml : {"", "# nothing\n", "a: 1\n---\nb: 2\n", "trainer:\n\tmax_epochs: 3\n",
                           "trainer: {max_epochs: 1, max_epochs: 2}\n", "<<: {}\n", "trainer: {max_epochs: 010}\n",
                           "trainer: {gradient_clip_val: .nan}\n", "trainer: {max_epochs: 1_000}\n",
                           "trainer: {default_root_dir: \xFF}\n", "data: MnistDataModule\n"}) {
    const Finished finished = check(yaml);
    INFO(yaml);
    INFO(finished.err);
    CHECK(finished.exit_code == 2);
    CHECK(says(finished.err, "c.yaml"));
  }
  CHECK(check("\xEF\xBB\xBFtrainer: {max_epochs: 1}\r\n").exit_code == 0);
}

TEST_CASE("a mistake in an override is one message") {
  for (const char* key :
       {"--trainer.logger.0.name", "--trainer.callbacks.0.patience", "--trainer.callbacks.patience"}) {
    const Finished finished = trainer({"config", key, "3"});
    INFO(key << finished.err);
    CHECK(finished.exit_code == 2);
    CHECK(says(finished.err, "the list is empty"));
    CHECK_FALSE(says(finished.err, "got null"));
    CHECK_FALSE(says(finished.err, "problems"));
  }
}

TEST_CASE("names of other libraries lead to the components") {
  const auto [key, name, near] = GENERATE(
      std::tuple{"--trainer.callbacks+", "EMA", "WeightAveraging"},
      std::tuple{"--trainer.callbacks+", "EMACallback", "WeightAveraging"},
      std::tuple{"--model.metrics+", "F1Score", "FBeta"}, std::tuple{"--model.metrics+", "MulticlassF1Score", "FBeta"},
      std::tuple{"--model.metrics+", "MulticlassAccuracy", "Accuracy"},
      std::tuple{"--model.metrics+", "JaccardIndex", "IoU"}, std::tuple{"--trainer.strategy", "auto", "single_device"},
      std::tuple{"--trainer.strategy", "ModelParallelStrategy", "mesh"},
      std::tuple{"--trainer.strategy", "deepspeed_stage_3", "fsdp"});
  const Finished finished = trainer({"config", "--model", "MlpClassifier", key, name});
  INFO(finished.err);
  CHECK(finished.exit_code == 2);
  CHECK(says(finished.err, std::string("; did you mean '") + near + "'?"));
}

TEST_CASE("F1 and EMA are found in the list of components") {
  const std::string all = trainer({"list"}).out;
  for (const char* line : {"  FBeta", "  IoU", "  WeightAveraging"}) {
    const size_t at = all.find(line);
    REQUIRE(at != std::string::npos);
    const std::string text = all.substr(at, all.find('\n', at) - at);
    INFO(text);
    CHECK((says(text, "F1") || says(text, "Jaccard") || says(text, "EMA")));
  }
}

TEST_CASE("F41 hostile YAML exits 2") {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i <= 9; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 9; ++j) bomb += (j > 0 ? ", *a" : "*a") + std::to_string(i - 1);
    bomb += "]\n";
  }
  for (const std::string& yaml :
       {bomb, std::string("a: &a [*a]\n"), std::string(100'000, '['), "a: " + std::string(2'000'000, 'x')}) {
    const Finished finished = check(yaml);
    CHECK(finished.exit_code == 2);
    CHECK(finished.err.size() < 2000);
  }
}

TEST_CASE("F43 references from the environment") {
  const Folder folder;
  const std::string path = folder.config("ckpt_path: ${env:CLI_TEST_VALUE}\n");
  CHECK(says(trainer({"config", "-c", path}, {.folder = {}, .environment = {"CLI_TEST_VALUE=here"}}).out,
             "ckpt_path: here"));
  const Finished missing = trainer({"config", "-c", path});
  CHECK(missing.exit_code == 2);
  CHECK(
      says(missing.err, "c.yaml:1:12: ckpt_path: environment variable is not set: ckpt_path → ${env:CLI_TEST_VALUE}"));
}

TEST_CASE("F43 a variable with a mistake in its name is an error") {
  CHECK(
      says(trainer({"config"}, {.folder = {}, .environment = {"FULGUR_TRAINER__MAX_EPOCHS=3"}}).out, "max_epochs: 3"));
  const Finished finished = trainer({"config"}, {.folder = {}, .environment = {"FULGUR_TRAINER__MAX_EPOCH=3"}});
  CHECK(finished.exit_code == 2);
  CHECK(says(finished.err, "environment variable FULGUR_TRAINER__MAX_EPOCH: trainer.max_epoch: unknown key"));
}

TEST_CASE("F45 F47 hostile names are shown harmlessly") {
  const auto [name, shown] = GENERATE(std::pair{";rm -rf x", "';rm -rf x'"}, std::pair{"%n %s {}", "'%n %s {}'"},
                                      std::pair{"a\x1b[2J\nerror: forged", "'a\\x1b[2J\\nerror: forged'"},
                                      std::pair{"ModelCheckpoint", "there is a callback of that name"});
  const Finished finished = trainer({"config", "--model", name});
  INFO(finished.err);
  CHECK(finished.exit_code == 2);
  CHECK(says(finished.err, shown));
  CHECK_FALSE(says(finished.err, "\x1b"));
  CHECK_FALSE(says(finished.err, "\nerror: forged"));
}

TEST_CASE("a plug-in that cannot be loaded exits 2 with the reason") {
  const Folder folder;
  write_text(folder / "no.so", "not a library");
  const Finished damaged = trainer({"list", "--plugin", (folder / "no.so").string()});
  CHECK(damaged.exit_code == 2);
  CHECK(says(damaged.err, "--plugin"));
  CHECK(says(damaged.err, "no.so"));
  CHECK(trainer({"--plugin", "missing.so", "list"}).exit_code == 2);
}

TEST_CASE("list, describe and schema") {
  const Finished all = trainer({"list"});
  CHECK(all.exit_code == 0);
  for (const char* part :
       {"callback:", "data:", "logger:", "lr_scheduler:", "model:", "optimizer:", "strategy:", "MlpClassifier"})
    CHECK(says(all.out, part));
  const Finished models = trainer({"list", "model"});
  CHECK(says(models.out, "CnnClassifier"));
  CHECK_FALSE(says(models.out, "callback:"));
  const Finished model = trainer({"describe", "CnnClassifier"});
  CHECK(model.exit_code == 0);
  CHECK(says(model.out, "dropout"));
  const Finished schema = trainer({"schema"});
  CHECK(schema.exit_code == 0);
  const nlohmann::json json = nlohmann::json::parse(schema.out);
  CHECK(json["$defs"]["model"]["oneOf"].size() > 3);
}

}  // namespace command_line_test
