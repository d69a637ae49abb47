#include "fulgur/data/reversal.h"

#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/data/data_loader.h"
#include "support/expect_error.h"

namespace reversal_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

namespace {

ReversalDataModule::Options small() {
  return {.vocabulary = 5, .length = 6, .train_samples = 40, .val_samples = 20, .test_samples = 10, .batch_size = 16};
}

/// Sources of a stage, as its loader gives them.
Tensor sources(const ReversalDataModule::Options& options, RunningStage stage) {
  ReversalDataModule data(options);
  data.setup(TrainerFn::fit);
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->start_epoch(0);
  std::vector<Tensor> all;
  for (Batch batch; loaders[0]->next(batch);) {
    CHECK((batch["target"].equal(batch["source"].flip(1))));
    CHECK(batch["source"].scalar_type() == at::kLong);
    all.push_back(batch["source"].clone());
  }
  return at::cat(all);
}

}  // namespace

TEST_CASE("ReversalDataModule makes sequences of tokens and their reversal") {
  const Tensor test = sources(small(), RunningStage::test);
  CHECK((test.sizes() == at::IntArrayRef({10, 6})));
  CHECK((sources(small(), RunningStage::train).sizes() == at::IntArrayRef({40, 6})));
  CHECK((sources(small(), RunningStage::predict).equal(test)));
  // All tokens but that of the beginning, about as often: 24,000 draws among 4 have a deviation of 67.
  ReversalDataModule::Options many = small();
  many.val_samples = 4000;
  const Tensor counts = at::bincount(sources(many, RunningStage::validate).reshape(-1));
  REQUIRE(counts.size(0) == 5);
  CHECK(counts[0].item<int64_t>() == 0);
  CHECK(counts.narrow(0, 1, 4).sub(6000).abs().max().item<int64_t>() < 400);
}

TEST_CASE("a sequence of ReversalDataModule is a function of seed, stage and index alone") {
  const Tensor val = sources(small(), RunningStage::validate), test = sources(small(), RunningStage::test);
  CHECK((sources(small(), RunningStage::validate).equal(val)));
  CHECK_FALSE((val.narrow(0, 0, 10).equal(test)));
  ReversalDataModule::Options other = small();
  other.train_samples = 7;
  other.val_samples = 35;
  CHECK((sources(other, RunningStage::validate).narrow(0, 0, 20).equal(val)));
  CHECK((sources(other, RunningStage::test).equal(test)));
  other.seed = 1;
  CHECK_FALSE((sources(other, RunningStage::test).equal(test)));
  // The known values hold for any machine.
  const Tensor known =
      sources({.vocabulary = 11, .length = 4, .train_samples = 1, .val_samples = 0, .test_samples = 2, .seed = 3},
              RunningStage::test);
  CHECK((known.equal(at::tensor({8, 10, 1, 5, 10, 9, 8, 4}, at::kLong).view({2, 4}))));
}

TEST_CASE("options of ReversalDataModule act") {
  ReversalDataModule::Options options = small();
  options.val_samples = 0;
  options.test_samples = 0;
  options.eval_batch_size = int64_t{7};
  options.loading.num_workers = 2;
  ReversalDataModule data(options);
  data.setup(TrainerFn::fit);
  CHECK(data.loaders(RunningStage::validate).empty());
  CHECK(data.loaders(RunningStage::test).empty());
  const auto train = data.loaders(RunningStage::train).at(0);
  CHECK(train->shuffles());
  CHECK(train->size() == 3);
  CHECK(dynamic_cast<DataLoader&>(*train).num_workers() == 2);
  CHECK(data.exported_values().at("vocabulary").as_int() == 5);
  CHECK(data.exported_values().at("length").as_int() == 6);
  options.val_samples = 20;
  ReversalDataModule with(options);
  with.setup(TrainerFn::fit);
  CHECK(with.loaders(RunningStage::validate).at(0)->size() == 3);  // 7, 7, 6
  CHECK_FALSE(with.loaders(RunningStage::validate).at(0)->shuffles());
  CHECK(Registry<DataModule>::instance().find("ReversalDataModule") != nullptr);
  options.vocabulary = 1;
  CHECK_THAT(test::message_of<ConfigError>([&] { ReversalDataModule none(options); }),
             ContainsSubstring("vocabulary must be at least 2") && ContainsSubstring("got vocabulary 1"));
}

}  // namespace reversal_test
