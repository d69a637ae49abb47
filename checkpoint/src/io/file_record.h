#pragma once

// Independent of LibTorch.
#include <cstdint>
#include <string>
#include <vector>

namespace fulgur::detail {

/// A piece of a file with its own hash: a tensor, a header, a field of the state.
struct FilePart {
  std::string name;
  uint64_t bytes = 0, hash = 0;
};

/// What a file must contain; the parts are consecutive and cover it completely.
struct FileRecord {
  uint64_t bytes = 0, hash = 0;
  std::vector<FilePart> parts;
};

}  // namespace fulgur::detail
