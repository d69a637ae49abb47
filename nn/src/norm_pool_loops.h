#pragma once

#include <algorithm>
#include <cstdint>

#include "lanes.h"

/// The loops of a batch norm with max pooling over 2x2 and ReLU behind it. Images are (N, H, W, C) in memory. In each,
/// the work on some channels is in the innermost loop, so that sums stay in registers.
namespace fulgur::nn {

/// Of one window of 2x2: which of its four values is the largest, or that none is above 0.
constexpr int32_t kNoWinner = 4;

/// Calls `step(c, count)` for channels c to c + count - 1; count is kWidth, but for the last channels.
template <int kWidth, class Step>
FULGUR_INLINE void each_channels(int64_t channels, const Step& step) {
  int64_t c = 0;
  for (; c + kWidth <= channels; c += kWidth) step(c, int64_t{kWidth});
  if (c < channels) step(c, channels - c);
}

/// The mean of some pixels, up to rounding, and sums and sums of squares of their distances to it.
template <class Value>
struct SumPixels {
  const Value* values;  ///< (pixels, channels)
  int64_t pixels, channels;
  float *means, *sums, *squares;  ///< (channels), written

  template <int kLanes>
  FULGUR_INLINE void run() const {
    using G = Group<Value, kLanes>;
    using Floats = typename G::Floats;
    each_channels<G::kWidth>(
        channels, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          // Several chains of additions: each waits for its last one.
          constexpr int64_t kChains = 4 / G::kParts;
          const auto each_pixel = [&](const auto& use) __attribute__((always_inline)) {
            const auto use_pixel = [&](int64_t chain, int64_t pixel) __attribute__((always_inline)) {
              Floats x;
              G::load(x, values + pixel * channels + c, count);
              for (int part = 0; part < G::kParts; ++part) use(chain, part, x[part]);
            };
            int64_t pixel = 0;
            for (; pixel + kChains <= pixels; pixel += kChains)
              for (int64_t chain = 0; chain < kChains; ++chain) use_pixel(chain, pixel + chain);
            for (; pixel < pixels; ++pixel) use_pixel(0, pixel);
          };
          const auto added = [](const Floats(&chains)[kChains], Floats& sum) __attribute__((always_inline)) {
            sum = chains[0];
            for (int64_t chain = 1; chain < kChains; ++chain)
              for (int part = 0; part < G::kParts; ++part) sum[part] += chains[chain][part];
          };
          Floats first;  // subtracted: a mean of large values would lose digits, and one of equal values would not be
                         // exact
          G::load(first, values + c, count);
          Floats means_of[kChains] = {}, sums_of[kChains] = {}, squares_of[kChains] = {}, mean, sum, square;
          each_pixel([&](int64_t chain, int part, const auto& x)
                         __attribute__((always_inline)) { means_of[chain][part] += x - first[part]; });
          added(means_of, mean);
          for (int part = 0; part < G::kParts; ++part)
            mean[part] = first[part] + mean[part] / static_cast<float>(pixels);
          each_pixel([&](int64_t chain, int part, const auto& x) __attribute__((always_inline)) {
            const auto distance = x - mean[part];
            sums_of[chain][part] += distance;
            squares_of[chain][part] += distance * distance;
          });
          added(sums_of, sum);
          added(squares_of, square);
          G::store_sums(means + c, mean, count);
          G::store_sums(sums + c, sum, count);
          G::store_sums(squares + c, square, count);
        });
  }
};

/// A row of windows: two rows of the image above one of the result.
template <class Value>
struct WindowRow {
  const Value* top;    ///< the upper row of the image: (W, C)
  int64_t row_stride;  ///< values from a row of the image to the next
  int64_t windows, channels;

  /// Where the value of the window begins that has this number.
  FULGUR_INLINE int64_t place(int64_t window, int64_t number) const {
    return 2 * window * channels + (number % 2) * channels + (number / 2) * row_stride;
  }
};

/// Normalises, and keeps the largest value of each window if it is above 0. It is rounded afterwards: the largest of
/// rounded values would be the same.
template <class Value, bool kKeepsWinners>
struct PoolRow {
  WindowRow<Value> in;
  const float *mean, *scale, *bias;  ///< (channels)
  Value* out;                        ///< (windows, channels)
  uint8_t* winners;                  ///< the same, if kKeepsWinners
  Value* winning;                    ///< their values in the image

  template <int kLanes>
  FULGUR_INLINE void run() const {
    using G = Group<Value, kLanes>;
    using Ints = typename Lanes<kLanes>::Ints;
    using OneFloats = typename Lanes<kLanes>::Floats;
    each_channels<G::kWidth>(
        in.channels, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          typename G::Floats center, factor, offset;
          load_parameters<Value, kLanes>(center, mean + c, count);
          load_parameters<Value, kLanes>(factor, scale + c, count);
          load_parameters<Value, kLanes>(offset, bias + c, count);
          for (int64_t window = 0; window < in.windows; ++window) {
            typename G::Floats most, won;
            typename G::Ints winner = {};
            for (int32_t number = 0; number < 4; ++number) {
              typename G::Floats x;
              G::load(x, in.top + in.place(window, number) + c, count);
              for (int part = 0; part < G::kParts; ++part) {
                const OneFloats y = (x[part] - center[part]) * factor[part] + offset[part];
                if (number == 0) {
                  most[part] = y;
                  won[part] = x[part];
                  continue;
                }
                Ints larger;
                Lanes<kLanes>::is_nan(larger, y);  // NaN stays, as in LibTorch
                larger |= y > most[part];
                most[part] = larger ? y : most[part];
                winner[part] = larger ? Ints{} + number : winner[part];
                won[part] = larger ? x[part] : won[part];
              }
            }
            for (int part = 0; part < G::kParts; ++part) {
              const Ints off = most[part] <= 0;
              most[part] = off ? OneFloats{} : most[part];
              winner[part] = off ? Ints{} + kNoWinner : winner[part];
              G::round(most[part]);
            }
            const int64_t at = window * in.channels + c;
            G::store(out + at, most, count);
            if constexpr (kKeepsWinners) {
              G::store(winners + at, winner, count);
              G::store(winning + at, won, count);
            }
          }
        });
  }
};

/// Adds up the gradients of windows, and their products with what they reach.
template <class Value>
struct SumGradients {
  const Value* dy;         ///< (windows, channels)
  const uint8_t* winners;  ///< the same
  const Value* winning;    ///< the same
  int64_t windows, channels;
  const float* mean;
  float *sums, *products;  ///< (channels), added to

  template <int kLanes>
  FULGUR_INLINE void run() const {
    using G = Group<Value, kLanes>;
    using OneFloats = typename Lanes<kLanes>::Floats;
    each_channels<G::kWidth>(
        channels, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          typename G::Floats center, sum, product;
          G::load_sums(center, mean + c, count);
          G::load_sums(sum, sums + c, count);
          G::load_sums(product, products + c, count);
          for (int64_t window = 0; window < windows; ++window) {
            const int64_t at = window * channels + c;
            typename G::Ints winner;
            typename G::Floats gradient, x;
            G::load(winner, winners + at, count);
            G::load(gradient, dy + at, count);
            G::load(x, winning + at, count);
            for (int part = 0; part < G::kParts; ++part) {
              const OneFloats g = winner[part] == kNoWinner ? OneFloats{} : gradient[part];
              sum[part] += g;
              product[part] += g * (x[part] - center[part]);
            }
          }
          G::store_sums(sums + c, sum, count);
          G::store_sums(products + c, product, count);
        });
  }
};

/// What a value x gets of the gradient g of the normalised one: scale g - (x - mean) invstd slope - offset. Each
/// (channels). With invstd apart, slope has the size of gradients, and neither overflows nor loses digits.
struct ChannelGradients {
  const float *mean, *invstd, *slope, *offset, *scale;

  template <class Value, int kLanes>
  struct Loaded {
    using G = Group<Value, kLanes>;
    typename G::Floats mean, invstd, slope, offset, scale;

    FULGUR_INLINE Loaded(const ChannelGradients& all, int64_t c, int64_t count) {
      load_parameters<Value, kLanes>(mean, all.mean + c, count);
      load_parameters<Value, kLanes>(invstd, all.invstd + c, count);
      load_parameters<Value, kLanes>(slope, all.slope + c, count);
      load_parameters<Value, kLanes>(offset, all.offset + c, count);
      load_parameters<Value, kLanes>(scale, all.scale + c, count);
    }
    // `x` becomes its gradient; `shifted` is scale g - offset.
    FULGUR_INLINE void apply(int part, typename Lanes<kLanes>::Floats& x,
                             const typename Lanes<kLanes>::Floats& shifted) const {
      x = shifted - (x - mean[part]) * invstd[part] * slope[part];
      G::round(x);
    }
  };
};

/// The gradients of the values of a row of windows.
template <class Value>
struct SpreadGradients {
  WindowRow<Value> in;
  const Value* dy;         ///< (windows, channels)
  const uint8_t* winners;  ///< the same
  ChannelGradients of_channels;
  Value* dx;  ///< as `in.top`

  template <int kLanes>
  FULGUR_INLINE void run() const {
    using G = Group<Value, kLanes>;
    each_channels<G::kWidth>(
        in.channels, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          const ChannelGradients::Loaded<Value, kLanes> channel(of_channels, c, count);
          for (int64_t window = 0; window < in.windows; ++window) {
            const int64_t at = window * in.channels + c;
            typename G::Ints winner;
            typename G::Floats gradient, of_winner, of_others;
            G::load(winner, winners + at, count);
            G::load(gradient, dy + at, count);
            for (int part = 0; part < G::kParts; ++part) {
              of_winner[part] = channel.scale[part] * gradient[part] - channel.offset[part];
              of_others[part] = -channel.offset[part];
            }
            for (int32_t number = 0; number < 4; ++number) {
              const int64_t place = in.place(window, number) + c;
              typename G::Floats x;
              G::load(x, in.top + place, count);
              for (int part = 0; part < G::kParts; ++part)
                channel.apply(part, x[part], winner[part] == number ? of_winner[part] : of_others[part]);
              G::store(dx + place, x, count);
            }
          }
        });
  }
};

/// The gradients of pixels without a window: those of an odd last row or column.
template <class Value>
struct SpreadRest {
  const Value* values;  ///< (pixels, channels)
  int64_t pixels, channels;
  ChannelGradients of_channels;
  Value* dx;  ///< as `values`

  template <int kLanes>
  FULGUR_INLINE void run() const {
    using G = Group<Value, kLanes>;
    each_channels<G::kWidth>(
        channels, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          const ChannelGradients::Loaded<Value, kLanes> channel(of_channels, c, count);
          for (int64_t pixel = 0; pixel < pixels; ++pixel) {
            typename G::Floats x;
            G::load(x, values + pixel * channels + c, count);
            for (int part = 0; part < G::kParts; ++part) channel.apply(part, x[part], -channel.offset[part]);
            G::store(dx + pixel * channels + c, x, count);
          }
        });
  }
};

}  // namespace fulgur::nn
