#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// Warns (`data.missing_classes`) if numbers in [0, num_classes) are no label of a sample. Labels are in this range.
/// `source` names them: a file, or an array. More than a million classes are not looked at.
FULGUR_API void warn_missing_classes(std::string_view source, const std::vector<int64_t>& labels, int64_t num_classes);

}  // namespace fulgur::detail
