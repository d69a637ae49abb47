#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "process.h"

namespace new_verb_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

const fs::path kTemplate = fs::path(FULGUR_SOURCE_DIR) / "examples/template_project";

Finished make(const TemporaryFolder& folder, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "new");
  return trainer(arguments, {.folder = folder.path()});
}

size_t entries_of(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), {}));
}

}  // namespace

TEST_CASE("new makes the files of the template, with the project's name") {
  const TemporaryFolder folder;
  const Finished made = make(folder, {"deep/my_project/"});
  INFO(made.err);
  REQUIRE(made.exit_code == 0);
  CHECK(says(made.out, "cd deep/my_project\n"));
  CHECK(says(made.out, "cmake --preset local"));
  CHECK(says(made.out, "build/my_project fit --config configs/train.yaml\n"));
  const fs::path project = folder / "deep/my_project";
  CHECK(entries_of(folder / "deep") == 1);
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(project)) {
    if (!entry.is_regular_file() || entry.path().filename() == "CMakeUserPresets.json") continue;
    const std::string name = fs::relative(entry.path(), project).string();
    files.insert(name);
    CAPTURE(name);
    const std::string text = read_text(entry.path());
    CHECK(!says(text, "template_project"));
    CHECK(fs::exists(kTemplate / name));
  }
  CHECK(files.contains(".vscode/settings.json"));
  CHECK(files.contains(".github/workflows/ci.yml"));
  CHECK(says(read_text(project / "CMakeLists.txt"), "add_executable(my_project "));
  // With the name of the template, the project is the template.
  REQUIRE(make(folder, {"template_project"}).exit_code == 0);
  for (const std::string& name : files) {
    CAPTURE(name);
    CHECK((read_text(folder / "template_project" / name) == read_text(kTemplate / name)));
  }
}

TEST_CASE("new names the LibTorch that the program runs with, in a preset of this machine and on the terminal") {
  const TemporaryFolder folder;
  const Finished made = make(folder, {"my_project"});
  REQUIRE(made.exit_code == 0);
  const auto presets = nlohmann::json::parse(read_text(folder / "my_project/CMakeUserPresets.json"));
  const auto& local = presets["configurePresets"][0];
  CHECK(local["name"] == "local");
  CHECK(local["inherits"] == "default");
  const std::string torch = local["cacheVariables"]["Torch_DIR"];
  CHECK(fs::exists(fs::path(torch) / "../../../lib/libtorch_cpu.so"));
  CHECK(says(made.out, "Torch_DIR   " + torch + "\n"));
  // This program is in a build tree, which is no package.
  CHECK_FALSE(local["cacheVariables"].contains("fulgur_DIR"));
  CHECK(says(made.out, "cmake --preset local -DCMAKE_PREFIX_PATH=PREFIX && cmake --build --preset local\n"));
  for (const char* kind : {"configurePresets", "buildPresets", "testPresets"}) {
    CAPTURE(kind);
    CHECK(presets[kind].size() == 2);
    CHECK(presets[kind][1]["name"] == "local-debug");
  }
  CHECK(says(read_text(folder / "my_project/.gitignore"), "CMakeUserPresets.json"));
}

TEST_CASE("new refuses names and folders, and leaves nothing") {
  const TemporaryFolder folder;
  for (const char* name : {"my-project", "1st", "_x", "a b", "test", ".", "..", "a/"}) {
    CAPTURE(name);
    const bool is_fine = std::string(name) == "a/";
    const Finished made = make(folder, {name});
    CHECK(made.exit_code == (is_fine ? 0 : 2));
    if (!is_fine) CHECK(says(made.err, "[cli.new] the last part of PATH names the project"));
  }
  CHECK(entries_of(folder.path()) == 1);
  fs::create_directory(folder / "empty");
  CHECK(make(folder, {"empty"}).exit_code == 0);
  CHECK(fs::exists(folder / "empty/CMakeLists.txt"));
  const std::string before = read_text(folder / "empty/README.md");
  const Finished again = make(folder, {"empty"});
  CHECK(again.exit_code == 2);
  CHECK(says(again.err, "'empty' is not empty"));
  CHECK(read_text(folder / "empty/README.md") == before);
  write_text(folder / "file", "x");
  CHECK(says(make(folder, {"file"}).err, "'file' is no folder"));
  CHECK(make(folder, {"other", "--trainer.max_epochs", "3"}).exit_code == 2);
  CHECK(make(folder, {}).exit_code == 2);
  CHECK(entries_of(folder.path()) == 3);
}

}  // namespace new_verb_test
