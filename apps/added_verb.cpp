#include "added_verb.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "fulgur/core/contracts/verb.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/yaml.h"
#include "plugin.h"
#include "print.h"

namespace fulgur::cli {

namespace {

// A registry is created by its first use, and `list` shows each: a program that adds no verb has none.
const ComponentRegistry* added_verbs() {
  const std::vector<std::string> kinds = registry_kinds();
  return std::ranges::find(kinds, Verb::kRegistryKind) == kinds.end() ? nullptr : &Registry<Verb>::instance();
}

// The verbs that this program contains; `load_plugin` checks those of plug-ins.
void check_names(bool (*is_built_in_verb)(const std::string&)) {
  const ComponentRegistry* const verbs = added_verbs();
  if (verbs == nullptr) return;
  for (const std::string& name : verbs->names()) {
    if (!is_built_in_verb(name)) continue;
    const ComponentInfo& verb = verbs->get(name);
    throw ConfigError(cat("[cli] an added verb must not have the name of a built-in one; '", name,
                          "' is registered at ", verb.file, ":", verb.line, ". Register it under another name."));
  }
}

// Removes `--plugin FILE` from the arguments.
std::vector<std::filesystem::path> take_plugins(std::vector<std::string>& arguments) {
  constexpr std::string_view kOption = "--plugin", kOptionEquals = "--plugin=";
  std::vector<std::filesystem::path> plugins;
  std::vector<std::string> rest;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == kOption && i + 1 < arguments.size())
      plugins.emplace_back(arguments[++i]);
    else if (arguments[i].starts_with(kOptionEquals))
      plugins.emplace_back(arguments[i].substr(kOptionEquals.size()));
    else
      rest.push_back(arguments[i]);
  }
  arguments = std::move(rest);
  return plugins;
}

// `--name value` and `--name=value` as the options of a component.
ConfigNode init_args_of_verb(const std::string& verb, const std::vector<std::string>& arguments) {
  ConfigNode options = ConfigNode::map();
  Problems problems;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const size_t equals = argument.find('=');
    if (!argument.starts_with("--") || argument.size() == 2)
      throw ConfigError(cat("[cli.", verb, "] ", verb, " takes options, --NAME VALUE; got '",
                            escape_controls(argument.substr(0, 200)), "'. `", verb, " --help` shows them."));
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    if (equals == std::string::npos && i + 1 == arguments.size())
      throw ConfigError(
          cat("[cli.", verb, "] --", escape_controls(name), " needs a value: --", escape_controls(name), " VALUE."));
    const std::string value = equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    ConfigNode node = value.empty() ? ConfigNode::string("") : parse_yaml(value, cat("--", name), problems);
    options.set(name, std::move(node));
  }
  problems.throw_if_any();
  return options;
}

// Throws the mistakes as those of a command line: with `--name` instead of a place in a config.
void throw_if_wrong(const std::string& verb, const Problems& problems) {
  const std::string prefix = cat(verb, ".init_args.");
  Problems shown;
  for (const Problem& problem : problems.items()) {
    const bool is_option = problem.path.starts_with(prefix);
    shown.add({}, is_option ? cat("--", problem.path.substr(prefix.size())) : problem.path,
              problem.message.substr(0, problem.message.find(" `describe ")));
  }
  shown.throw_if_any(cat("\n`", verb, " --help` shows the options."));
}

}  // namespace

std::optional<ExitCode> run_added_verb(const std::vector<std::string>& arguments,
                                       bool (*is_built_in_verb)(const std::string&)) {
  detail::reserve_verbs(is_built_in_verb);
  check_names(is_built_in_verb);
  std::vector<std::string> rest = arguments;
  const std::vector<std::filesystem::path> plugins = take_plugins(rest);
  const bool names_verb = !rest.empty() && !rest.front().starts_with('-');
  if (!plugins.empty() && !names_verb && std::ranges::none_of(rest, is_built_in_verb)) {
    for (const std::filesystem::path& plugin : plugins) load_plugin(plugin);
    throw_if_registration_failed();
  }
  if (!names_verb) return std::nullopt;
  if (plugins.empty() && added_verbs() == nullptr) return std::nullopt;
  const std::string& name = rest.front();
  // A plug-in is code: that of a built-in verb is loaded where that verb is carried out.
  if (is_built_in_verb(name)) return std::nullopt;
  for (const std::filesystem::path& plugin : plugins) load_plugin(plugin);
  if (find_added_verb(name) == nullptr) return std::nullopt;
  throw_if_registration_failed();
  if (std::ranges::any_of(rest, [](const std::string& argument) { return argument == "--help" || argument == "-h"; }))
    return print(cat("Usage: ", program_name(), " ", name, " [--OPTION VALUE]... [--plugin FILE.so]\n\n",
                     describe_component(name))),
           ExitCode::ok;
  Spec<Verb> spec;
  Problems problems;
  spec.read(ConfigNode::map({{"class_path", ConfigNode::string(name)}, {"init_args", init_args_of_verb(name, rest)}}),
            problems, name);
  throw_if_wrong(name, problems);
  return spec.create()->run();
}

const ComponentInfo* find_added_verb(const std::string& name) {
  const ComponentRegistry* const verbs = added_verbs();
  return verbs == nullptr ? nullptr : verbs->find(name);
}

std::vector<std::pair<std::string, std::string>> added_verb_list() {
  std::vector<std::pair<std::string, std::string>> list;
  if (const ComponentRegistry* const verbs = added_verbs(); verbs != nullptr)
    for (const std::string& name : verbs->names()) list.emplace_back(name, first_line(verbs->get(name).doc));
  return list;
}

std::string help_of_added_verbs() {
  const auto verbs = added_verb_list();
  if (verbs.empty()) return {};
  std::string out = "\nVerbs that this program and its plug-ins add (NAME --help shows the options):\n";
  for (const auto& [name, doc] : verbs) out += cat("  ", name, "  ", doc, "\n");
  return out;
}

}  // namespace fulgur::cli
