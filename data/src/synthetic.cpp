#include "fulgur/data/synthetic.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>

#include "fulgur/core/errors.h"
#include "fulgur/core/registry.h"
#include "fulgur/core/text.h"

namespace fulgur {

void SyntheticDataModule::Options::fields(Fields& f) {
  f(num_train, "num_train", "Training samples.").at_least(1);
  f(num_val, "num_val", "Validation samples; 0: no validation.").at_least(0);
  f(num_test, "num_test", "Test samples, also used for predict; 0: none.").at_least(0);
  f(num_classes, "num_classes", "Number of classes.").at_least(2);
  f(shape, "shape", "Shape of a sample.").at_least(1).min_items(1);
  f(noise, "noise", "Standard deviation of a sample around its class's prototype, whose values have 1.").at_least(0);
  f(seed, "seed", "Chooses the data; independent of the run's seed.").at_least(0);
  f(batch_size, "batch_size", "Samples in a batch.").at_least(1);
  loading.fields(f);
}

SyntheticDataModule::SyntheticDataModule(const Options& options)
    : TensorDataModule(TensorDataOptions{.batch_size = options.batch_size, .loading = options.loading}), options_(options) {
  if (options.num_classes < 1 || options.num_train < 0 || options.num_val < 0 || options.num_test < 0)
    throw ConfigError(cat("[data.SyntheticDataModule] numbers must not be negative; got num_classes ", options.num_classes, ", num_train ",
                          options.num_train, ", num_val ", options.num_val, ", num_test ", options.num_test, "."));
}

void SyntheticDataModule::setup(Verb) {
  if (made_) return;
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
  made_ = true;
}

StateTree SyntheticDataModule::facts() const {
  int64_t features = 1;
  for (const int64_t size : options_.shape) features *= size;
  StateTree facts = StateTree::map({{"num_classes", options_.num_classes}, {"num_features", features}});
  if (options_.shape.size() == 3) {
    facts["channels"] = options_.shape[0];
    facts["height"] = options_.shape[1];
    facts["width"] = options_.shape[2];
  }
  return facts;
}

[[maybe_unused]] static const bool registered =
    Registry<DataModule>::add<SyntheticDataModule>("SyntheticDataModule", "A made classification task: class prototypes plus noise.");

}  // namespace fulgur
