#include "media/histogram.h"

#include <algorithm>
#include <cmath>

namespace fulgur {
namespace {

std::vector<double> all_limits() {
  std::vector<double> limits;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) limits.push_back(limit);
  std::vector<double> all;
  for (size_t i = limits.size(); i-- > 0;) all.push_back(-limits[i]);
  all.push_back(0);
  all.insert(all.end(), limits.begin(), limits.end());
  return all;
}

}  // namespace

Histogram histogram_of(const Tensor& values) {
  constexpr int64_t kBlock = 1 << 18;
  static const std::vector<double> limits = all_limits();
  const auto last_bucket = static_cast<std::ptrdiff_t>(limits.size()) - 2;
  std::vector<double> counts(limits.size() - 1);
  Histogram histogram;
  for (int64_t begin = 0; begin < values.numel(); begin += kBlock) {
    const int64_t size = std::min(kBlock, values.numel() - begin);
    const Tensor block = values.narrow(0, begin, size).to(at::kDouble).contiguous();
    const double* const data = block.const_data_ptr<double>();
    for (int64_t i = 0; i < size; ++i) {
      const double value = data[i];
      if (!std::isfinite(value)) {
        ++histogram.nonfinite;
        continue;
      }
      const auto bucket = std::upper_bound(limits.begin(), limits.end(), value) - limits.begin() - 1;
      ++counts[static_cast<size_t>(std::clamp<std::ptrdiff_t>(bucket, 0, last_bucket))];
      histogram.min = histogram.num == 0 ? value : std::min(histogram.min, value);
      histogram.max = histogram.num == 0 ? value : std::max(histogram.max, value);
      ++histogram.num;
      histogram.sum += value;
      histogram.sum_squares += value * value;
    }
  }
  if (histogram.num == 0) return histogram;
  const auto used = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), used) - counts.begin();
  const auto end = std::find_if(counts.rbegin(), counts.rend(), used).base() - counts.begin();
  histogram.limits.assign(limits.begin() + first, limits.begin() + end + 1);
  histogram.counts.push_back(0);
  histogram.counts.insert(histogram.counts.end(), counts.begin() + first, counts.begin() + end);
  return histogram;
}

}  // namespace fulgur
