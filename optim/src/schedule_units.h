#pragma once

#include <string>
#include <vector>

namespace fulgur {

/// Units allowed for a length in a schedule, which is a function of steps.
inline const std::vector<std::string> kScheduleUnits{"ep", "st", "sa", "dur"};

}  // namespace fulgur
