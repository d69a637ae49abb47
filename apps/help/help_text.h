#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fulgur::cli {

/// A screen of the smallest terminals.
constexpr int kHelpLines = 24, kHelpColumns = 80;

/// The options of a verb: its own, and those of the program that apply to it. Positional arguments are left out.
std::vector<const CLI::Option*> options_of_verb(const CLI::App& verb, const CLI::App& app);

/// Whether a verb reads the keys of the config, which are then options. `list`, `describe` and `schema` read only the
/// plug-ins of a config.
bool reads_keys(const CLI::App& verb, const CLI::App& app);

/// The help of the program that fits a screen: verbs by subject, and examples.
std::string program_help(const CLI::App& app);
/// The help of a verb that fits a screen: options in one line each, and examples. It says if `--help-all` shows more.
std::string verb_help(const CLI::App& verb, const CLI::App& app);

/// The whole help of the program, or of a verb, as `--help-all` shows it.
std::string whole_program_help(const CLI::App& app);
std::string whole_verb_help(const CLI::App& verb, const CLI::App& app);

}  // namespace fulgur::cli
