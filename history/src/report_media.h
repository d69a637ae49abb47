#pragma once

#include <string>
#include <vector>

#include "reading/run_curves.h"

namespace fulgur::history {

/// The newest picture, text or small table of each name in the `media` folders of the runs. The number that comes last
/// in a path is its step; paths that differ only in it have the same name. Empty if there are none.
std::string media_section(const std::vector<RunCurves>& runs);

}  // namespace fulgur::history
