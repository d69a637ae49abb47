#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur::history {

/// A line of a chart: its points (x, y) by x. Points that are not finite are left out.
struct FULGUR_API PlottedCurve {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool dashed = false;
};

/// A page with one chart of these curves, and `notes` below it, one paragraph each. It is one HTML document without
/// references to other files, and needs no script. `x_name` is the name of the x axis.
FULGUR_API std::string curve_page(const std::string& title, const std::string& x_name,
                                  const std::vector<PlottedCurve>& curves, const std::vector<std::string>& notes);

}  // namespace fulgur::history
