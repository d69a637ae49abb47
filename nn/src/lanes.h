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
  // As long as Words, with smaller or larger values.
  typedef uint8_t WordBytes __attribute__((vector_size(4 * kLanes)));
  typedef uint16_t WordHalves __attribute__((vector_size(4 * kLanes)));
  typedef uint64_t WordPairs __attribute__((vector_size(4 * kLanes)));
};

/// Vectors of GCC and Clang with `kLanes` values. GCC 12 converts bytes one by one, and halves in five steps, so eight
/// lanes are converted by shuffles: inside of each half of the vector, and then of whole words or pairs. The loops that
/// use them take vectors by reference: how one is passed depends on the instruction set.
template <int kLanes>
struct Lanes {
  using Floats = typename LaneTypes<kLanes>::Floats;
  using Ints = typename LaneTypes<kLanes>::Ints;
  using Words = typename LaneTypes<kLanes>::Words;
  using Halves = typename LaneTypes<kLanes>::Halves;
  using Bytes = typename LaneTypes<kLanes>::Bytes;
  using WordBytes = typename LaneTypes<kLanes>::WordBytes;
  using WordHalves = typename LaneTypes<kLanes>::WordHalves;
  using WordPairs = typename LaneTypes<kLanes>::WordPairs;

  /// The same bits as another type.
  template <class To, class From>
  static FULGUR_INLINE void reinterpret(To& to, const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    std::memcpy(&to, &from, sizeof to);
  }

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
    if constexpr (kLanes == 8) {
      const WordHalves upper =
          __builtin_shufflevector(halves, Halves{}, 8, 0, 8, 1, 8, 2, 8, 3, 8, 4, 8, 5, 8, 6, 8, 7);
      reinterpret(lanes, upper);
    } else {
      const Words words = __builtin_convertvector(halves, Words) << 16;
      reinterpret(lanes, words);
    }
  }
  static FULGUR_INLINE void load(Ints& lanes, const uint8_t* values, int64_t count) {
    if constexpr (kLanes == 8) {
      uint64_t bytes = 0;
      std::memcpy(&bytes, values, static_cast<size_t>(count));
      const WordPairs copies = WordPairs{} + bytes;
      Words words;
      reinterpret(words, copies);
      words = __builtin_shufflevector(words, words, 0, 0, 0, 0, 1, 1, 1, 1);
      words = (words >> Words{0, 8, 16, 24, 0, 8, 16, 24}) & 0xffU;
      reinterpret(lanes, words);
    } else {
      Bytes bytes;
      copy_in(bytes, values, count);
      lanes = __builtin_convertvector(bytes, Ints);
    }
  }
  /// With NaN as `round` needs it.
  static FULGUR_INLINE void load_parameter(Floats& lanes, const float* values, int64_t count) {
    load(lanes, values, count);
    Ints nan;
    is_nan(nan, lanes);
    lanes = nan ? Floats{} + std::numeric_limits<float>::quiet_NaN() : lanes;
  }

  static FULGUR_INLINE void is_nan(Ints& result, const Floats& lanes) {
    result = lanes != lanes;  // NOLINT(misc-redundant-expression)
  }

  /// Rounds to what a Value can hold: to nearest, ties to even. The lower half of a NaN must be 0, as in one that was
  /// computed from values of load_parameter and of BFloat16: no other one is sure to stay a NaN.
  template <class Value>
  static FULGUR_INLINE void round(Floats& lanes) {
    if constexpr (sizeof(Value) == sizeof(c10::BFloat16)) {
      Words words;
      reinterpret(words, lanes);
      words = (words + 0x7fffU + ((words >> 16) & 1U)) & 0xffff0000U;
      reinterpret(lanes, words);
    }
  }

  /// Of values that are rounded.
  static FULGUR_INLINE void store(float* values, const Floats& lanes, int64_t count) { copy_out(values, lanes, count); }
  static FULGUR_INLINE void store(c10::BFloat16* values, const Floats& lanes, int64_t count) {
    if constexpr (kLanes == 8) {
      WordHalves halves;
      reinterpret(halves, lanes);
      halves = __builtin_shufflevector(halves, halves, 1, 3, 5, 7, 1, 3, 5, 7, 9, 11, 13, 15, 9, 11, 13, 15);
      WordPairs pairs;
      reinterpret(pairs, halves);
      pairs = __builtin_shufflevector(pairs, pairs, 0, 2, 0, 2);
      std::memcpy(values, &pairs, sizeof(*values) * static_cast<size_t>(count));
    } else {
      Words words;
      reinterpret(words, lanes);
      const Halves halves = __builtin_convertvector(words >> 16, Halves);
      copy_out(values, halves, count);
    }
  }
  static FULGUR_INLINE void store(uint8_t* values, const Ints& lanes, int64_t count) {
    if constexpr (kLanes == 8) {
      WordBytes bytes;
      reinterpret(bytes, lanes);
      bytes = __builtin_shufflevector(bytes, bytes, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 16, 20, 24, 28,
                                      16, 20, 24, 28, 16, 20, 24, 28, 16, 20, 24, 28);
      Words words;
      reinterpret(words, bytes);
      words = __builtin_shufflevector(words, words, 0, 4, 0, 4, 0, 4, 0, 4);
      std::memcpy(values, &words, static_cast<size_t>(count));
    } else {
      const Bytes bytes = __builtin_convertvector(lanes, Bytes);
      copy_out(values, bytes, count);
    }
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
