#pragma once

#include <string>
#include <vector>

#include "reading/run_curves.h"

namespace fulgur::history {

/// The sections with charts. Metrics with the same name after `train_`, `val_` or `test_` share a chart.
std::string chart_sections(const std::vector<RunCurves>& runs);

/// Texts from outside on the page, shortened.
std::string shown_name(const std::string& text);

}  // namespace fulgur::history
