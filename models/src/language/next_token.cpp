#include "language/next_token.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/sort.h>

#include <algorithm>

#include "fulgur/core/state/split_mix.h"

namespace fulgur::detail {

Tensor next_token(const Tensor& logits, const Tensor& draws, const GenerateOptions& options) {
  if (options.temperature == 0) return logits.argmax(1);
  // Minus the largest one: a small temperature then gives no infinity.
  const Tensor scores = logits.to(at::kDouble);
  const auto [sorted, order] = at::sort((scores - scores.amax(1, /*keepdim=*/true)) / options.temperature,
                                        /*stable=*/true, 1, /*descending=*/true);
  const int64_t kept = options.top_k > 0 ? std::min(options.top_k, sorted.size(1)) : sorted.size(1);
  const Tensor probabilities = sorted.narrow(1, 0, kept).softmax(1);
  const Tensor sums = probabilities.cumsum(1);
  // A token stays if those before it do not reach top_p. The first one stays in any case, also with a top_p of 0 or NaN
  // in the logits.
  const Tensor stays = (sums - probabilities).lt(options.top_p);
  const Tensor last = (stays.sum(1, /*keepdim=*/true) - 1).clamp_min(0);
  const Tensor target = draws.unsqueeze(1) * sums.gather(1, last);
  const Tensor chosen = at::minimum(sums.le(target).sum(1, /*keepdim=*/true), last);
  return order.gather(1, chosen).squeeze(1);
}

double draw_of(int64_t seed, uint64_t prompt, int64_t position) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const uint64_t of_prompt = mix_bits(mix_bits(static_cast<uint64_t>(seed) + kGolden) ^ prompt);
  return SplitMix64(mix_bits(of_prompt + kGolden * static_cast<uint64_t>(position))).uniform();
}

}  // namespace fulgur::detail
