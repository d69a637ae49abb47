#include "creating/new_verb.h"

#include <ATen/Version.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "creating/project_template.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/text.h"
#include "json_text.h"
#include "print.h"

namespace fulgur::cli {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kNameInTemplate = "template_project";
// Targets of CMake or of the project, and files beside the program.
constexpr std::string_view kTakenNames[] = {"all",     "clean",   "config_schema", "edit_cache",    "fulgur",
                                            "help",    "install", "debug",         "rebuild_cache", "package",
                                            "Testing", "test",    "trainer"};

[[noreturn]] void refuse_name(const std::string& name, const std::string& why) {
  throw ConfigError(cat("[cli.new] the last part of PATH names the project: ", why, "; got '",
                        escape_controls(name.substr(0, 200)), "'. Choose another name, such as my_project."));
}

void check_name(const std::string& name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto may_follow = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; };
  if (name.empty() || !is_letter(name.front()) || !std::ranges::all_of(name, may_follow))
    refuse_name(name, "a letter, then letters, digits and _");
  if (std::ranges::find(kTakenNames, name) != std::end(kTakenNames))
    refuse_name(name, "it must not be a name that CMake or Fulgur uses");
}

[[noreturn]] void cannot_do(const char* what, const fs::path& path, const std::string& why) {
  throw Error(cat("[cli.new] ", what, " failed; ", escape_controls(path.string()), ": ", why, "."));
}

void check_is_free(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(folder, error);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status) && fs::is_empty(folder, error) && !error) return;
  throw ConfigError(cat("[cli.new] the folder must be new or empty; '", escape_controls(folder.string()), "' is ",
                        fs::is_directory(status) ? "not empty" : "no folder", ". Choose another name, or remove it."));
}

std::string with_name(std::string_view text, const std::string& name) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t found = text.find(kNameInTemplate, at);
    out += text.substr(at, found == std::string_view::npos ? found : found - at);
    if (found == std::string_view::npos) break;
    out += name;
    at = found + kNameInTemplate.size();
  }
  return out;
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) cannot_do("writing a file", path, std::strerror(errno));
}

// A hidden folder beside the final one, which is removed unless it was renamed.
class HiddenFolder {
 public:
  explicit HiddenFolder(const fs::path& beside)
      : path_((beside.has_parent_path() ? beside.parent_path() : fs::path(".")) /
              cat(".", beside.filename().string(), ".XXXXXX")) {
    std::string name = path_.string();
    if (::mkdtemp(name.data()) == nullptr) cannot_do("creating a folder", path_, std::strerror(errno));
    path_ = name;
  }
  ~HiddenFolder() {
    std::error_code none;
    if (!renamed_) fs::remove_all(path_, none);
  }
  HiddenFolder(const HiddenFolder&) = delete;
  HiddenFolder& operator=(const HiddenFolder&) = delete;
  const fs::path& path() const { return path_; }
  void rename(const fs::path& folder) {
    std::error_code error;
    // mkdtemp makes folders that other users cannot read.
    const mode_t mask = ::umask(0);
    ::umask(mask);
    if (::chmod(path_.c_str(), 0777 & ~mask) != 0)
      cannot_do("setting the mode of a folder", path_, std::strerror(errno));
    fs::rename(path_, folder, error);
    if (error) check_is_free(folder);
    if (error) cannot_do("renaming the folder", folder, error.message());
    renamed_ = true;
  }

 private:
  fs::path path_;
  bool renamed_ = false;
};

// The library of this process in which a function is; empty if that cannot be known.
fs::path library_of(const void* function) {
  Dl_info library{};
  if (::dladdr(function, &library) == 0 || library.dli_fname == nullptr) return {};
  std::error_code error;
  fs::path file = fs::canonical(library.dli_fname, error);
  return error ? fs::path() : file;
}

// Where CMake finds what this program runs with; empty if that cannot be known.
struct CMakeFolders {
  std::string fulgur;  // with fulgurConfig.cmake; empty for a build tree
  std::string torch;   // with TorchConfig.cmake
};

CMakeFolders cmake_folders() {
  std::error_code error;
  CMakeFolders folders;
  const fs::path own = library_of(reinterpret_cast<const void*>(&set_program_name));
  const fs::path package = own.parent_path() / "cmake" / "fulgur";
  if (!own.empty() && fs::exists(package / "fulgurConfig.cmake", error)) folders.fulgur = package.string();
  // A LibTorch that only runs programs has no headers.
  const fs::path libtorch = library_of(reinterpret_cast<const void*>(&at::show_config)).parent_path().parent_path();
  const fs::path torch = libtorch / "share" / "cmake" / "Torch";
  if (fs::exists(libtorch / "include" / "ATen" / "core" / "Tensor.h", error) && fs::exists(torch, error))
    folders.torch = torch.string();
  return folders;
}

// In a preset, `$env{X}` and the like would be replaced.
std::string preset_text(const std::string& path) {
  std::string out;
  for (const char c : path) out += c == '$' ? "${dollar}" : std::string(1, c);
  return out;
}

// Presets for this machine, which are not committed: those of CMakePresets.json with its folders.
std::string user_presets(const CMakeFolders& folders) {
  using nlohmann::ordered_json;
  ordered_json variables = ordered_json::object();
  if (!folders.fulgur.empty()) variables["fulgur_DIR"] = preset_text(folders.fulgur);
  if (!folders.torch.empty()) variables["Torch_DIR"] = preset_text(folders.torch);
  const auto others = [](std::string_view key) {
    ordered_json presets = ordered_json::array();
    for (const char* name : {"local", "local-debug"}) {
      ordered_json preset = {{"name", name}, {"configurePreset", name}};
      if (key == "testPresets") preset["output"] = {{"outputOnFailure", true}};
      presets.push_back(std::move(preset));
    }
    return presets;
  };
  return json_text({{"version", 6},
                    {"configurePresets",
                     {{{"name", "local"},
                       {"displayName", "Release, with this machine's Fulgur and LibTorch"},
                       {"inherits", "default"},
                       {"cacheVariables", variables}},
                      {{"name", "local-debug"},
                       {"displayName", "Debug, with this machine's Fulgur and LibTorch"},
                       {"inherits", {"debug", "local"}}}}},
                    {"buildPresets", others("buildPresets")},
                    {"testPresets", others("testPresets")}});
}

constexpr std::string_view kUserPresets = "CMakeUserPresets.json";

// How to build and train, with the commands as they are.
std::string next_steps(const fs::path& folder, const std::string& name, const CMakeFolders& folders) {
  std::string out = cat(escape_controls(folder.string()),
                        ": a module, a data module, a callback, a config and tests. Build and train:\n", "  cd ",
                        shell_word(folder.string()), "\n  cmake --preset local",
                        folders.fulgur.empty() ? " -DCMAKE_PREFIX_PATH=PREFIX" : "",
                        " && cmake --build --preset local\n  build/", name, " fit --config configs/train.yaml\n");
  if (folders.fulgur.empty())
    out += "PREFIX is the folder in which Fulgur is installed (cmake --install BUILD --prefix PREFIX).\n";
  if (folders.fulgur.empty() && folders.torch.empty()) return out;
  out += cat("The preset local (", kUserPresets, ") names the folders of this machine:\n");
  if (!folders.fulgur.empty()) out += cat("  fulgur_DIR  ", escape_controls(folders.fulgur), "\n");
  if (!folders.torch.empty()) out += cat("  Torch_DIR   ", escape_controls(folders.torch), "\n");
  return out;
}

}  // namespace

ExitCode create_project(const CommandLine& command) {
  if (!command.sources.overrides.empty() || !command.sources.files.empty())
    throw ConfigError("[cli.new] new reads no config; leave out --config and keys of the config.");
  fs::path folder = command.argument.value_or("");
  if (!folder.has_filename()) folder = folder.parent_path();  // a slash at the end
  const std::string name = folder.filename().string();
  check_name(name);
  check_is_free(folder);
  std::error_code error;
  if (folder.has_parent_path() && (fs::create_directories(folder.parent_path(), error), error))
    cannot_do("creating a folder", folder.parent_path(), error.message());
  HiddenFolder hidden(folder);
  for (const TemplateFile& file : project_template()) {
    const fs::path path = hidden.path() / file.path;
    if (fs::create_directories(path.parent_path(), error); error)
      cannot_do("creating a folder", path.parent_path(), error.message());
    write_file(path, with_name(file.text, name));
  }
  const CMakeFolders folders = cmake_folders();
  write_file(hidden.path() / kUserPresets, user_presets(folders));
  hidden.rename(folder);
  print(next_steps(folder, name, folders));
  return ExitCode::ok;
}

}  // namespace fulgur::cli
