#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "fulgur/core/options/config_node.h"
#include "fulgur/core/options/type_info.h"

namespace fulgur::detail {

enum class Parsed { ok, no_number, too_large };

Parsed parse_integer(std::string_view text, int64_t& value);
Parsed parse_number(std::string_view text, double& value);
std::optional<bool> parse_bool(std::string_view text);

/// `1.5`, `.5`, `1.`, `1e-3`; integers too.
bool looks_number(std::string_view text);
/// YAML readers disagree on `010`: eight or ten.
bool has_leading_zero(std::string_view unsigned_text);
std::string_view without_sign(std::string_view text);

inline bool is_plain_scalar(const ConfigNode& node) { return node.is_scalar() && !node.quoted(); }
inline bool is_number_kind(TypeInfo::Kind kind) {
  return kind == TypeInfo::Kind::integer || kind == TypeInfo::Kind::number;
}

}  // namespace fulgur::detail
