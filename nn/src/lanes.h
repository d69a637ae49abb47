#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <cstring>
#include <limits>

/// For functions that are compiled for more than one instruction set: they take that of the function that calls them.
#define FULGUR_INLINE inline __attribute__((always_inline))

namespace fulgur::nn {

// By typedef, and outside of Lanes: GCC 12 loses the attribute of an alias, and of a member of the same class.
template <int kLanes>
struct LaneTypes {
  typedef float Floats __attribute__((vector_size(4 * kLanes)));
  typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
};

/// Vectors of GCC and Clang with `kLanes` values. The loops that use them take vectors by reference: how one is passed
/// depends on the instruction set.
template <int kLanes>
struct Lanes {
  using Floats = typename LaneTypes<kLanes>::Floats;
  using Ints = typename LaneTypes<kLanes>::Ints;
  using Words = typename LaneTypes<kLanes>::Words;
  using Halves = typename LaneTypes<kLanes>::Halves;
  using Bytes = typename LaneTypes<kLanes>::Bytes;

  /// The first `count` lanes; the others become 0. A constant count of kLanes is one instruction.
  template <class Vector, class Value>
  static FULGUR_INLINE void copy_in(Vector& lanes, const Value* values, int64_t count) {
    static_assert(sizeof(Vector) == kLanes * sizeof(Value));
    if (count != kLanes) lanes = Vector{};
    std::memcpy(&lanes, values, count == kLanes ? sizeof(Vector) : static_cast<size_t>(count) * sizeof(Value));
  }
  template <class Vector, class Value>
  static FULGUR_INLINE void copy_out(Value* values, const Vector& lanes, int64_t count) {
    static_assert(sizeof(Vector) == kLanes * sizeof(Value));
    std::memcpy(values, &lanes, count == kLanes ? sizeof(Vector) : static_cast<size_t>(count) * sizeof(Value));
  }

  static FULGUR_INLINE void load(Floats& lanes, const float* values, int64_t count) { copy_in(lanes, values, count); }
  static FULGUR_INLINE void load(Floats& lanes, const c10::BFloat16* values, int64_t count) {
    Halves halves;
    copy_in(halves, values, count);
    const Words words = __builtin_convertvector(halves, Words) << 16;
    std::memcpy(&lanes, &words, sizeof lanes);
  }
  static FULGUR_INLINE void load(Ints& lanes, const uint8_t* values, int64_t count) {
    Bytes bytes;
    copy_in(bytes, values, count);
    lanes = __builtin_convertvector(bytes, Ints);
  }

  static FULGUR_INLINE void is_nan(Ints& result, const Floats& lanes) {
    result = lanes != lanes;  // NOLINT(misc-redundant-expression)
  }

  /// Rounds to what a Value can hold: to nearest, ties to even.
  template <class Value>
  static FULGUR_INLINE void round(Floats& lanes) {
    if constexpr (sizeof(Value) == sizeof(c10::BFloat16)) {
      Words words;
      std::memcpy(&words, &lanes, sizeof words);
      words = (words + 0x7fffU + ((words >> 16) & 1U)) & 0xffff0000U;
      Floats rounded;
      std::memcpy(&rounded, &words, sizeof rounded);
      Ints nan;
      is_nan(nan, lanes);
      lanes = nan ? Floats{} + std::numeric_limits<float>::quiet_NaN() : rounded;
    }
  }

  /// Of values that are rounded.
  static FULGUR_INLINE void store(float* values, const Floats& lanes, int64_t count) { copy_out(values, lanes, count); }
  static FULGUR_INLINE void store(c10::BFloat16* values, const Floats& lanes, int64_t count) {
    Words words;
    std::memcpy(&words, &lanes, sizeof words);
    const Halves halves = __builtin_convertvector(words >> 16, Halves);
    copy_out(values, halves, count);
  }
  static FULGUR_INLINE void store(uint8_t* values, const Ints& lanes, int64_t count) {
    const Bytes bytes = __builtin_convertvector(lanes, Bytes);
    copy_out(values, bytes, count);
  }
};

/// Calls `work.run<kLanes>()`, which must be FULGUR_INLINE, compiled for AVX2 with eight lanes if the processor has
/// it; else with four lanes.
template <class Work>
__attribute__((noinline)) void run_with_four_lanes(const Work& work) {
  work.template run<4>();
}
#if defined(__x86_64__)
template <class Work>
__attribute__((noinline, target("avx2,fma"))) void run_on_avx2(const Work& work) {
  work.template run<8>();
}
template <class Work>
void run_on_this_processor(const Work& work) {
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  avx2 ? run_on_avx2(work) : run_with_four_lanes(work);
}
#else
template <class Work>
void run_on_this_processor(const Work& work) {
  run_with_four_lanes(work);
}
#endif

}  // namespace fulgur::nn
