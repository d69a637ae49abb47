#pragma once

#include <c10/util/BFloat16.h>

#include <algorithm>
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

/// Vectors of GCC and Clang with `kLanes` values. The loops that use them take vectors by reference: how one is passed
/// depends on the instruction set. GCC 12 converts bytes one by one, and halves in five steps, so eight lanes are
/// converted by shuffles: inside of each half of the vector, and then of whole words or pairs.
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

  /// The first `count` values that fit into the vector; the rest becomes 0. A constant count of all is one instruction.
  template <class Vector, class Value>
  static FULGUR_INLINE void copy_in(Vector& vector, const Value* values, int64_t count) {
    constexpr int64_t kAll = sizeof(Vector) / sizeof(Value);
    if (count != kAll) vector = Vector{};
    std::memcpy(&vector, values, count == kAll ? sizeof(Vector) : static_cast<size_t>(count) * sizeof(Value));
  }
  template <class Vector, class Value>
  static FULGUR_INLINE void copy_out(Value* values, const Vector& vector, int64_t count) {
    constexpr int64_t kAll = sizeof(Vector) / sizeof(Value);
    std::memcpy(values, &vector, count == kAll ? sizeof(Vector) : static_cast<size_t>(count) * sizeof(Value));
  }

  static FULGUR_INLINE void widen(Ints& lanes, const uint8_t* bytes, int64_t count) {
    if constexpr (kLanes == 8) {
      uint64_t all = 0;
      std::memcpy(&all, bytes, static_cast<size_t>(count));
      const WordPairs copies = WordPairs{} + all;
      Words words;
      reinterpret(words, copies);
      words = __builtin_shufflevector(words, words, 0, 0, 0, 0, 1, 1, 1, 1);
      words = (words >> Words{0, 8, 16, 24, 0, 8, 16, 24}) & 0xffU;
      reinterpret(lanes, words);
    } else {
      Bytes all;
      copy_in(all, bytes, count);
      lanes = __builtin_convertvector(all, Ints);
    }
  }
  static FULGUR_INLINE void narrow(uint8_t* bytes, const Ints& lanes, int64_t count) {
    if constexpr (kLanes == 8) {
      WordBytes parts;
      reinterpret(parts, lanes);
      parts = __builtin_shufflevector(parts, parts, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 16, 20, 24, 28,
                                      16, 20, 24, 28, 16, 20, 24, 28, 16, 20, 24, 28);
      Words words;
      reinterpret(words, parts);
      words = __builtin_shufflevector(words, words, 0, 4, 0, 4, 0, 4, 0, 4);
      std::memcpy(bytes, &words, static_cast<size_t>(count));
    } else {
      copy_out(bytes, __builtin_convertvector(lanes, Bytes), count);
    }
  }

  static FULGUR_INLINE void widen(Words& lanes, const Halves& halves) {
    if constexpr (kLanes == 8) {
      const WordHalves parts =
          __builtin_shufflevector(halves, Halves{}, 0, 8, 1, 8, 2, 8, 3, 8, 4, 8, 5, 8, 6, 8, 7, 8);
      reinterpret(lanes, parts);
    } else {
      lanes = __builtin_convertvector(halves, Words);
    }
  }
  /// The lower halves.
  static FULGUR_INLINE void narrow(Halves& halves, const Words& lanes) {
    if constexpr (kLanes == 8) {
      WordHalves parts;
      reinterpret(parts, lanes);
      parts = __builtin_shufflevector(parts, parts, 0, 2, 4, 6, 0, 2, 4, 6, 8, 10, 12, 14, 8, 10, 12, 14);
      WordPairs pairs;
      reinterpret(pairs, parts);
      pairs = __builtin_shufflevector(pairs, pairs, 0, 2, 0, 2);
      std::memcpy(&halves, &pairs, sizeof halves);
    } else {
      halves = __builtin_convertvector(lanes, Halves);
    }
  }

  static FULGUR_INLINE void is_nan(Ints& result, const Floats& lanes) {
    result = lanes != lanes;  // NOLINT(misc-redundant-expression)
  }
};

template <class Vector, int kCount>
struct Vectors {
  Vector of[kCount];

  FULGUR_INLINE Vector& operator[](int part) { return of[part]; }
  FULGUR_INLINE const Vector& operator[](int part) const { return of[part]; }
};

/// What one step of a loop takes: `kWidth` neighbouring channels, in `kParts` vectors. Channels c to c + count - 1 are
/// loaded and stored; a count below kWidth takes longer.
template <class Value, int kLanes>
struct Group;

template <int kLanes>
struct Group<float, kLanes> {
  using L = Lanes<kLanes>;
  static constexpr int kParts = 1, kWidth = kLanes;
  using Floats = Vectors<typename L::Floats, kParts>;
  using Ints = Vectors<typename L::Ints, kParts>;

  static FULGUR_INLINE void load(Floats& group, const float* values, int64_t count) {
    L::copy_in(group[0], values, count);
  }
  static FULGUR_INLINE void store(float* values, const Floats& group, int64_t count) {
    L::copy_out(values, group[0], count);
  }
  static FULGUR_INLINE void load(Ints& group, const uint8_t* values, int64_t count) {
    L::widen(group[0], values, count);
  }
  static FULGUR_INLINE void store(uint8_t* values, const Ints& group, int64_t count) {
    L::narrow(values, group[0], count);
  }
  /// Values of float32 for the channels.
  static FULGUR_INLINE void load_sums(Floats& group, const float* values, int64_t count) { load(group, values, count); }
  static FULGUR_INLINE void store_sums(float* values, const Floats& group, int64_t count) {
    store(values, group, count);
  }
  /// Rounds to what a Value can hold: to nearest, ties to even. The lower half of a NaN must be 0, as in one that was
  /// computed from values of load_parameters and of BFloat16: no other one is sure to stay a NaN.
  static FULGUR_INLINE void round(typename L::Floats&) {}
};

/// The channels with even numbers, and those with odd ones: both are in the same words of memory, which are converted
/// by two instructions.
template <int kLanes>
struct Group<c10::BFloat16, kLanes> {
  using L = Lanes<kLanes>;
  using Words = typename L::Words;
  static constexpr int kParts = 2, kWidth = 2 * kLanes;
  using Floats = Vectors<typename L::Floats, kParts>;
  using Ints = Vectors<typename L::Ints, kParts>;

  static FULGUR_INLINE void load(Floats& group, const c10::BFloat16* values, int64_t count) {
    Words words;
    L::copy_in(words, values, count);
    const Words even = words << 16, odd = words & 0xffff0000U;
    L::reinterpret(group[0], even);
    L::reinterpret(group[1], odd);
  }
  /// Of values that are rounded.
  static FULGUR_INLINE void store(c10::BFloat16* values, const Floats& group, int64_t count) {
    Words even, odd;
    L::reinterpret(even, group[0]);
    L::reinterpret(odd, group[1]);
    L::copy_out(values, (even >> 16) | odd, count);
  }
  static FULGUR_INLINE void load(Ints& group, const uint8_t* values, int64_t count) {
    typename L::Halves halves;
    L::copy_in(halves, values, count);
    Words words;
    L::widen(words, halves);
    const Words even = words & 0xffU, odd = words >> 8;
    L::reinterpret(group[0], even);
    L::reinterpret(group[1], odd);
  }
  static FULGUR_INLINE void store(uint8_t* values, const Ints& group, int64_t count) {
    Words even, odd;
    L::reinterpret(even, group[0]);
    L::reinterpret(odd, group[1]);
    typename L::Halves halves;
    L::narrow(halves, even | (odd << 8));
    L::copy_out(values, halves, count);
  }
  static FULGUR_INLINE void load_sums(Floats& group, const float* values, int64_t count) {
    typename L::Floats first, second;
    L::copy_in(first, values, std::min<int64_t>(count, kLanes));
    L::copy_in(second, values + kLanes, std::max<int64_t>(count - kLanes, 0));
    if constexpr (kLanes == 8) {
      group[0] = __builtin_shufflevector(first, second, 0, 2, 4, 6, 8, 10, 12, 14);
      group[1] = __builtin_shufflevector(first, second, 1, 3, 5, 7, 9, 11, 13, 15);
    } else {
      group[0] = __builtin_shufflevector(first, second, 0, 2, 4, 6);
      group[1] = __builtin_shufflevector(first, second, 1, 3, 5, 7);
    }
  }
  static FULGUR_INLINE void store_sums(float* values, const Floats& group, int64_t count) {
    typename L::Floats first, second;
    if constexpr (kLanes == 8) {
      first = __builtin_shufflevector(group[0], group[1], 0, 8, 1, 9, 2, 10, 3, 11);
      second = __builtin_shufflevector(group[0], group[1], 4, 12, 5, 13, 6, 14, 7, 15);
    } else {
      first = __builtin_shufflevector(group[0], group[1], 0, 4, 1, 5);
      second = __builtin_shufflevector(group[0], group[1], 2, 6, 3, 7);
    }
    L::copy_out(values, first, std::min<int64_t>(count, kLanes));
    L::copy_out(values + kLanes, second, std::max<int64_t>(count - kLanes, 0));
  }
  static FULGUR_INLINE void round(typename L::Floats& lanes) {
    Words words;
    L::reinterpret(words, lanes);
    words = (words + 0x7fffU + ((words >> 16) & 1U)) & 0xffff0000U;
    L::reinterpret(lanes, words);
  }
};

/// Values of float32 for the channels, with NaN as `round` needs it.
template <class Value, int kLanes>
FULGUR_INLINE void load_parameters(typename Group<Value, kLanes>::Floats& group, const float* values, int64_t count) {
  using L = Lanes<kLanes>;
  Group<Value, kLanes>::load_sums(group, values, count);
  for (int part = 0; part < Group<Value, kLanes>::kParts; ++part) {
    typename L::Ints nan;
    L::is_nan(nan, group[part]);
    group[part] = nan ? typename L::Floats{} + std::numeric_limits<float>::quiet_NaN() : group[part];
  }
}

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
