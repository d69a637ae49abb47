#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/batch.h"
#include "fulgur/core/export.h"

namespace fulgur {

/// Names, shapes and types of a batch that has tensors only; no batch is of the kind of one with lists. Strides and
/// devices do not count.
class FULGUR_API BatchKind {
 public:
  BatchKind() = default;
  explicit BatchKind(const Batch& batch);
  bool fits(const Batch& batch) const;

 private:
  struct Entry {
    std::string name;
    std::vector<int64_t> sizes;
    at::ScalarType type;
  };
  std::vector<Entry> entries_;
};

}  // namespace fulgur
