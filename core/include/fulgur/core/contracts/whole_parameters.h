#pragma once

#include "fulgur/core/export.h"

namespace fulgur {

/// Parameters that a strategy divides among the ranks are whole while this exists (`RunWeights::whole_parameters`).
class FULGUR_API WholeParameters {
 public:
  virtual ~WholeParameters();
};

}  // namespace fulgur
