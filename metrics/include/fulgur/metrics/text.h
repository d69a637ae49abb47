#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/core/options/fields.h"

namespace fulgur::metrics {

/// exp of the mean negative log-likelihood of the targets. Predictions: (N, T, V) logits; targets: (N, T) tokens.
class FULGUR_API Perplexity final : public PredictionMetric {
 public:
  struct FULGUR_API Options {
    std::optional<int64_t> ignore_index;  ///< tokens that do not count
    void fields(Fields& f);
  };
  Perplexity();
  explicit Perplexity(const Options& options);
  void update(const Tensor& prediction, const Tensor& target) override;
  Tensor compute() const override;

 private:
  Options options_;
  Tensor &sum_, &count_;
};

/// BLEU of a corpus (Papineni et al., https://aclanthology.org/P02-1040): the geometric mean of the shares of n-grams
/// that a reference contains, times a penalty for short texts. Texts are split at white space. Computed on the host.
class FULGUR_API Bleu final : public Metric {
 public:
  struct FULGUR_API Options {
    int64_t n_gram = 4;
    bool smooth = false;  ///< adds one to the counts of n-grams with n > 1 (Lin and Och, 2004)
    void fields(Fields& f);
  };
  Bleu();
  explicit Bleu(const Options& options);
  /// Each text and its references; a text needs at least one. Throws an Error if the numbers differ.
  void update(const std::vector<std::string>& texts, const std::vector<std::vector<std::string>>& references);
  Tensor compute() const override;

 private:
  Options options_;
  Tensor &matches_, &n_grams_, &text_length_, &reference_length_;
};

}  // namespace fulgur::metrics
