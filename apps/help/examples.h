#pragma once

#include <string>
#include <vector>

namespace fulgur::cli {

/// Examples of a verb, without the name of the program; of the program if the verb is empty. None of them is longer
/// than a line of the help.
std::vector<std::string> examples_of(const std::string& verb);

}  // namespace fulgur::cli
