#include "formats/shard_index.h"

#include "fulgur/core/text/errors.h"
#include "targets.h"

namespace fulgur::fuzz {

void shard_index(std::string_view input) {
  try {
    for (const auto& [name, file] : detail::parse_shard_index(std::string(input), "index"))
      expect(!file.empty() && file.find('/') == std::string::npos && file != ".." && file != ".",
             "a shard lies beside its index");
  } catch (const CheckpointError&) {
  }
}

}  // namespace fulgur::fuzz
