#include "ranks/data_types.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fulgur::simulated_nccl {
namespace {

/// The type of an element in memory, and the type in which reductions compute.
template <class StoredType, class ComputedType = StoredType>
struct Element {
  using Stored = StoredType;
  using Computed = ComputedType;
};

/// Calls `function` with the Element of a type.
template <class Function>
void with_element(ncclDataType_t type, Function function) {
  switch (type) {
    case ncclInt8:
      return function(Element<int8_t>());
    case ncclUint8:
      return function(Element<uint8_t>());
    case ncclInt32:
      return function(Element<int32_t>());
    case ncclUint32:
      return function(Element<uint32_t>());
    case ncclInt64:
      return function(Element<int64_t>());
    case ncclUint64:
      return function(Element<uint64_t>());
    case ncclFloat16:
      return function(Element<__half, float>());
    case ncclFloat32:
      return function(Element<float>());
    case ncclFloat64:
      return function(Element<double>());
    case ncclBfloat16:
      return function(Element<__nv_bfloat16, float>());
    case ncclFloat8e4m3:
      return function(Element<__nv_fp8_e4m3, float>());
    case ncclFloat8e5m2:
      return function(Element<__nv_fp8_e5m2, float>());
    default:
      return;
  }
}

// Integers wrap around, as on a GPU.
template <class T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return a + b;
}

template <class T>
T multiply(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return a * b;
}

template <class T>
T combine(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return multiply(a, b);
    case ncclMax:
      return b > a ? b : a;
    case ncclMin:
      return b < a ? b : a;
    default:
      return add(a, b);
  }
}

}  // namespace

size_t size_of(ncclDataType_t type) {
  size_t size = 0;
  with_element(type, [&](auto element) { size = sizeof(typename decltype(element)::Stored); });
  return size;
}

const char* name_of(ncclDataType_t type) {
  static const char* const names[] = {"int8",    "uint8",   "int32",   "uint32",   "int64",      "uint64",
                                      "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
  return type >= 0 && type < ncclNumTypes ? names[type] : "an unknown type";
}

const char* name_of(const Reduction& reduction) {
  static const char* const names[] = {"sum", "prod", "max", "min", "avg"};
  return reduction.premultiplied ? "premul-sum" : names[reduction.op];
}

void premultiply(void* to, const void* from, size_t count, ncclDataType_t type, const Reduction& reduction) {
  with_element(type, [&](auto element) {
    using Stored = typename decltype(element)::Stored;
    using Computed = typename decltype(element)::Computed;
    Stored factor;
    std::memcpy(static_cast<void*>(&factor), reduction.on_device ? reduction.on_device : reduction.factor,
                sizeof factor);
    for (size_t i = 0; i < count; ++i)
      static_cast<Stored*>(to)[i] = static_cast<Stored>(
          multiply(static_cast<Computed>(static_cast<const Stored*>(from)[i]), static_cast<Computed>(factor)));
  });
}

void reduce(void* to, const std::vector<const void*>& from, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  with_element(type, [&](auto element) {
    using Stored = typename decltype(element)::Stored;
    using Computed = typename decltype(element)::Computed;
    for (size_t i = 0; i < count; ++i) {
      auto value = static_cast<Computed>(static_cast<const Stored*>(from[0])[i]);
      for (size_t rank = 1; rank < from.size(); ++rank)
        value = combine(value, static_cast<Computed>(static_cast<const Stored*>(from[rank])[i]), op);
      if (op == ncclAvg) value = static_cast<Computed>(value / static_cast<Computed>(from.size()));
      static_cast<Stored*>(to)[i] = static_cast<Stored>(value);
    }
  });
}

}  // namespace fulgur::simulated_nccl
