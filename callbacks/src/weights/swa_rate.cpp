#include "weights/swa_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fulgur::detail {

double swa_rate(double from, double to, int64_t epoch, int64_t epochs, SwaAnnealing annealing) {
  if (epoch >= epochs) return to;
  const double part = static_cast<double>(std::max<int64_t>(epoch, 0)) / static_cast<double>(epochs);
  const double alpha = annealing == SwaAnnealing::linear ? part : (1 - std::cos(std::numbers::pi * part)) / 2;
  return to * alpha + from * (1 - alpha);
}

}  // namespace fulgur::detail
