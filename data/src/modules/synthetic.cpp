#include "fulgur/data/synthetic.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>

#include <algorithm>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "loading/option_bounds.h"

namespace fulgur {

void SyntheticDataModule::Options::fields(Fields& f) {
  f(num_train, "num_train", "Training samples.").range(1, detail::kMostSamples);
  f(num_val, "num_val", "Validation samples; 0: no validation.").range(0, detail::kMostSamples);
  f(num_test, "num_test", "Test samples, also used for predict; 0: none.").range(0, detail::kMostSamples);
  f(num_classes, "num_classes", "Number of classes.").range(2, detail::kMostSamples);
  f(shape, "shape", "Shape of a sample.").range(1, detail::kMostSamples).min_items(1);
  f(noise, "noise",
    "Standard deviation of a sample around its class's prototype, whose values have standard deviation 1.")
      .at_least(0);
  f(seed, "seed", "Chooses the data; independent of the run's seed.").at_least(0);
  f(batch_size, "batch_size", "Samples in a batch.").range(1, detail::kMostSamples);
  loading.fields(f);
}

SyntheticDataModule::SyntheticDataModule(const Options& options)
    : TensorDataModule(TensorDataOptions{.batch_size = options.batch_size, .loading = options.loading}),
      options_(options) {
  if (options.num_classes < 1 || options.num_train < 0 || options.num_val < 0 || options.num_test < 0)
    throw ConfigError(cat("[data.SyntheticDataModule] numbers must not be negative; got num_classes ",
                          options.num_classes, ", num_train ", options.num_train, ", num_val ", options.num_val,
                          ", num_test ", options.num_test, "."));
  if (const auto none = std::ranges::find_if(options.shape, [](int64_t size) { return size < 1; });
      none != options.shape.end() || options.shape.empty())
    throw ConfigError(cat("[data.SyntheticDataModule] shape must have at least one size, each at least 1; ",
                          options.shape.empty() ? "it is empty." : cat("one is ", *none, ".")));
  int64_t bytes = sizeof(float);
  bool overflow = __builtin_mul_overflow(
      bytes, std::max({options.num_train, options.num_val, options.num_test, options.num_classes}), &bytes);
  for (const int64_t size : options.shape) overflow |= __builtin_mul_overflow(bytes, size, &bytes);
  if (overflow)
    throw ConfigError(
        "[data.SyntheticDataModule] the samples must fit into memory; their number times their shape exceeds 2^63 "
        "bytes. Lower num_train, num_val, num_test, num_classes or shape.");
}

void SyntheticDataModule::setup(TrainerFn) {
  if (made_) return;
  try {
    make_samples();
  } catch (const c10::Error&) {
    throw DataError(cat("[data.SyntheticDataModule] the samples must fit into memory; num_train ", options_.num_train,
                        ", num_val ", options_.num_val, ", num_test ", options_.num_test, " and num_classes ",
                        options_.num_classes, " of shape ", shape_text(options_.shape), " do not. Lower one of them."));
  }
  made_ = true;
}

void SyntheticDataModule::make_samples() {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(options_.seed));
  std::vector<int64_t> sizes = {options_.num_classes};
  sizes.insert(sizes.end(), options_.shape.begin(), options_.shape.end());
  const Tensor prototypes = at::randn(sizes, generator);
  const auto make = [&](int64_t count) -> std::optional<Batch> {
    if (count == 0) return std::nullopt;
    sizes[0] = count;
    Tensor label = at::arange(count, at::kLong).remainder_(options_.num_classes);
    Tensor image = at::randn(sizes, generator).mul_(options_.noise).add_(prototypes.index_select(0, label));
    return Batch({Batch::Entry{"image", std::move(image)}, Batch::Entry{"label", std::move(label)}});
  };
  Sets sets;
  sets.train = make(options_.num_train);
  sets.val = make(options_.num_val);
  sets.test = make(options_.num_test);
  sets.predict = sets.test;
  set_data(std::move(sets));
}

StateTree SyntheticDataModule::exported_values() const {
  int64_t features = 1;
  for (const int64_t size : options_.shape) features *= size;
  StateTree values = StateTree::map({{"num_classes", options_.num_classes}, {"num_features", features}});
  if (options_.shape.size() == 3) {
    values["channels"] = options_.shape[0];
    values["height"] = options_.shape[1];
    values["width"] = options_.shape[2];
  }
  return values;
}

[[maybe_unused]] static const bool registered_synthetic = Registry<DataModule>::add<SyntheticDataModule>(
    "SyntheticDataModule", "A synthetic classification task: class prototypes plus noise.");

}  // namespace fulgur
