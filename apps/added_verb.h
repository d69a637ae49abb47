#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// Runs the verb that the first argument names, if this program or one of the plug-ins of the command line has added it
/// (`Verb`); nullopt for any other command line. If no verb is named, the plug-ins of the command line are loaded for
/// the help, which shows their verbs. Throws a ConfigError for wrong options, and if the program has added a
/// verb with the name of a built-in one. From then on, plug-ins with such a verb are refused, whichever verb loads
/// them.
std::optional<ExitCode> run_added_verb(const std::vector<std::string>& arguments,
                                       bool (*is_built_in_verb)(const std::string&));

/// The verbs that this program and its plug-ins have added, for --help; empty if there are none.
std::string help_of_added_verbs();
/// The same verbs with what they do.
std::vector<std::pair<std::string, std::string>> added_verb_list();
/// The added verb of that name; nullptr if no added verb has it.
const ComponentInfo* find_added_verb(const std::string& name);

}  // namespace fulgur::cli
