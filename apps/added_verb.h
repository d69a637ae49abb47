#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// Runs the verb that the first argument names, if this program or one of the plug-ins of the command line has added it
/// (`Verb`); nullopt for any other command line. Throws a ConfigError for wrong options, and if the program has added a
/// verb with the name of a built-in one. From then on, plug-ins with such a verb are refused, whichever verb loads
/// them.
std::optional<ExitCode> run_added_verb(const std::vector<std::string>& arguments,
                                       bool (*is_built_in_verb)(const std::string&));

/// The verbs that this program has added, for --help; empty if there are none.
std::string help_of_added_verbs();

}  // namespace fulgur::cli
