#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/batch.h"

namespace fulgur {

/// Names, shapes and dtypes of a batch that contains only tensors without gaps in memory, and strides of tensors of the
/// CPU (a batch on a GPU may get another memory format there); a batch with lists,
/// or with views that have gaps or repeat elements, matches no kind, not even its own: a copy would have other strides.
/// Devices are ignored.
class FULGUR_API BatchKind {
 public:
  BatchKind() = default;
  explicit BatchKind(const Batch& batch);
  bool fits(const Batch& batch) const;

 private:
  struct Entry {
    std::string name;
    std::vector<int64_t> sizes, strides;
    at::ScalarType type;
    bool on_cpu;
  };
  std::vector<Entry> entries_;
};

}  // namespace fulgur
