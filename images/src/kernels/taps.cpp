#include "kernels/taps.h"

#include <algorithm>
#include <cmath>

namespace fulgur::images {
namespace {

double triangle(double x) {
  x = std::abs(x);
  return x < 1 ? 1 - x : 0;
}

// Keys' cubic; Pillow, and LibTorch with antialiasing, use a = -0.5, LibTorch without it -0.75.
double cubic(double x, double a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// The weights of one output as real numbers, from input `first` on.
struct RealTaps {
  int64_t first = 0;
  std::vector<double> weights;
};

// As many bits as int16 has room for, for more exact sums if there are many small weights.
int bits_for(const std::vector<RealTaps>& all) {
  double largest = 0;
  for (const RealTaps& taps : all)
    for (const double weight : taps.weights) largest = std::max(largest, std::abs(weight));
  int bits = 16;
  while (bits > 14 && largest * (1 << bits) > 32700) --bits;
  return bits;
}

void quantize(const std::vector<RealTaps>& all, Taps& out) {
  size_t most = 1;
  for (const RealTaps& taps : all) most = std::max(most, taps.weights.size());
  out.outputs = static_cast<int64_t>(all.size());
  out.count = static_cast<int64_t>((most + 7) / 8 * 8);
  out.bits = bits_for(all);
  out.first.assign(all.size(), 0);
  out.used.assign(all.size(), 0);
  out.weights.assign(all.size() * static_cast<size_t>(out.count), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    const RealTaps& taps = all[i];
    int16_t* const weights = out.weights.data() + i * static_cast<size_t>(out.count);
    out.first[i] = static_cast<int32_t>(taps.first);
    out.used[i] = static_cast<int32_t>(taps.weights.size());
    // Sums are rounded, not weights: so the weights have the sum 2^bits, and an even area keeps its value.
    double sum = 0;
    int64_t rounded = 0;
    for (size_t k = 0; k < taps.weights.size(); ++k) {
      sum += taps.weights[k];
      const int64_t next = std::llround(sum * (1 << out.bits));
      weights[k] = static_cast<int16_t>(next - rounded);
      rounded = next;
    }
  }
}

RealTaps smooth(int64_t output, int64_t inputs, double scale, bool is_cubic) {
  const double reach = (is_cubic ? 2 : 1) * std::max(scale, 1.0), center = scale * (static_cast<double>(output) + 0.5);
  const int64_t begin = std::max<int64_t>(static_cast<int64_t>(center - reach + 0.5), 0);
  const int64_t end = std::min(static_cast<int64_t>(center + reach + 0.5), inputs);
  const double shrink = 1 / std::max(scale, 1.0);
  RealTaps taps{begin, {}};
  double sum = 0;
  for (int64_t i = begin; i < end; ++i) {
    const double x = (static_cast<double>(i) - center + 0.5) * shrink;
    taps.weights.push_back(is_cubic ? cubic(x, -0.5) : triangle(x));
    sum += taps.weights.back();
  }
  for (double& weight : taps.weights) weight /= sum;
  return taps;
}

// Weights of the places from `from` on, of which those outside of the axis are moved to `place(i)`.
template <class Place>
RealTaps gathered(int64_t from, const std::vector<double>& weights, const Place& place) {
  int64_t lowest = place(from), highest = lowest;
  for (size_t k = 1; k < weights.size(); ++k) {
    lowest = std::min(lowest, place(from + static_cast<int64_t>(k)));
    highest = std::max(highest, place(from + static_cast<int64_t>(k)));
  }
  RealTaps taps{lowest, std::vector<double>(static_cast<size_t>(highest - lowest + 1))};
  for (size_t k = 0; k < weights.size(); ++k)
    taps.weights[static_cast<size_t>(place(from + static_cast<int64_t>(k)) - lowest)] += weights[k];
  return taps;
}

RealTaps between_pixels(int64_t output, int64_t inputs, double scale, bool is_cubic) {
  const auto inside = [&](int64_t i) { return std::clamp<int64_t>(i, 0, inputs - 1); };
  const double place = scale * (static_cast<double>(output) + 0.5) - 0.5, below = std::floor(place);
  const double t = place - below;
  if (!is_cubic) return gathered(static_cast<int64_t>(below), {1 - t, t}, inside);
  return gathered(static_cast<int64_t>(below) - 1,
                  {cubic(t + 1, -0.75), cubic(t, -0.75), cubic(1 - t, -0.75), cubic(2 - t, -0.75)}, inside);
}

}  // namespace

void resize_taps(int64_t inputs, int64_t outputs, Interpolation interpolation, bool antialias, Taps& taps) {
  const double scale = static_cast<double>(inputs) / static_cast<double>(outputs);
  const bool is_cubic = interpolation == Interpolation::bicubic;
  std::vector<RealTaps> all;
  all.reserve(static_cast<size_t>(outputs));
  for (int64_t i = 0; i < outputs; ++i)
    all.push_back(antialias ? smooth(i, inputs, scale, is_cubic) : between_pixels(i, inputs, scale, is_cubic));
  quantize(all, taps);
}

void blur_taps(int64_t length, const std::vector<double>& kernel, Taps& taps) {
  const auto mirrored_place = [&](int64_t i) { return i < 0 ? -i : i < length ? i : 2 * (length - 1) - i; };
  const auto half = static_cast<int64_t>(kernel.size() / 2);
  std::vector<RealTaps> all;
  for (int64_t i = 0; i < length; ++i) all.push_back(gathered(i - half, kernel, mirrored_place));
  quantize(all, taps);
}

void nearest_places(int64_t inputs, int64_t outputs, std::vector<int32_t>& places) {
  const float scale = static_cast<float>(inputs) / static_cast<float>(outputs);
  places.clear();
  for (int64_t i = 0; i < outputs; ++i)
    places.push_back(static_cast<int32_t>(
        std::min<int64_t>(static_cast<int64_t>(std::floor(static_cast<float>(i) * scale)), inputs - 1)));
}

}  // namespace fulgur::images
