#include "trainer/config/config_components.h"

#include "fulgur/core/text/text.h"
#include "support/shown_lines.h"
#include "support/temporary_folder.h"

namespace config_merge_test {

using namespace fulgur;
using test::load;
using test::load_error;
using test::value_at;

namespace {
bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
const std::string kModel = "model: {class_path: ConfigModel, init_args: {classes: 3, rate: 0.1}}\n";
}  // namespace

TEST_CASE("later files win, maps merge deeply and lists replace") {
  const test::TemporaryFolder folder;
  test::write_text(folder / "a.yaml",
                   kModel + "trainer: {max_epochs: 1, max_steps: 5, callbacks: [ConfigCallback, ConfigCallback]}\n");
  test::write_text(folder / "b.yaml",
                   "trainer: {max_epochs: 2, callbacks: [ConfigCallback]}\nmodel: {init_args: {rate: 0.2}}\n");
  const Config config =
      load_config({.files = {folder / "a.yaml", folder / "b.yaml"}, .overrides = {}, .environment = {}});
  CHECK(config.trainer.max_epochs == 2);
  CHECK(config.trainer.max_steps == 5);
  CHECK(config.trainer.callbacks.size() == 1);
  CHECK(value_at(config, "model.init_args.classes") == "3");
  CHECK(value_at(config, "model.init_args.rate") == "0.2");
  CHECK(config.folder == folder.path());
}

TEST_CASE("another class drops the options of the old one, the same class keeps them") {
  const test::TemporaryFolder folder;
  test::write_text(folder / "a.yaml", kModel);
  test::write_text(folder / "b.yaml", "model: {class_path: OtherModel}\n");
  test::write_text(folder / "c.yaml", "model: ConfigModel\n");
  CHECK(value_at(load_config({.files = {folder / "a.yaml", folder / "b.yaml"}, .overrides = {}, .environment = {}}),
                 "model.init_args.rate") == "0.25");
  CHECK(value_at(load_config({.files = {folder / "a.yaml", folder / "c.yaml"}, .overrides = {}, .environment = {}}),
                 "model.init_args.rate") == "0.1");
  CHECK(value_at(load(kModel, {{"model", "OtherModel"}}), "model.init_args.rate") == "0.25");
  CHECK(value_at(load(kModel, {{"model", "ConfigModel"}}), "model.init_args.rate") == "0.1");
  CHECK(value_at(load(kModel, {{"model.class_path", "OtherModel"}}), "model.init_args.rate") == "0.25");
}

TEST_CASE("an option of the command line stays if its class is named after it") {
  CHECK(value_at(load(kModel, {{"model.rate", "0.5"}, {"model", "OtherModel"}}), "model.init_args.rate") == "0.5");
  CHECK(value_at(load(kModel, {{"model.rate", "0.5"}, {"model.class_path", "OtherModel"}}), "model.init_args.rate") ==
        "0.5");
  CHECK(value_at(load(kModel, {{"model.rate", "0.5"}, {"model", "{class_path: OtherModel, init_args: {rate: 0.7}}"}}),
                 "model.init_args.rate") == "0.7");
  CHECK(value_at(load(kModel, {{"model", "OtherModel"}}, {{"FULGUR_MODEL__RATE", "0.5"}}), "model.init_args.rate") ==
        "0.25");
  // Also if the class is named in a value of what contains it, or is one of several types.
  const auto precision = [](const std::vector<std::pair<std::string, std::string>>& overrides) {
    return value_at(load("trainer: {precision: 32-true}", overrides), "trainer.precision.init_args.master_weights");
  };
  CHECK(precision({{"trainer.precision.master_weights", "true"}, {"trainer.precision", "bf16-true"}}) == "true");
  CHECK(precision({{"trainer.precision.master_weights", "true"}, {"trainer", "{precision: bf16-true}"}}) == "true");
  CHECK(precision({{"trainer", "{precision: bf16-true}"}}) == "false");
  CHECK(value_at(load("", {{"trainer.logger", "CsvLogger"},
                           {"trainer.logger.name", "own"},
                           {"trainer.logger", "TensorBoardLogger"}}),
                 "trainer.logger.0.init_args.name") == "own");
  // Not so an item of a list of the class before.
  for (const char* key : {"model.hidden.0", "model.hidden+"})
    CHECK(says(load_error("model: {class_path: MlpClassifier, init_args: {hidden: [8]}}",
                          {{key, "9"}, {"model", "TabularMlp"}}),
               "an argument before it changes an item of 'hidden'"));
  // An option that the class does not have is not lost silently.
  CHECK(says(load_error(kModel, {{"model.classes", "5"}, {"model", "OtherModel"}}), "classes: unknown key"));
  CHECK(value_at(load("model: OtherModel", {{"model", "ConfigModel"},
                                            {"model.classes", "3"},
                                            {"model.part.depth", "2"},
                                            {"model", "OtherModel"},
                                            {"model", "ConfigModel"}}),
                 "model.init_args.part.depth") == "2");
}

TEST_CASE("defaults, files, environment, command line: each wins over the one before") {
  const std::string yaml = "trainer: {max_epochs: 1}\n";
  CHECK_FALSE(load("").trainer.max_epochs);
  CHECK(load(yaml).trainer.max_epochs == 1);
  CHECK(load(yaml, {}, {{"FULGUR_TRAINER__MAX_EPOCHS", "2"}}).trainer.max_epochs == 2);
  CHECK(load(yaml, {{"trainer.max_epochs", "3"}}, {{"FULGUR_TRAINER__MAX_EPOCHS", "2"}}).trainer.max_epochs == 3);
  CHECK(load(yaml, {{"trainer.max_epochs", "3"}, {"trainer.max_epochs", "4"}}).trainer.max_epochs == 4);
}

TEST_CASE("the environment sets options of components and is checked") {
  CHECK(value_at(load("", {}, {{"FULGUR_MODEL__CLASSES", "4"}, {"FULGUR_MODEL__CLASS_PATH", "ConfigModel"}}),
                 "model.init_args.classes") == "4");
  // Keys of one part; a class comes before its options.
  CHECK(load("", {}, {{"FULGUR_SEED_EVERYTHING", "7"}}).seed_everything.seed == 7);
  CHECK(load("", {}, {{"FULGUR_CKPT_PATH", "last"}}).ckpt_path == "last");
  CHECK(value_at(load("", {}, {{"FULGUR_MODEL", "ConfigModel"}, {"FULGUR_MODEL__CLASSES", "4"}}),
                 "model.init_args.classes") == "4");
  load("", {}, {{"FULGUR_LIBTORCH", "cuda"}, {"OTHER__NAME", "1"}, {"FULGUR_TRIAL_DATA", "/x"}});
  CHECK(says(
      load_error("", {}, {{"FULGUR_TRAINER__MAX_EPOCH", "3"}}),
      "environment variable FULGUR_TRAINER__MAX_EPOCH: trainer.max_epoch: unknown key; did you mean 'max_epochs'?"));
  const std::string lines = test::shown_lines([] {
    load("", {}, {{"FULGUR_TRAINER_MAX_EPOCHS", "3"}, {"FULGUR_DATA_ROOT", "/x"}});
  });
  CHECK(says(lines,
             "FULGUR_TRAINER_MAX_EPOCHS is ignored: two underscores separate the parts of a key. Write "
             "FULGUR_TRAINER__MAX_EPOCHS [config.ignored_variable]"));
  CHECK_FALSE(says(lines, "FULGUR_DATA_ROOT"));
  CHECK(says(load_error("", {}, {{"FULGUR_TRANER__MAX_EPOCHS", "3"}}), "did you mean 'trainer'?"));
  CHECK(says(load_error("", {}, {{"FULGUR_TRAINER__MAX_EPOCHS", "x"}}),
             "environment variable FULGUR_TRAINER__MAX_EPOCHS: trainer.max_epochs: expected int"));
  CHECK(says(load_error("", {}, {{"FULGUR_TRAINER____MAX", "x"}}), "FULGUR_TRAINER____MAX"));
  CHECK(says(load_error("", {}, {{"FULGUR_CKPT__PATH", "\xFF"}}), "UTF-8"));
}

TEST_CASE("short forms name a component and its options") {
  const Config config = load(
      "",
      {{"model", "ConfigModel"}, {"model.classes", "5"}, {"model.init_args.rate", "0.3"}, {"model.part.depth", "2"}});
  CHECK(config.model.class_path() == "ConfigModel");
  CHECK(value_at(config, "model.init_args.classes") == "5");
  CHECK(value_at(config, "model.init_args.rate") == "0.3");
  CHECK(value_at(config, "model.init_args.part.depth") == "2");
  CHECK(value_at(load("", {{"model", "{class_path: ConfigModel, init_args: {classes: 7}}"}}),
                 "model.init_args.classes") == "7");
  CHECK(value_at(load(kModel, {{"model.init_args", "{rate: 0.7}"}}), "model.init_args.classes") == "3");
}

TEST_CASE("an empty value on the command line is the empty text for an option that takes a text") {
  CHECK(value_at(load(kModel, {{"model.name", ""}}), "model.init_args.name") == "\"\"");
  CHECK(value_at(load(kModel, {}, {{"FULGUR_MODEL__NAME", ""}}), "model.init_args.name") == "\"\"");
  // Other options may be null, or need a value.
  CHECK(load(kModel, {{"ckpt_path", ""}}).ckpt_path == std::nullopt);
  CHECK(says(load_error(kModel, {{"model.rate", ""}}), "got null"));
}

TEST_CASE("F42 an override of a missing key is an error that says so") {
  CHECK(says(load_error("", {{"model.rate", "1"}}), "no model is chosen; name the class with --model NAME"));
  CHECK(says(load_error("", {{"trainer.max_epoch", "3"}}),
             "command line: trainer.max_epoch: unknown key; did you mean 'max_epochs'?"));
  CHECK(says(load_error(kModel, {{"model.rtae", "3"}}), "model.init_args.rtae: unknown key; did you mean 'rate'?"));
  CHECK(says(load_error("", {{"trainer.max_epochs.x", "3"}}), "is one value"));
  CHECK(says(load_error("", {{"trainer.callbacks.patience", "3"}}), "append to it first with trainer.callbacks+=NAME"));
  CHECK(
      says(load_error("", {{"trainer.callbacks+", "ConfigCallback"}, {"trainer.callbacks.nothing", "3"}}),
           "the last element of the list, ConfigCallback, has no option 'nothing'. For an option of another component, "
           "first append it with --trainer.callbacks+=NAME"));
  CHECK(says(load_error("trainer: {callbacks: [ConfigCallback]}", {{"trainer.callbacks.4.patience", "3"}}),
             "there is no item 4"));
  CHECK(says(load_error("", {{"trainer.max_epochs+", "3"}}), "is not a list"));
  CHECK(says(load_error("", {{"trainer..max_epochs", "3"}}), "is not a key path"));
  CHECK(says(load_error("", {{"", "3"}}), "is not a key path"));
  CHECK(says(load_error("", {{std::string(2000, '.'), "3"}}), "is not a key path"));
  CHECK(says(load_error("", {{"trainer.callbacks", "[ConfigCallback"}}), "command line"));
}

TEST_CASE("F42 values may contain any characters") {
  CHECK(load("", {{"ckpt_path", "a=b #c: *d & 'e'"}}).ckpt_path == "a=b #c: *d & 'e'");
  CHECK(load("", {{"ckpt_path", "line\nbreak"}}).ckpt_path == "line\nbreak");
  CHECK(load("", {{"ckpt_path", "\"quoted\""}}).ckpt_path == "quoted");
  CHECK_FALSE(load("ckpt_path: last", {{"ckpt_path", "null"}}).ckpt_path);
  CHECK(load("", {{"trainer.max_epochs", "-1"}}).trainer.max_epochs == -1);
}

TEST_CASE("lists of components: append, the last one, and any one") {
  const Config config = load("trainer: {callbacks: [ConfigCallback]}",
                             {{"trainer.callbacks+", "ConfigCallback"},
                              {"trainer.callbacks.patience", "5"},
                              {"trainer.callbacks.monitor", "val_acc"},
                              {"trainer.callbacks.0.init_args.patience", "1"},
                              {"trainer.callbacks+", "{class_path: ConfigCallback, init_args: {patience: 9}}"},
                              {"trainer.callbacks.1.monitor", "x"}});
  CHECK(config.trainer.callbacks.size() == 3);
  CHECK(value_at(config, "trainer.callbacks.0.init_args.patience") == "1");
  CHECK(value_at(config, "trainer.callbacks.1.init_args.patience") == "5");
  CHECK(value_at(config, "trainer.callbacks.1.init_args.monitor") == "x");
  CHECK(value_at(config, "trainer.callbacks.2.init_args.patience") == "9");
  CHECK(load("", {{"trainer.callbacks+", "[ConfigCallback, ConfigCallback]"}}).trainer.callbacks.size() == 2);
  CHECK(value_at(load(kModel, {{"model.widths+", "2"}, {"model.widths+", "[3, 4]"}}), "model.init_args.widths") ==
        "[2, 3, 4]");
}

TEST_CASE("a value that begins with { is text for an option of text, and a map for other options") {
  for (const char* text : {"{epoch}", "{epoch}-{val_loss:.2f}"})
    CHECK(load("", {{"lr_scheduler_name", text}}).lr_scheduler_name == text);
  CHECK(load("", {{"trainer", "{max_epochs: 3}"}}).trainer.max_epochs == 3);
  const std::string error = load_error("", {{"trainer.max_epochs", "{1}-{2}"}});
  CHECK(says(error, "command line: trainer.max_epochs: the value is not valid YAML: "));
  CHECK(says(error, "quote it inside the argument: '\"{1}-{2}\"'"));
}

TEST_CASE("loggers: a switch, one, or a list") {
  CHECK(load("trainer: {logger: false}").trainer.logger.enabled == false);
  CHECK(load("trainer: {logger: true}").trainer.logger.loggers.empty());
  CHECK(load("trainer: {logger: ConfigLogger}").trainer.logger.loggers.size() == 1);
  CHECK(load("trainer: {logger: ConfigLogger}", {{"trainer.logger+", "ConfigLogger"}}).trainer.logger.loggers.size() ==
        2);
  CHECK(load("trainer: {logger: false}", {{"trainer.logger+", "ConfigLogger"}}).trainer.logger.loggers.size() == 1);
  CHECK(load("", {{"trainer.logger", "ConfigLogger"}}).trainer.logger.loggers.size() == 1);
  CHECK(says(load_error("trainer: {logger: no}"), "trainer.logger: expected bool or logger or list of logger"));
}

TEST_CASE("a group comes from a file") {
  const test::TemporaryFolder folder;
  test::write_text(folder / "model.yaml", "class_path: ConfigModel\ninit_args: {classes: 6}\n");
  test::write_text(folder / "trainer.yml", "trainer:\n  max_epochs: 6\n");
  const Config config = load("trainer: {max_steps: 9}", {{"model", (folder / "model.yaml").string()},
                                                         {"trainer", (folder / "trainer.yml").string()}});
  CHECK(value_at(config, "model.init_args.classes") == "6");
  CHECK(config.trainer.max_epochs == 6);
  CHECK(config.trainer.max_steps == 9);
  CHECK(says(load_error("", {{"model", (folder / "none.yaml").string()}}), "cannot be opened"));
}

TEST_CASE("a map of strings accepts keys with dots") {
  const Config config = load(kModel, {{"link.model.init_args.rate", "data.rate"}});
  REQUIRE(config.link.size() == 1);
  CHECK(config.link.at("model.init_args.rate") == "data.rate");
}

TEST_CASE("F42 100,000 overrides are handled") {
  std::vector<std::pair<std::string, std::string>> overrides{{"model", "ConfigModel"}, {"model.classes", "2"}};
  for (int i = 0; i < 50'000; ++i) {
    overrides.emplace_back("trainer.max_epochs", std::to_string(i));
    overrides.emplace_back("model.rate", cat(i + 1));
  }
  const Config config = load("", overrides);
  CHECK(config.trainer.max_epochs == 49'999);
  CHECK(value_at(config, "model.init_args.rate") == "50000.0");
}

}  // namespace config_merge_test
