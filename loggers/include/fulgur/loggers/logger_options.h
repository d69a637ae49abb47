#pragma once

#include <string>

#include "fulgur/core/options/options.h"

namespace fulgur {

/// Options of every logger that writes into the run folder: its name and version.
struct FULGUR_API LoggerOptions {
  std::string name = "fulgur_logs";
  Auto<int64_t> version;
  void fields(Fields& f);
};

}  // namespace fulgur
