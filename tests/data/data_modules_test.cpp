#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <set>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/synthetic.h"
#include "fulgur/data/tensor_data_module.h"
#include "support/expect_error.h"

namespace data_modules_test {

using namespace fulgur;

namespace {

Batch first_batch(DataModule& data, RunningStage stage) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  Batch batch;
  loaders[0]->start_epoch(0);
  REQUIRE(loaders[0]->next(batch));
  return batch;
}

}  // namespace

TEST_CASE("a tensor data module has loaders for the sets it was given") {
  TensorDataModule data(
      {.train = Batch({Batch::Entry{"x", at::arange(10)}}), .test = Batch({Batch::Entry{"x", at::arange(6)}})},
      {.batch_size = 4, .eval_batch_size = 6});
  CHECK(data.loaders(RunningStage::train)[0]->size() == 3);
  CHECK(data.loaders(RunningStage::train)[0]->shuffles());
  CHECK(data.loaders(RunningStage::validate).empty());
  CHECK(data.loaders(RunningStage::predict).empty());
  CHECK_FALSE(data.loaders(RunningStage::test)[0]->shuffles());
  CHECK(at::equal(first_batch(data, RunningStage::test)["x"], at::arange(6)));
}

TEST_CASE("F38: an empty training set of a tensor data module is an error") {
  TensorDataModule data({.train = Batch({at::zeros({0, 3})})});
  CHECK_THAT(test::message_of<DataError>([&] { data.loaders(RunningStage::train); }),
             Catch::Matchers::ContainsSubstring("train set has 0 batches"));
}

TEST_CASE("synthetic data is a pure function of its options") {
  SyntheticDataModule::Options options;
  options.shape = {3, 8, 6};
  options.num_classes = 4;
  SyntheticDataModule a(options), b(options);
  options.seed = 1;
  SyntheticDataModule other(options);
  for (DataModule* data :
       {static_cast<DataModule*>(&a), static_cast<DataModule*>(&b), static_cast<DataModule*>(&other)})
    data->setup(TrainerFn::fit);
  const Batch batch = first_batch(a, RunningStage::train);
  CHECK(batch["image"].sizes() == at::IntArrayRef({64, 3, 8, 6}));
  CHECK(at::equal(batch["image"], first_batch(b, RunningStage::train)["image"]));
  CHECK_FALSE(at::equal(batch["image"], first_batch(other, RunningStage::train)["image"]));
  CHECK_FALSE(at::equal(batch["image"], first_batch(a, RunningStage::validate)["image"]));
  CHECK(batch["label"].min().item<int64_t>() == 0);
  CHECK(batch["label"].max().item<int64_t>() == 3);
  CHECK(a.loaders(RunningStage::validate)[0]->samples() == 256);
  CHECK(a.exported_values().at("num_features").as_int() == 144);
  CHECK(a.exported_values().at("channels").as_int() == 3);
  CHECK(a.exported_values().at("width").as_int() == 6);
}

TEST_CASE("without noise each synthetic sample is its class's prototype") {
  SyntheticDataModule::Options options;
  options.noise = 0;
  options.num_classes = 2;
  options.shape = {5};
  options.num_val = 0;
  SyntheticDataModule data(options);
  data.setup(TrainerFn::fit);
  CHECK(data.loaders(RunningStage::validate).empty());
  CHECK_FALSE(data.exported_values().contains("channels"));
  const Batch batch = first_batch(data, RunningStage::test);
  CHECK(at::equal(batch["image"][0], batch["image"][2]));
  CHECK_FALSE(at::equal(batch["image"][0], batch["image"][1]));
}

TEST_CASE("the built-in data modules are registered") {
  for (const char* name : {"FashionMnistDataModule", "MnistDataModule", "SyntheticDataModule"})
    CHECK(Registry<DataModule>::instance().find(name) != nullptr);
  const auto& info = Registry<DataModule>::instance().get("SyntheticDataModule");
  CHECK(std::static_pointer_cast<DataModule>(info.create(*info.make_options()))
            ->exported_values()
            .at("num_features")
            .as_int() == 784);
}

TEST_CASE("data modules pass their loading options on") {
  const auto& info = Registry<DataModule>::instance().get("SyntheticDataModule");
  auto options = info.make_options();
  Fields fields;
  options->fields(fields);
  std::set<std::string> names;
  for (const Field& field : fields.all()) names.insert(field.name);
  for (const char* name : {"num_workers", "prefetch_factor", "pin_memory", "timeout_s"}) CHECK(names.count(name) == 1);

  SyntheticDataModule::Options with;
  with.loading.num_workers = 2;
  with.loading.timeout_s = 60;
  SyntheticDataModule data(with), plain(SyntheticDataModule::Options{});
  data.setup(TrainerFn::fit);
  plain.setup(TrainerFn::fit);
  const auto loader = data.loaders(RunningStage::train).at(0);
  CHECK(dynamic_cast<DataLoader&>(*loader).num_workers() == 2);
  CHECK(at::equal(first_batch(data, RunningStage::train)["image"], first_batch(plain, RunningStage::train)["image"]));
}

TEST_CASE("loading options reach a loader of a custom data module") {
  LoadingOptions loading;
  Fields fields;
  loading.fields(fields);
  Problems problems;
  ConfigNode node = ConfigNode::map();
  node.set("num_workers", ConfigNode::integer(3));
  node.set("prefetch_factor", ConfigNode::integer(5));
  node.set("pin_memory", ConfigNode::boolean(true));
  node.set("timeout_s", ConfigNode::number(2.5));
  fields.read(node, problems, "data.init_args");
  INFO(problems.report());
  REQUIRE(problems.items().empty());
  DataLoaderOptions options{.num_workers = int64_t{9}, .prefetch_factor = 9, .timeout_s = 9};
  loading.apply(options);
  CHECK(options.num_workers.value == 3);
  CHECK(options.prefetch_factor == 5);
  CHECK(options.pin_memory.value == true);
  CHECK(options.timeout_s == 2.5);
}

TEST_CASE("options of a tensor data module reach its loaders") {
  const Batch ten({Batch::Entry{"x", at::arange(10)}});
  TensorDataOptions options{.batch_size = 4, .eval_batch_size = int64_t{3}, .shuffle = false, .drop_last = true};
  options.loading.num_workers = int64_t{2};
  TensorDataModule data({.train = ten, .val = ten, .predict = ten}, options);
  const auto train = data.loaders(RunningStage::train).at(0);
  CHECK(train->size() == 2);
  CHECK_FALSE(train->shuffles());
  CHECK(at::equal(first_batch(data, RunningStage::train)["x"], at::arange(4)));
  for (const RunningStage stage : {RunningStage::validate, RunningStage::predict})
    CHECK(data.loaders(stage).at(0)->size() == 4);  // 3, 3, 3, 1: evaluation drops none
  for (const RunningStage stage : {RunningStage::train, RunningStage::validate, RunningStage::predict})
    CHECK(dynamic_cast<DataLoader&>(*data.loaders(stage).at(0)).num_workers() == 2);
}

}  // namespace data_modules_test
