#pragma once

#include <string>
#include <string_view>

namespace fulgur {

/// `name`, where it is a plain folder name; else a ConfigError that names `component`: a run's folder never lies
/// outside of its root.
std::string checked_run_name(std::string_view component, const std::string& name);

/// `sub_dir`, where it is one plain folder name or several with `/` between them; else a ConfigError that names
/// `component`.
std::string checked_sub_dir(std::string_view component, const std::string& sub_dir);

}  // namespace fulgur
