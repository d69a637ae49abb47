#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace fulgur::simulated_nccl {

/// Size of an element in bytes; 0 for a type that NCCL does not have.
size_t size_of(ncclDataType_t type);
const char* name_of(ncclDataType_t type);

/// How elements are combined: one of NCCL's five operations, or a sum of products with a factor per rank.
struct Reduction {
  ncclRedOp_t op = ncclSum;
  bool premultiplied = false;
  /// This rank's factor, in the data's type. If `on_device` is set, the factor is in device memory and is read when the
  /// work runs.
  alignas(8) unsigned char factor[8] = {};
  const void* on_device = nullptr;
};
const char* name_of(const Reduction& reduction);

/// Multiplies `count` elements by this rank's factor. `from` and `to` may be the same.
void premultiply(void* to, const void* from, size_t count, ncclDataType_t type, const Reduction& reduction);
/// Combines the ranks' elements in rank order. Integers are computed in their own type, narrow floats in float.
void reduce(void* to, const std::vector<const void*>& from, size_t count, ncclDataType_t type, ncclRedOp_t op);

}  // namespace fulgur::simulated_nccl
