#include "config/plugins.h"

#include <dlfcn.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <utility>

#include "config/config_tree.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/contracts/verb.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/plugins.h"

namespace fulgur {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPluginKey = "plugin";

// The version of LibTorch in the name of the symbol that a plug-in lacks (registry.h), such as `2.10`; empty if it
// lacks something else.
std::string libtorch_of_plugin(std::string_view message) {
  constexpr std::string_view kSymbol = "built_with_libtorch_";
  const size_t found = message.find(kSymbol);
  if (found == std::string_view::npos) return {};
  const std::string_view rest = message.substr(found + kSymbol.size());
  std::string version(rest.substr(0, rest.find_first_not_of("0123456789_")));
  std::ranges::replace(version, '_', '.');
  return version;
}

size_t registered_components() {
  size_t count = 0;
  for (const std::string& kind : registry_kinds()) count += component_registry(kind).names().size();
  return count;
}

std::atomic<bool (*)(const std::string&)> verb_is_taken = nullptr;

// A registry is created by its first use, and `list` shows each: a program without added verbs has none.
std::vector<std::string> registered_verbs() {
  const std::vector<std::string> kinds = registry_kinds();
  return std::ranges::find(kinds, Verb::kRegistryKind) == kinds.end() ? std::vector<std::string>()
                                                                      : Registry<Verb>::instance().names();
}

// Why a plug-in cannot be used that has added verbs to those `before` it; nullopt if it can.
std::optional<std::string> taken_verb_of_plugin(const std::vector<std::string>& before) {
  const auto is_taken = verb_is_taken.load();
  if (is_taken == nullptr) return std::nullopt;
  for (const std::string& name : registered_verbs()) {
    if (std::ranges::find(before, name) != before.end() || !is_taken(name)) continue;
    const ComponentInfo& verb = Registry<Verb>::instance().get(name);
    return cat("cannot be used: it registers a verb '", name, "' at ", verb.file, ":", verb.line,
               ", and the program has a verb of this name, which would hide it. Register it under another name, and "
               "build the plug-in again.");
  }
  return std::nullopt;
}

// The folder at which a relative path begins that was written at this place.
fs::path folder_of_place(const Location& where, const ConfigSources& sources) {
  std::error_code error;
  for (const fs::path& file : sources.files)
    // A pipe (`-c <(…)`) has no folder.
    if (file.string() == where.source && fs::is_regular_file(file, error)) return file.parent_path();
  return {};
}

std::string absolute_path(const fs::path& folder, const std::string& text) {
  return fs::absolute(folder / text).lexically_normal().string();
}

bool concerns_plugins(const Problem& problem) {
  return problem.path == kPluginKey || problem.path.starts_with("plugin.");
}

}  // namespace

namespace detail {

std::optional<std::string> load_plugin(const std::filesystem::path& path) {
  // A name without a slash would be searched for only in the system's folders.
  const std::string file = path.has_parent_path() ? path.string() : "./" + path.string();
  const bool was_loaded = ::dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr;
  const size_t before = registered_components();
  const std::vector<std::string> verbs_before = registered_verbs();
  if (::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
    if (!was_loaded && registered_components() == before)
      log::warn("config.empty_plugin", cat("the plug-in ", file,
                                           " registers no component. Is FULGUR_REGISTER missing, or is this another "
                                           "library?"));
    return taken_verb_of_plugin(verbs_before);
  }
  const char* why = ::dlerror();
  const std::string reason = why != nullptr ? why : "unknown reason";
  if (const std::string other = libtorch_of_plugin(reason); !other.empty())
    return cat("cannot be loaded: it was built with LibTorch ", other, ", and this program with LibTorch ",
               TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR, ". Build it against the Fulgur of this program.");
  return cat("cannot be loaded: ", reason);
}

void reserve_verbs(bool (*is_taken)(const std::string& name)) { verb_is_taken = is_taken; }

}  // namespace detail

namespace config {

bool chooses_plugins(std::string_view key) {
  return key == kPluginKey || key == "plugin+" || key.starts_with("plugin.");
}

void load_plugins(ConfigNode& root, const ConfigSources& sources, Problems& problems) {
  const ConfigNode* const written = root.find(kPluginKey);
  if (sources.plugins.empty() && (written == nullptr || written->is_null())) return;
  std::vector<ConfigNode> items;
  if (written != nullptr && !written->is_null()) {
    ConfigNode resolved = root;
    Problems references;
    interpolate(resolved, references);
    const ConfigNode& list = *resolved.find(kPluginKey);
    // What is no list of texts, and a reference that leads nowhere, is reported when the options are read.
    if (!list.is_list() || std::ranges::any_of(references.items(), concerns_plugins) ||
        !std::ranges::all_of(list.items(), [](const ConfigNode& item) { return item.is_scalar(); }))
      return;
    items = list.items();
  }
  const auto has = [&](const std::string& file) {
    return std::ranges::any_of(items, [&](const ConfigNode& item) { return item.text() == file; });
  };
  for (size_t i = 0; i < items.size(); ++i) {
    const Location where = items[i].where;
    const std::string path = join_path(kPluginKey, std::to_string(i));
    const std::string file = absolute_path(folder_of_place(where, sources), items[i].text());
    std::error_code error;
    if (!fs::exists(file, error)) {
      problems.add(where, path,
                   cat("there is no file '", escape_controls(file),
                       "'. A relative path begins at the folder of the config file in which it is written, and at the "
                       "current folder if it is written elsewhere; build the plug-in, or correct the path"));
    } else if (const auto why = detail::load_plugin(file)) {
      problems.add(where, path, cat("the plug-in '", escape_controls(file), "' ", escape_controls(*why)));
    }
    items[i] = ConfigNode::string(file);
    items[i].where = items[i].key_where = where;
  }
  for (const fs::path& plugin : sources.plugins) {
    const std::string file = absolute_path({}, plugin.string());
    if (has(file)) continue;
    if (const auto why = detail::load_plugin(file)) {
      problems.add({.source = "--plugin"}, "",
                   cat("the plug-in '", escape_controls(file), "' ", escape_controls(*why)));
      continue;
    }
    items.push_back(ConfigNode::string(file));
  }
  ConfigNode& list = root.get_or_add(kPluginKey);
  const Location where = list.where, key_where = list.key_where;
  list = ConfigNode::list(std::move(items));
  list.where = where;
  list.key_where = key_where;
  escape_references(list);
  throw_if_registration_failed();
}

void check_plugins(const ConfigNode& root, Problems& problems) {
  ConfigNode resolved = root;
  Problems references;
  interpolate(resolved, references);
  bool has_reference = false;
  for (const Problem& problem : references.items()) {
    if (!concerns_plugins(problem)) continue;
    problems.add(problem.where, problem.path, problem.message);
    has_reference = true;
  }
  const ConfigNode* const written = resolved.find(kPluginKey);
  std::vector<std::string> files;
  if (!has_reference && written != nullptr && !written->is_null())
    FieldTraits<std::vector<std::string>>::read(*written, files, problems, std::string(kPluginKey));
}

}  // namespace config
}  // namespace fulgur
