#include "fulgur/metrics/text.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::metrics {

void Perplexity::Options::fields(Fields& f) {
  f(ignore_index, "ignore_index", "Tokens with this target do not count.");
}

Perplexity::Perplexity() : Perplexity(Options()) {}

Perplexity::Perplexity(const Options& options)
    : options_(options),
      sum_(add_state("sum", at::zeros({}, at::kDouble))),
      count_(add_state("count", at::zeros({}, at::kLong))) {}

void Perplexity::update(const Tensor& prediction, const Tensor& target) {
  const at::NoGradGuard no_grad;
  if (prediction.dim() != 3 || prediction.sizes().slice(0, 2) != target.sizes())
    throw Error(cat("[metrics.update] Perplexity needs logits (N, T, V) and tokens (N, T); got ",
                    shape_text(prediction.sizes()), " and ", shape_text(target.sizes()), "."));
  begin_update(prediction);
  const Tensor logits = prediction.detach().reshape({-1, prediction.size(2)});
  Tensor tokens = target.to(prediction.device()).reshape({-1}), valid;
  if (options_.ignore_index) {
    valid = tokens.ne(*options_.ignore_index);
    tokens = tokens.where(valid, 0);
  }
  // Half precision would lose digits in the sum over the vocabulary.
  Tensor likelihood = at::log_softmax(logits, 1, logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)
                          .gather(1, tokens.unsqueeze(1))
                          .squeeze(1)
                          .to(at::kDouble);
  if (valid.defined()) likelihood = likelihood.where(valid, 0);
  sum_.sub_(likelihood.sum());
  if (valid.defined())
    count_.add_(valid.sum());
  else
    count_.add_(tokens.numel());
}

Tensor Perplexity::compute() const { return (sum_ / count_).exp(); }

void Bleu::Options::fields(Fields& f) {
  f(n_gram, "n_gram", "The longest n-grams.").at_least(1);
  f(smooth, "smooth", "Adds one to the counts of n-grams with n above 1.");
}

Bleu::Bleu() : Bleu(Options()) {}

Bleu::Bleu(const Options& options)
    : options_(options),
      matches_(add_state("matches", at::zeros({options.n_gram}, at::kLong))),
      n_grams_(add_state("n_grams", at::zeros({options.n_gram}, at::kLong))),
      text_length_(add_state("text_length", at::zeros({}, at::kLong))),
      reference_length_(add_state("reference_length", at::zeros({}, at::kLong))) {}

namespace {

using Words = std::vector<std::string>;
using Counts = std::map<Words, int64_t>;

Words words_of(const std::string& text) {
  std::istringstream stream(text);
  Words words;
  for (std::string word; stream >> word;) words.push_back(std::move(word));
  return words;
}

Counts count_n_grams(const Words& words, int64_t longest) {
  Counts counts;
  for (auto first = words.begin(); first != words.end(); ++first)
    for (int64_t n = 1; n <= std::min<int64_t>(longest, words.end() - first); ++n) ++counts[Words(first, first + n)];
  return counts;
}

}  // namespace

void Bleu::update(const std::vector<std::string>& texts, const std::vector<std::vector<std::string>>& references) {
  if (texts.size() != references.size())
    throw Error(cat("[metrics.update] Bleu needs references for each text; got ", texts.size(), " texts and ",
                    references.size(), " lists of references."));
  begin_update();
  int64_t* const matches = matches_.mutable_data_ptr<int64_t>();
  int64_t* const n_grams = n_grams_.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < texts.size(); ++i) {
    if (references[i].empty()) throw Error(cat("[metrics.update] Bleu: text ", i, " has no reference."));
    const Words text = words_of(texts[i]);
    Counts most;
    std::optional<int64_t> nearest;
    const auto length = static_cast<int64_t>(text.size());
    for (const std::string& reference : references[i]) {
      const Words words = words_of(reference);
      for (const auto& [n_gram, number] : count_n_grams(words, options_.n_gram)) {
        int64_t& known = most[n_gram];
        known = std::max(known, number);
      }
      const auto other = static_cast<int64_t>(words.size());
      if (!nearest || std::abs(other - length) < std::abs(*nearest - length)) nearest = other;
    }
    for (const auto& [n_gram, number] : count_n_grams(text, options_.n_gram)) {
      const auto found = most.find(n_gram);
      n_grams[n_gram.size() - 1] += number;
      if (found != most.end()) matches[n_gram.size() - 1] += std::min(number, found->second);
    }
    text_length_.add_(length);
    reference_length_.add_(*nearest);
  }
}

Tensor Bleu::compute() const {
  const double length = static_cast<double>(text_length_.item<int64_t>());
  const double wanted = static_cast<double>(reference_length_.item<int64_t>());
  double log_sum = 0;
  for (int64_t n = 0; n < options_.n_gram; ++n) {
    const double extra = options_.smooth && n > 0 ? 1 : 0;
    const double matches = static_cast<double>(matches_[n].item<int64_t>()) + extra;
    if (matches == 0) return at::scalar_tensor(0.0, at::kDouble);
    log_sum += std::log(matches / (static_cast<double>(n_grams_[n].item<int64_t>()) + extra));
  }
  const double penalty = length > wanted ? 1 : std::exp(1 - wanted / length);
  return at::scalar_tensor(penalty * std::exp(log_sum / static_cast<double>(options_.n_gram)), at::kDouble);
}

[[maybe_unused]] static const bool registered_text_metrics =
    Registry<PredictionMetric>::add<Perplexity>("Perplexity", "exp of the mean negative log-likelihood of tokens.");

}  // namespace fulgur::metrics
