// docs/optimizers.md says what the fields of optimizers and schedules say, and its examples can be made.
#include <catch2/catch_test_macros.hpp>
#include <set>
#include <sstream>

#include "fulgur/core/optimizer.h"
#include "fulgur/core/registry.h"
#include "fulgur/core/text.h"
#include "fulgur/core/yaml_writer.h"
#include "fulgur/trainer/config.h"
#include "support/temporary_folder.h"

using namespace fulgur;

namespace {

std::string guide() { return test::read_text(std::filesystem::path(__FILE__).parent_path() / "../../docs/optimizers.md"); }

// The text below `## Name`, up to the next section.
std::string section(const std::string& text, const std::string& name) {
  const size_t start = text.find(cat("\n## ", name, "\n"));
  if (start == std::string::npos) return {};
  return text.substr(start, text.find("\n## ", start + 1) - start);
}

}  // namespace

TEST_CASE("docs/optimizers.md has a section for each optimizer and schedule, with a row for each option and no other") {
  const std::string text = guide();
  for (const char* kind : {"optimizer", "lr_scheduler"}) {
    const ComponentRegistry& registry = component_registry(kind);
    for (const std::string& name : registry.names()) {
      if (registry.get(name).file.find("/optim/") == std::string::npos) continue;
      CAPTURE(name);
      const std::string own = section(text, name);
      REQUIRE_FALSE(own.empty());
      const auto options = registry.get(name).make_options();
      Fields fields;
      options->fields(fields);
      std::set<std::string> expected, told;
      for (const Field& field : fields.all())
        if (field.name != "groups" && field.name != "no_decay_norm_and_bias") expected.insert(field.name);
      std::istringstream lines(own);
      for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("| `")) continue;
        const std::string option = line.substr(3, line.find('`', 3) - 3);
        told.insert(option);
        // The default stands in the second column, as the config writes it.
        for (const Field& field : fields.all())
          if (field.name == option && !field.required && field.type.kind != TypeInfo::Kind::object) {
            CAPTURE(option, line);
            std::string shown = to_yaml(field.write());
            while (!shown.empty() && shown.back() == '\n') shown.pop_back();
            CHECK(line.find(cat("| `", shown, "` |")) != std::string::npos);
          }
      }
      CHECK(told == expected);
    }
  }
}

TEST_CASE("each example of docs/optimizers.md is a config whose optimizer and schedule can be made") {
  const std::string text = guide();
  size_t examples = 0;
  for (size_t start = text.find("```yaml\n"); start != std::string::npos; start = text.find("```yaml\n", start + 1)) {
    const std::string yaml = text.substr(start + 8, text.find("```", start + 8) - start - 8);
    CAPTURE(yaml);
    test::TemporaryFolder folder;
    test::write_text(folder / "c.yaml", yaml);
    Config config;
    REQUIRE_NOTHROW(config = load_config({.files = {folder / "c.yaml"}, .overrides = {}, .environment = {}}));
    CHECK((config.optimizer || config.lr_scheduler));
    if (config.optimizer) CHECK_NOTHROW(config.optimizer->create());
    if (config.lr_scheduler) CHECK_NOTHROW(config.lr_scheduler->create());
    ++examples;
  }
  CHECK(examples >= 25);
}
