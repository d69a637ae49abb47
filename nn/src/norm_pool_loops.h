#pragma once

#include <algorithm>
#include <cstdint>

#include "lanes.h"

/// The loops of a batch norm with max pooling over 2x2 and ReLU behind it. Images are (N, H, W, C) in memory. In each,
/// the work on some channels is in the innermost loop, so that sums stay in registers.
namespace fulgur::nn {

/// Of one window of 2x2: which of its four values is the largest, or that none is above 0.
constexpr int32_t kNoWinner = 4;

/// Calls `step(c, count)` for channels c to c + count - 1; count is the number of lanes, but for the last channels.
template <int kLanes, class Step>
FULGUR_INLINE void each_channels(int64_t channels, const Step& step) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) step(c, int64_t{kLanes});
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
    using L = Lanes<kLanes>;
    using Floats = typename L::Floats;
    each_channels<kLanes>(
        channels, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          // Several chains of additions: each waits for its last one.
          constexpr int64_t kChains = 4;
          const auto each_pixel = [&](const auto& use) __attribute__((always_inline)) {
            const auto use_pixel = [&](int64_t chain, int64_t pixel) __attribute__((always_inline)) {
              Floats x;
              L::load(x, values + pixel * channels + c, count);
              use(chain, x);
            };
            int64_t pixel = 0;
            for (; pixel + kChains <= pixels; pixel += kChains)
              for (int64_t chain = 0; chain < kChains; ++chain) use_pixel(chain, pixel + chain);
            for (; pixel < pixels; ++pixel) use_pixel(0, pixel);
          };
          Floats first;  // subtracted: a mean of large values would lose digits, and one of equal values would not be
                         // exact
          L::load(first, values + c, count);
          Floats means_of[kChains] = {}, sums_of[kChains] = {}, squares_of[kChains] = {};
          each_pixel([&](int64_t chain, const Floats& x)
                         __attribute__((always_inline)) { means_of[chain] += x - first; });
          const Floats mean =
              first + (means_of[0] + means_of[1] + means_of[2] + means_of[3]) / static_cast<float>(pixels);
          each_pixel([&](int64_t chain, const Floats& x) __attribute__((always_inline)) {
            const Floats distance = x - mean;
            sums_of[chain] += distance;
            squares_of[chain] += distance * distance;
          });
          const Floats sum = sums_of[0] + sums_of[1] + sums_of[2] + sums_of[3];
          const Floats square = squares_of[0] + squares_of[1] + squares_of[2] + squares_of[3];
          L::store(means + c, mean, count);
          L::store(sums + c, sum, count);
          L::store(squares + c, square, count);
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
template <class Value>
struct PoolRow {
  WindowRow<Value> in;
  const float *mean, *scale, *bias;  ///< (channels)
  Value* out;                        ///< (windows, channels)
  uint8_t* winners;                  ///< the same

  template <int kLanes>
  FULGUR_INLINE void run() const {
    using L = Lanes<kLanes>;
    using Floats = typename L::Floats;
    using Ints = typename L::Ints;
    each_channels<kLanes>(
        in.channels, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          Floats center, factor, offset;
          L::load_parameter(center, mean + c, count);
          L::load_parameter(factor, scale + c, count);
          L::load_parameter(offset, bias + c, count);
          for (int64_t window = 0; window < in.windows; ++window) {
            const auto normalised = [&](int32_t number, Floats & y) __attribute__((always_inline)) {
              L::load(y, in.top + in.place(window, number) + c, count);
              y = (y - center) * factor + offset;
            };
            Floats most;
            Ints winner{};
            normalised(0, most);
            for (int32_t number = 1; number < 4; ++number) {
              Floats y;
              normalised(number, y);
              Ints larger;
              L::is_nan(larger, y);  // NaN stays, as in LibTorch
              larger |= y > most;
              most = larger ? y : most;
              winner = larger ? Ints{} + number : winner;
            }
            const Ints off = most <= 0;
            most = off ? Floats{} : most;
            winner = off ? Ints{} + kNoWinner : winner;
            L::template round<Value>(most);
            const int64_t at = window * in.channels + c;
            L::store(out + at, most, count);
            L::store(winners + at, winner, count);
          }
        });
  }
};

/// Adds up the gradients of a row of windows, and their products with what they reach.
template <class Value>
struct SumGradients {
  WindowRow<Value> in;
  const Value* dy;         ///< (windows, channels)
  const uint8_t* winners;  ///< the same
  const float* mean;
  float *sums, *products;  ///< (channels), added to

  template <int kLanes>
  FULGUR_INLINE void run() const {
    using L = Lanes<kLanes>;
    using Floats = typename L::Floats;
    using Ints = typename L::Ints;
    each_channels<kLanes>(
        in.channels, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          Floats center, sum, product;
          L::load(center, mean + c, count);
          L::load(sum, sums + c, count);
          L::load(product, products + c, count);
          for (int64_t window = 0; window < in.windows; ++window) {
            const int64_t at = window * in.channels + c;
            Ints winner;
            Floats gradient, x;
            L::load(winner, winners + at, count);
            L::load(gradient, dy + at, count);
            L::load(x, in.top + in.place(window, 0) + c, count);
            for (int32_t number = 1; number < 4; ++number) {
              Floats other;
              L::load(other, in.top + in.place(window, number) + c, count);
              x = winner == number ? other : x;
            }
            gradient = winner == kNoWinner ? Floats{} : gradient;
            sum += gradient;
            product += gradient * (x - center);
          }
          L::store(sums + c, sum, count);
          L::store(products + c, product, count);
        });
  }
};

/// What a value x gets of the gradient g of the normalised one: scale g - (x - mean) slope - offset. Each (channels).
struct ChannelGradients {
  const float *mean, *slope, *offset, *scale;

  template <int kLanes>
  struct Loaded {
    using Floats = typename Lanes<kLanes>::Floats;
    Floats mean, slope, offset, scale;

    FULGUR_INLINE Loaded(const ChannelGradients& all, int64_t c, int64_t count) {
      Lanes<kLanes>::load_parameter(mean, all.mean + c, count);
      Lanes<kLanes>::load_parameter(slope, all.slope + c, count);
      Lanes<kLanes>::load_parameter(offset, all.offset + c, count);
      Lanes<kLanes>::load_parameter(scale, all.scale + c, count);
    }
    // `x` becomes its gradient; `shifted` is scale g - offset.
    template <class Value>
    FULGUR_INLINE void apply(Floats& x, const Floats& shifted) const {
      x = shifted - (x - mean) * slope;
      Lanes<kLanes>::template round<Value>(x);
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
    using L = Lanes<kLanes>;
    using Floats = typename L::Floats;
    using Ints = typename L::Ints;
    each_channels<kLanes>(
        in.channels, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          const ChannelGradients::Loaded<kLanes> channel(of_channels, c, count);
          for (int64_t window = 0; window < in.windows; ++window) {
            const int64_t at = window * in.channels + c;
            Ints winner;
            Floats gradient;
            L::load(winner, winners + at, count);
            L::load(gradient, dy + at, count);
            const Floats of_winner = channel.scale * gradient - channel.offset, of_others = -channel.offset;
            for (int32_t number = 0; number < 4; ++number) {
              const int64_t place = in.place(window, number) + c;
              Floats x;
              L::load(x, in.top + place, count);
              channel.template apply<Value>(x, winner == number ? of_winner : of_others);
              L::store(dx + place, x, count);
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
    using L = Lanes<kLanes>;
    each_channels<kLanes>(
        channels, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
          const ChannelGradients::Loaded<kLanes> channel(of_channels, c, count);
          const typename L::Floats shifted = -channel.offset;
          for (int64_t pixel = 0; pixel < pixels; ++pixel) {
            typename L::Floats x;
            L::load(x, values + pixel * channels + c, count);
            channel.template apply<Value>(x, shifted);
            L::store(dx + pixel * channels + c, x, count);
          }
        });
  }
};

}  // namespace fulgur::nn
