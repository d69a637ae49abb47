#pragma once

#include <functional>
#include <set>
#include <sstream>
#include <string>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/yaml_writer.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/config.h"
#include "support/temporary_folder.h"

// Last: LibTorch defines its own CHECK.
#include <catch2/catch_test_macros.hpp>

namespace fulgur::test {

/// A guide in docs/ that describes components: `## Name` sections with a table of options, and YAML examples.
inline std::string guide(const std::string& name) {
  return read_text(std::filesystem::path(__FILE__).parent_path() / "../../docs" / name);
}

/// Checks that each component of `kind` that is registered in `folder` has its section, and that the section's table
/// has a row for each option, with its default, and for no other. Options in `told_elsewhere` have no row.
inline void check_options_in_guide(const std::string& text, const std::string& kind, const std::string& folder,
                                   const std::set<std::string>& told_elsewhere = {}) {
  REQUIRE_FALSE(text.empty());
  const ComponentRegistry& registry = component_registry(kind);
  for (const std::string& name : registry.names()) {
    if (registry.get(name).file.find(folder) == std::string::npos) continue;
    CAPTURE(name);
    const size_t start = text.find(cat("\n## ", name, "\n"));
    REQUIRE(start != std::string::npos);
    const auto options = registry.get(name).make_options();
    Fields fields;
    options->fields(fields);
    std::set<std::string> expected, told;
    for (const Field& field : fields.all())
      if (!told_elsewhere.contains(field.name)) expected.insert(field.name);
    std::istringstream lines(text.substr(start, text.find("\n## ", start + 1) - start));
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

/// Reads each YAML example as a config and gives it to `check`; returns how many there are.
inline size_t for_each_example(const std::string& text, const std::function<void(const Config&)>& check) {
  size_t examples = 0;
  for (size_t start = text.find("```yaml\n"); start != std::string::npos; start = text.find("```yaml\n", start + 1)) {
    const std::string yaml = text.substr(start + 8, text.find("```", start + 8) - start - 8);
    CAPTURE(yaml);
    TemporaryFolder folder;
    write_text(folder / "c.yaml", yaml);
    Config config;
    REQUIRE_NOTHROW(config = load_config({.files = {folder / "c.yaml"}, .overrides = {}, .environment = {}}));
    check(config);
    ++examples;
  }
  return examples;
}

}  // namespace fulgur::test
