#include "trainer/config/config_components.h"

#include <cstdlib>

#include "fulgur/core/text/text.h"

namespace config_interpolation_test {

using namespace fulgur;
using test::load;
using test::load_error;
using test::value_at;

namespace {
bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Variable {
  std::string name;
  Variable(std::string name_, const std::string& value) : name(std::move(name_)) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name.c_str()); }
};
}  // namespace

TEST_CASE("a reference takes the value with its type") {
  const Config config = load(
      "trainer: {max_epochs: 3}\n"
      "model: {class_path: ConfigModel, init_args: {classes: \"${trainer.max_epochs}\", name: \"run "
      "${trainer.max_epochs} of ${data.data_dir}\", widths: \"${silence}\"}}\n"
      "data: {class_path: ConfigData, init_args: {data_dir: data/x}}\n"
      "silence: [4, 5]\n");
  CHECK(value_at(config, "model.init_args.classes") == "3");
  CHECK(value_at(config, "model.init_args.name") == "run 3 of data/x");
  CHECK(value_at(config, "model.init_args.widths") == "[4, 5]");
}

TEST_CASE("a reference may point at a reference, or through one to an item") {
  const Config config = load(
      "trainer: {max_epochs: \"${trainer.max_steps}\", max_steps: \"${trainer.log_every_n_steps}\", log_every_n_steps: "
      "8}\n"
      "model: {class_path: ConfigModel, init_args: {classes: \"${model.widths.1}\", widths: \"${silence}\"}}\n"
      "silence: [6, 7]\n");
  CHECK(config.trainer.max_epochs == 8);
  CHECK(value_at(config, "model.init_args.classes") == "7");
}

TEST_CASE("the command line can refer too, and be referred to") {
  const Config config = load("trainer:\n  max_epochs: ${trainer.max_steps}\n", {{"trainer.max_steps", "7"}});
  CHECK(config.trainer.max_epochs == 7);
  CHECK(load("trainer: {max_steps: 7}\n", {{"trainer.max_epochs", "${trainer.max_steps}"}}).trainer.max_epochs == 7);
}

TEST_CASE("environment variables fill values with their own type") {
  const Variable epochs("CONFIG_TEST_EPOCHS", "12");
  const Variable odd("CONFIG_TEST_ODD", "${not.again}");
  const Variable none("CONFIG_TEST_EMPTY", "");
  CHECK(load("trainer:\n  max_epochs: ${env:CONFIG_TEST_EPOCHS}\n").trainer.max_epochs == 12);
  CHECK(load("ckpt_path: /x/${env:CONFIG_TEST_EPOCHS}/y\n").ckpt_path == "/x/12/y");
  CHECK(load("ckpt_path: ${env:CONFIG_TEST_ODD}\n").ckpt_path == "${not.again}");
  CHECK(load("ckpt_path: ${env:CONFIG_TEST_EMPTY}\n").ckpt_path == "");
}

TEST_CASE("F43 a missing variable or key is reported with the chain, and only once") {
  const std::string missing = load_error("trainer:\n  max_epochs: ${env:CONFIG_TEST_NOT_SET}\n");
  CHECK(says(missing,
             "trainer.max_epochs: environment variable is not set: trainer.max_epochs → ${env:CONFIG_TEST_NOT_SET}"));
  CHECK_FALSE(says(missing, "expected int"));
  const std::string chain = load_error("trainer:\n  max_epochs: ${trainer.max_steps}\n  max_steps: ${nowhere.x}\n");
  CHECK(says(chain, "no such key in the config: trainer.max_epochs → trainer.max_steps → ${nowhere.x}"));
}

TEST_CASE("F43 a cycle is reported with the chain") {
  const std::string two =
      load_error("trainer:\n  max_epochs: ${trainer.max_steps}\n  max_steps: ${trainer.max_epochs}\n");
  CHECK(says(two, "refers to itself: trainer.max_epochs → trainer.max_steps → trainer.max_epochs"));
  CHECK(says(load_error("ckpt_path: ${ckpt_path}\n"), "refers to itself"));
  CHECK(says(load_error("trainer:\n  default_root_dir: ${trainer}\n"), "refers to itself"));
}

TEST_CASE("F43 expansion has a limit") {
  std::string yaml = "silence:\n  - " + std::string(1000, 'x') + "\n";
  for (int level = 1; level <= 9; ++level) {
    yaml += "  - \"";
    for (int i = 0; i < 10; ++i) yaml += cat("${silence.", level - 1, "}");
    yaml += "\"\n";
  }
  CHECK(says(load_error(yaml), "references expand to more than"));
}

TEST_CASE("F43 a long chain of references has an end") {
  std::string yaml = "silence:\n";
  for (int i = 0; i < 10'000; ++i) yaml += cat("  - ${silence.", i + 1, "}\n");
  yaml += "  - x\n";
  CHECK(says(load_error(yaml), "a chain of more than"));
}

TEST_CASE("a reference into a text must be one value, and close") {
  CHECK(says(load_error("ckpt_path: a ${silence}\nsilence: [x]\n"), "must be one value"));
  CHECK(says(load_error("ckpt_path: a ${silence\n"), "without '}'"));
}

TEST_CASE("doubled dollars are literal, also after a round trip") {
  const Config config = load("ckpt_path: a $${b} $$ $c\n");
  CHECK(config.ckpt_path == "a ${b} $$ $c");
  CHECK(config_from_node(config.write()).ckpt_path == config.ckpt_path);
}

}  // namespace config_interpolation_test
