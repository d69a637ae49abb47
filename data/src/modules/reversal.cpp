#include "fulgur/data/reversal.h"

#include <ATen/ops/empty.h>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "loading/option_bounds.h"

namespace fulgur {
namespace {

Tensor random_tokens(const SampleContext& context, int64_t samples, int64_t length, int64_t vocabulary) {
  Tensor tokens = at::empty({samples, length}, at::kLong);
  auto* to = tokens.mutable_data_ptr<int64_t>();
  for (int64_t sample = 0; sample < samples; ++sample) {
    SplitMix64 random = context.random(sample);
    for (int64_t i = 0; i < length; ++i)
      *to++ = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(vocabulary - 1)));
  }
  return tokens;
}

}  // namespace

void ReversalDataModule::Options::fields(Fields& f) {
  f(vocabulary, "vocabulary",
    "Number of different tokens, including the start token (0), which occurs in no sequence; link the model's option "
    "to it.")
      .range(2, detail::kMostSamples);
  f(length, "length", "Tokens of a sequence.").range(1, detail::kMostSamples);
  f(train_samples, "train_samples", "Training sequences.").range(1, detail::kMostSamples);
  f(val_samples, "val_samples", "Validation sequences; 0: no validation.").range(0, detail::kMostSamples);
  f(test_samples, "test_samples", "Test sequences, also used for predict; 0: none.").range(0, detail::kMostSamples);
  f(seed, "seed", "Chooses the data; independent of the run's seed.").at_least(0);
  f(batch_size, "batch_size", "Sequences in a training batch.").range(1, detail::kMostSamples);
  f(eval_batch_size, "eval_batch_size", "Sequences in a batch of validation, test and predict; auto: batch_size.")
      .range(1, detail::kMostSamples);
  loading.fields(f);
}

ReversalDataModule::ReversalDataModule(const Options& options)
    : TensorDataModule(TensorDataOptions{
          .batch_size = options.batch_size, .eval_batch_size = options.eval_batch_size, .loading = options.loading}),
      options_(options) {
  if (options.vocabulary < 2 || options.length < 1 || options.train_samples < 0 || options.val_samples < 0 ||
      options.test_samples < 0)
    throw ConfigError(
        cat("[data.ReversalDataModule] vocabulary must be at least 2, length at least 1 and numbers of samples not "
            "negative; got vocabulary ",
            options.vocabulary, ", length ", options.length, ", train_samples ", options.train_samples,
            ", val_samples ", options.val_samples, ", test_samples ", options.test_samples, "."));
}

void ReversalDataModule::setup(TrainerFn) {
  if (made_) return;
  const auto make = [&](int64_t stage, int64_t samples) -> std::optional<Batch> {
    if (samples == 0) return std::nullopt;
    Tensor source = random_tokens({.seed = static_cast<uint64_t>(options_.seed), .epoch = stage}, samples,
                                  options_.length, options_.vocabulary);
    Tensor target = source.flip(1);
    return Batch({Batch::Entry{"source", std::move(source)}, Batch::Entry{"target", std::move(target)}});
  };
  Sets sets;
  sets.train = make(0, options_.train_samples);
  sets.val = make(1, options_.val_samples);
  sets.test = make(2, options_.test_samples);
  sets.predict = sets.test;
  set_data(std::move(sets));
  made_ = true;
}

StateTree ReversalDataModule::exported_values() const {
  return StateTree::map({{"vocabulary", options_.vocabulary}, {"length", options_.length}});
}

[[maybe_unused]] static const bool registered_reversal = Registry<DataModule>::add<ReversalDataModule>(
    "ReversalDataModule", "Synthetic sequences of random tokens; the target is the source reversed.");

}  // namespace fulgur
