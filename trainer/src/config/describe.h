#pragma once

#include <optional>
#include <string>

#include "fulgur/core/options/options.h"

namespace fulgur::config {

/// Name, type, default and doc of each option, one per line.
std::string table_of(const Fields& fields);
/// Doc and options of the components of that name, of every kind.
std::string describe(const std::string& name);
/// All components, or those of one kind, with the first line of their docs.
std::string list(const std::optional<std::string>& kind);

}  // namespace fulgur::config
