#include "fulgur/checkpoint/origin.h"

#include <torch/headeronly/version.h>

#include "io/hash.h"

namespace fulgur {

std::string fulgur_version() { return FULGUR_VERSION; }
std::string libtorch_version() { return TORCH_VERSION; }
std::string content_hash(std::string_view bytes) { return detail::hash_text(detail::hash_of(bytes)); }

}  // namespace fulgur
