// The files of .github: they are YAML, and the scripts that they run exist.
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <set>
#include <sstream>

#include "fulgur/trainer/yaml.h"

namespace workflows_test {

namespace fs = std::filesystem;
using fulgur::ConfigNode;

namespace {

ConfigNode parsed(const fs::path& file) {
  fulgur::Problems problems;
  ConfigNode node = fulgur::load_yaml_file(file, problems);
  INFO(problems.report());
  CHECK(problems.empty());
  return node;
}

/// All commands of the steps of a workflow.
std::string commands_of(const ConfigNode& workflow) {
  std::string commands;
  const ConfigNode* jobs = workflow.find("jobs");
  REQUIRE(jobs != nullptr);
  for (const auto& [name, job] : jobs->entries()) {
    INFO(name);
    REQUIRE(job.find("steps") != nullptr);
    CHECK(job.find("runs-on") != nullptr);
    CHECK(job.find("timeout-minutes") != nullptr);
    for (const ConfigNode& step : job.find("steps")->items()) {
      CHECK((step.find("run") != nullptr) != (step.find("uses") != nullptr));
      if (const ConfigNode* run = step.find("run")) commands += run->text() + "\n";
    }
  }
  return commands;
}

}  // namespace

TEST_CASE("workflows and issue templates are YAML, and workflows run scripts that exist") {
  const fs::path root = FULGUR_SOURCE_DIR;
  std::string commands;
  std::set<std::string> names;
  for (const fs::directory_entry& file : fs::directory_iterator(root / ".github/workflows")) {
    INFO(file.path());
    names.insert(file.path().filename().string());
    const ConfigNode workflow = parsed(file.path());
    for (const char* key : {"name", "on", "permissions", "jobs"}) {
      INFO(key);
      CHECK(workflow.find(key) != nullptr);
    }
    commands += commands_of(workflow);
  }
  CHECK(names.contains("ci.yml"));
  std::istringstream words(commands);
  std::set<std::string> scripts;
  for (std::string word; words >> word;)
    if (word.starts_with("scripts/") || word.starts_with(".ci/")) scripts.insert(word);
  for (const char* script :
       {".ci/run", "scripts/setup.sh", "scripts/fuzz.sh", "scripts/coverage.sh", "scripts/compare.sh"})
    CHECK(scripts.contains(script));
  for (const std::string& script : scripts) {
    INFO(script);
    REQUIRE(fs::is_regular_file(root / script));
    CHECK((fs::status(root / script).permissions() & fs::perms::owner_exec) != fs::perms::none);
  }
  for (const fs::directory_entry& file : fs::directory_iterator(root / ".github/ISSUE_TEMPLATE")) {
    INFO(file.path());
    const ConfigNode form = parsed(file.path());
    if (file.path().filename() == "config.yml") continue;
    for (const char* key : {"name", "description", "body"}) CHECK(form.find(key) != nullptr);
  }
}

}  // namespace workflows_test
