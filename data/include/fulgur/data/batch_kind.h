#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/batch.h"

namespace fulgur {

/// Names, shapes and dtypes of a batch that contains only tensors; a batch with lists matches no kind. Strides and
/// devices are ignored.
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
