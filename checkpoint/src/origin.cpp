#include "fulgur/checkpoint/origin.h"

#include <torch/headeronly/version.h>

namespace fulgur {

std::string fulgur_version() { return FULGUR_VERSION; }
std::string libtorch_version() { return TORCH_VERSION; }

}  // namespace fulgur
