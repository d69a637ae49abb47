#pragma once

#include <string>
#include <vector>

namespace fulgur {

/// Units that a length in a schedule may have: a schedule is a function of steps.
inline const std::vector<std::string> kScheduleUnits{"ep", "st", "sa", "dur"};

}  // namespace fulgur
