#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fulgur::cli {

/// The JSON as indented text, with a newline at the end. Paths and metric names may come from outside: bytes that are
/// not UTF-8 are replaced rather than refused.
inline std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace fulgur::cli
