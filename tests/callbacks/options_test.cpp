// docs/callbacks.md says what the callbacks' fields say, and its examples can be used.
#include "callbacks/scored.h"
#include "fulgur/core/text.h"
#include "fulgur/trainer/config.h"

#include <catch2/catch_test_macros.hpp>
#include <sstream>

using namespace fulgur;

namespace {

std::string guide() { return test::read_text(std::filesystem::path(__FILE__).parent_path() / "../../docs/callbacks.md"); }

// The text below `## Name`, up to the next section.
std::string section(const std::string& text, const std::string& name) {
  const size_t start = text.find(cat("\n## ", name, "\n"));
  if (start == std::string::npos) return {};
  return text.substr(start, text.find("\n## ", start + 1) - start);
}

}  // namespace

TEST_CASE("docs/callbacks.md has a section for each callback, with a row for each option and no other") {
  const std::string text = guide();
  REQUIRE_FALSE(text.empty());
  const ComponentRegistry& registry = component_registry("callback");
  for (const std::string& name : registry.names()) {
    if (registry.get(name).file.find("/callbacks/") == std::string::npos) continue;
    CAPTURE(name);
    const std::string own = section(text, name);
    REQUIRE_FALSE(own.empty());
    const auto options = registry.get(name).make_options();
    Fields fields;
    options->fields(fields);
    std::set<std::string> expected, told;
    for (const Field& field : fields.all()) expected.insert(field.name);
    std::istringstream lines(own);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("| `")) continue;
      const std::string option = line.substr(3, line.find('`', 3) - 3);
      told.insert(option);
      // The default stands in the second column, as the config writes it.
      for (const Field& field : fields.all())
        if (field.name == option && !field.required) {
          CAPTURE(option, line);
          std::string shown = to_yaml(field.write());
          while (!shown.empty() && shown.back() == '\n') shown.pop_back();
          CHECK(line.find(cat("| `", shown, "` |")) != std::string::npos);
        }
    }
    CHECK(told == expected);
  }
}

TEST_CASE("each example of docs/callbacks.md is a config whose callbacks can be made") {
  const std::string text = guide();
  size_t examples = 0;
  for (size_t start = text.find("```yaml\n"); start != std::string::npos; start = text.find("```yaml\n", start + 1)) {
    const std::string yaml = text.substr(start + 8, text.find("```", start + 8) - start - 8);
    CAPTURE(yaml);
    test::TemporaryFolder folder;
    test::write_text(folder / "c.yaml", yaml);
    Config config;
    REQUIRE_NOTHROW(config = load_config({.files = {folder / "c.yaml"}, .overrides = {}, .environment = {}}));
    CHECK_FALSE(config.trainer.callbacks.empty());
    for (const auto& callback : config.trainer.callbacks) CHECK_NOTHROW(callback.create());
    ++examples;
  }
  CHECK(examples >= 9);
}
