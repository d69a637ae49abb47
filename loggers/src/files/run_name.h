#pragma once

#include <string>
#include <string_view>

namespace fulgur {

/// Returns `name` if it is a plain folder name; else throws a ConfigError that names `component`: a run's folder is
/// never outside its root.
std::string checked_run_name(std::string_view component, const std::string& name);

/// Returns `sub_dir` if it is one plain folder name or several separated by `/`; else throws a ConfigError that names
/// `component`.
std::string checked_sub_dir(std::string_view component, const std::string& sub_dir);

}  // namespace fulgur
