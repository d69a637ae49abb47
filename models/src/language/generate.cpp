#include "fulgur/models/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/models/gpt.h"
#include "language/next_token.h"
#include "option_bounds.h"

namespace fulgur {
namespace {

class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& module) : module_(module), was_training_(module.is_training()) {
    if (was_training_) module_.eval();
  }
  ~EvalMode() {
    if (was_training_) module_.train();
  }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
};

void check_prompt_numbers(const Tensor& values, const char* name, int64_t samples) {
  if (values.scalar_type() != at::kLong || values.dim() != 1 || values.size(0) != samples)
    throw DataError(cat("[models.generate] ", name, " of prompts must be int64 of shape [", samples, "]; got ",
                        c10::toString(values.scalar_type()), " of shape ", shape_text(values.sizes()), "."));
}

std::vector<int64_t> on_host(const Tensor& values) {
  const Tensor copy = values.to(at::kCPU).contiguous();
  const auto* data = copy.const_data_ptr<int64_t>();
  return {data, data + copy.numel()};
}

/// The prompts, and the texts that grow from them.
class GrowingTexts {
 public:
  GrowingTexts(GPT& model, const Prompts& prompts, const GenerateOptions& options)
      : model_(model), options_(options), samples_(prompts.tokens.size(0)) {
    const int64_t width = prompts.tokens.size(1);
    lengths_ = prompts.lengths.defined() ? on_host(prompts.lengths)
                                         : std::vector<int64_t>(static_cast<size_t>(samples_), width);
    for (size_t i = 0; i < lengths_.size(); ++i)
      if (lengths_[i] < 1 || lengths_[i] > width)
        throw DataError(cat("[models.generate] a prompt must have between 1 and ", width,
                            " tokens, the width of the "
                            "batch; prompt ",
                            i, " of the batch has ", lengths_[i], "."));
    longest_ = lengths_.empty() ? 0 : *std::max_element(lengths_.begin(), lengths_.end());
    device_ = model.device();
    lengths_there_ = at::tensor(lengths_, at::kLong).to(device_);
    texts_ = at::zeros({samples_, longest_ + options.max_new_tokens}, at::TensorOptions(device_).dtype(at::kLong));
    const Tensor tokens = prompts.tokens.narrow(1, 0, longest_).to(device_);
    const Tensor is_prompt =
        at::arange(longest_, lengths_there_.options()).unsqueeze(0).lt(lengths_there_.unsqueeze(1));
    texts_.narrow(1, 0, longest_).copy_(at::where(is_prompt, tokens, at::zeros({}, tokens.options())));
    if (options.temperature > 0) draw_numbers(prompts);
  }

  Tensor grow() {
    const auto options = at::TensorOptions(device_).dtype(at::kLong);
    const Tensor generated = at::full({samples_, options_.max_new_tokens}, -1, options);
    const Tensor stops = at::tensor(options_.stop_tokens, at::kLong).to(device_);
    Tensor ended = at::zeros({samples_}, options.dtype(at::kBool));
    for (int64_t step = 0; step < options_.max_new_tokens; ++step) {
      const Tensor draws = draws_.defined() ? draws_.select(1, step) : Tensor();
      const Tensor next = detail::next_token(logits_after(step), draws, options_);
      texts_.scatter_(1, (lengths_there_ + step).unsqueeze(1), next.unsqueeze(1));
      if (options_.stop_tokens.empty()) {
        generated.select(1, step).copy_(next);
        continue;
      }
      generated.select(1, step).copy_(at::where(ended, at::full({}, -1, options), next));
      ended = ended.logical_or(at::isin(next, stops));
      if (ended.all().item<bool>()) break;
    }
    return generated;
  }

 private:
  void draw_numbers(const Prompts& prompts) {
    const std::vector<int64_t> tokens = on_host(texts_.narrow(1, 0, longest_));
    const std::vector<int64_t> indices = prompts.indices.defined() ? on_host(prompts.indices) : std::vector<int64_t>();
    const Tensor numbers = at::empty({samples_, options_.max_new_tokens}, at::kDouble);
    auto* to = numbers.mutable_data_ptr<double>();
    for (size_t i = 0; i < lengths_.size(); ++i) {
      uint64_t prompt = 0;
      if (!indices.empty()) {
        prompt = mix_bits(static_cast<uint64_t>(indices[i]));
      } else {
        const auto* row = tokens.data() + static_cast<int64_t>(i) * longest_;
        for (int64_t k = 0; k < lengths_[i]; ++k) prompt = mix_bits(prompt + 1 + static_cast<uint64_t>(row[k]));
      }
      for (int64_t step = 0; step < options_.max_new_tokens; ++step)
        *to++ = detail::draw_of(options_.seed, prompt, lengths_[i] + step);
    }
    draws_ = numbers.to(device_);
  }

  // The logits (N, V) after `step` new tokens of each text.
  Tensor logits_after(int64_t step) {
    const int64_t most = model_.options().block_size;
    std::vector<int64_t> too_long;  // texts of which the cache has no room for the last token
    for (size_t i = 0; i < lengths_.size(); ++i)
      if (lengths_[i] + step > most) too_long.push_back(static_cast<int64_t>(i));
    if (static_cast<int64_t>(too_long.size()) == samples_) return logits_of_windows(too_long, step);
    Tensor logits = logits_with_cache(step, most);
    if (too_long.empty()) return logits;
    return logits.index_copy(0, at::tensor(too_long, at::kLong).to(device_), logits_of_windows(too_long, step));
  }

  // Of texts that are too long, the results are of no use.
  Tensor logits_with_cache(int64_t step, int64_t most) {
    if (!cache_) {
      const int64_t width = std::min(longest_, most);
      cache_.emplace(std::min(longest_ + options_.max_new_tokens - 1, most));
      return model_.begin(texts_.narrow(1, 0, width), lengths_there_.clamp_max(width), *cache_);
    }
    const Tensor places = (lengths_there_ + (step - 1)).clamp_max(most - 1);
    const Tensor tokens = texts_.gather(1, places.unsqueeze(1)).squeeze(1);
    return model_.extend(tokens, places, std::min(longest_ + step, most), *cache_);
  }

  Tensor logits_of_windows(const std::vector<int64_t>& rows, int64_t step) {
    const int64_t most = model_.options().block_size;
    std::vector<Tensor> windows;
    for (const int64_t row : rows)
      windows.push_back(texts_.select(0, row).narrow(0, lengths_[static_cast<size_t>(row)] + step - most, most));
    GptCache unused(most);
    const Tensor lengths = at::full({static_cast<int64_t>(rows.size())}, most, lengths_there_.options());
    return model_.begin(at::stack(windows), lengths, unused);
  }

  GPT& model_;
  const GenerateOptions& options_;
  int64_t samples_, longest_ = 0;
  at::Device device_ = at::kCPU;
  std::vector<int64_t> lengths_;  // of the prompts
  Tensor lengths_there_;          // (N), on the device
  Tensor texts_;                  // (N, longest prompt + max_new_tokens), filled up with 0
  Tensor draws_;                  // (N, max_new_tokens) float64; undefined with temperature 0
  std::optional<GptCache> cache_;
};

}  // namespace

void GenerateOptions::fields(Fields& f) {
  f(max_new_tokens, "max_new_tokens", "Tokens to add to each prompt; 0: none.").range(0, detail::kMostWidth);
  f(temperature, "temperature",
    "Divides the logits: below 1, probable tokens become more probable; 0: always the first.")
      .at_least(0);
  f(top_k, "top_k", "Only this number of the most probable tokens is drawn from; 0: all.").range(0, detail::kMostWidth);
  f(top_p, "top_p", "Only the fewest tokens whose probabilities sum up to this are drawn from; 1: all.").range(0, 1);
  f(seed, "seed", "Decides the random numbers.");
  f(stop_tokens, "stop_tokens", "Tokens after which a text ends.").range(0, detail::kMostWidth);
}

Tensor generate(GPT& model, const Prompts& prompts, const GenerateOptions& options) {
  const GenerateOptions how = detail::checked_options(options, "models.generate");
  const Tensor& tokens = prompts.tokens;
  if (!tokens.defined() || tokens.dim() != 2 || tokens.scalar_type() != at::kLong || tokens.size(1) < 1)
    throw DataError(cat("[models.generate] prompts must be int64 of shape [N, T] with at least one token; got ",
                        tokens.defined()
                            ? cat(c10::toString(tokens.scalar_type()), " of shape ", shape_text(tokens.sizes()))
                            : std::string("none"),
                        "."));
  if (prompts.lengths.defined()) check_prompt_numbers(prompts.lengths, "lengths", tokens.size(0));
  if (prompts.indices.defined()) check_prompt_numbers(prompts.indices, "indices", tokens.size(0));
  if (tokens.size(0) == 0 || how.max_new_tokens == 0)
    return at::empty({tokens.size(0), how.max_new_tokens}, tokens.options().device(model.device()));
  const at::NoGradGuard no_grad;
  const EvalMode eval(model);
  return GrowingTexts(model, prompts, how).grow();
}

Tensor generate(GPT& model, const Tensor& tokens, const GenerateOptions& options) {
  return generate(model, Prompts{.tokens = tokens}, options);
}

}  // namespace fulgur
