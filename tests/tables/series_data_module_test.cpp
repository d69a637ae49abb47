#include "fulgur/tables/series_data_module.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <cmath>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace series_data_module_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using test::TemporaryFolder;
using test::write_text;

namespace {

/// 100 rows: `a` is the row's number, `b` ten times as much.
struct Series {
  TemporaryFolder folder;
  SeriesDataModule::Options options;
  Series() {
    std::string text = "time,a,b\n";
    for (int i = 0; i < 100; ++i)
      text += "day " + std::to_string(i) + "," + std::to_string(i) + "," + std::to_string(10 * i) + "\n";
    write_text(folder / "s.csv", text);
    options.path = folder / "s.csv";
    options.columns = {"a"};
    options.window = 4;
    options.horizon = 2;
    options.standardize = false;
    options.shuffle = false;
  }
  std::unique_ptr<SeriesDataModule> made() const {
    auto data = std::make_unique<SeriesDataModule>(options);
    data->setup(TrainerFn::fit);
    return data;
  }
};

std::pair<Tensor, Tensor> all_of(DataModule& data, RunningStage stage) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->configure(1, 0, 1);
  loaders[0]->start_epoch(0);
  std::vector<Tensor> inputs, targets;
  for (Batch batch; loaders[0]->next(batch);) {
    inputs.push_back(batch["input"].clone());
    targets.push_back(batch["target"].clone());
  }
  return {at::cat(inputs), at::cat(targets)};
}

}  // namespace

TEST_CASE("a sample is a window and the rows that follow it, inside its part") {
  Series series;
  const auto data = series.made();
  const auto [input, target] = all_of(*data, RunningStage::train);
  // 80 rows for training, [80, 90) for validation, [90, 100) for test.
  REQUIRE(input.sizes() == at::IntArrayRef({75, 4, 1}));
  REQUIRE(target.sizes() == at::IntArrayRef({75, 2, 1}));
  CHECK(at::equal(input[0].flatten(), at::arange(0, 4).to(at::kFloat)));
  CHECK(at::equal(target[0].flatten(), at::arange(4, 6).to(at::kFloat)));
  CHECK(at::equal(target[74].flatten(), at::arange(78, 80).to(at::kFloat)));
  const auto validated = all_of(*data, RunningStage::validate);
  REQUIRE(validated.first.size(0) == 5);
  CHECK(validated.first.min().item<float>() == 80);
  CHECK(validated.second.max().item<float>() == 89);
  CHECK(all_of(*data, RunningStage::predict).second.max().item<float>() == 99);
  const auto predict = data->loaders(RunningStage::predict);
  predict[0]->configure(1, 0, 1);
  predict[0]->start_epoch(0);
  Batch first;
  REQUIRE(predict[0]->next(first));
  CHECK(at::equal(first["index"].to(at::kFloat), first["target"].select(1, 0).flatten()));
  series.options.stride = 10;
  series.options.columns = {"b", "a"};
  series.options.targets = {"a"};
  const auto strided = series.made();
  const auto several = all_of(*strided, RunningStage::train);
  REQUIRE(several.first.sizes() == at::IntArrayRef({8, 4, 2}));
  REQUIRE(several.second.sizes() == at::IntArrayRef({8, 2, 1}));
  CHECK(several.first[1][0][0].item<float>() == 100);
  CHECK(several.first[1][0][1].item<float>() == 10);
  CHECK(several.second[1][0][0].item<float>() == 14);
  CHECK(all_of(*strided, RunningStage::validate).first.size(0) == 5);
  CHECK(strided->exported_values().at("num_inputs").as_int() == 2);
  CHECK(strided->exported_values().at("num_outputs").as_int() == 1);
  CHECK(strided->exported_values().at("horizon").as_int() == 2);
  series.options.shuffle = true;
  CHECK_FALSE(at::equal(all_of(*series.made(), RunningStage::train).first, several.first));
}

TEST_CASE("inputs are standardised by the training part, targets are in the units of the file") {
  Series series;
  series.options.standardize = true;
  series.options.targets = {"b"};
  const auto data = series.made();
  const auto [input, target] = all_of(*data, RunningStage::train);
  const double deviation = std::sqrt((80.0 * 80 - 1) / 12);
  CHECK(std::abs(input[0][0][0].item<double>() + 39.5 / deviation) < 1e-6);
  CHECK(target[0][0][0].item<float>() == 40);
  const StateTree facts = data->exported_values();
  CHECK(std::abs(facts.at("target_mean").as_list()[0].as_double() - 395) < 1e-9);
  CHECK(std::abs(facts.at("target_std").as_list()[0].as_double() - 10 * deviation) < 1e-9);

  // Those of a checkpoint are used instead, before and after setup.
  StateTree state = data->state();
  state["mean"] = StateTree(StateTree::List{1.0, 2.0});
  state["std"] = StateTree(StateTree::List{2.0, 4.0});
  for (const bool before : {true, false}) {
    SeriesDataModule loaded(series.options);
    if (before) loaded.load_state(state);
    loaded.setup(TrainerFn::test);
    if (!before) loaded.load_state(state);
    CHECK(all_of(loaded, RunningStage::train).first[0][1][0].item<float>() == 0);
    CHECK(all_of(loaded, RunningStage::train).first[0][3][0].item<float>() == 1);
    CHECK(loaded.exported_values().at("target_std").as_list()[0].as_double() == 4);
  }
  series.options.targets = {};
  SeriesDataModule other(series.options);
  CHECK_THAT(message_of<CheckpointError>([&] { other.load_state(state); }),
             ContainsSubstring("those of the checkpoint, a, b; got a"));
}

TEST_CASE("predict forecasts what follows the windows of a file, of which only the inputs are needed") {
  Series series;
  series.options.targets = {"b"};
  series.options.standardize = true;
  const StateTree state = series.made()->state();
  write_text(series.folder / "last.csv", "a\n95\n96\n97\n98\n99\n");
  series.options.predict_path = series.folder / "last.csv";
  const auto predicted = [](DataModule& data) {
    const auto loaders = data.loaders(RunningStage::predict);
    REQUIRE(loaders.size() == 1);
    loaders[0]->configure(1, 0, 1);
    loaders[0]->start_epoch(0);
    Batch batch;
    REQUIRE(loaders[0]->next(batch));
    CHECK_FALSE(batch.contains("target"));
    return batch;
  };
  SeriesDataModule data(series.options);
  data.setup(TrainerFn::predict);
  const Batch batch = predicted(data);
  // Rows 0 to 3, and rows 1 to 4, after which the future begins.
  REQUIRE(batch["input"].sizes() == at::IntArrayRef({2, 4, 1}));
  CHECK(at::equal(batch["index"], at::tensor({4, 5}, at::kLong)));
  const double deviation = std::sqrt((80.0 * 80 - 1) / 12);
  CHECK(std::abs(batch["input"][1][3][0].item<double>() - (99 - 39.5) / deviation) < 1e-5);
  CHECK(data.loaders(RunningStage::validate).size() == 1);

  // With the statistics of a checkpoint, the training file is not needed.
  std::filesystem::remove(series.options.path);
  SeriesDataModule loaded(series.options);
  loaded.load_state(state);
  loaded.setup(TrainerFn::predict);
  CHECK(at::equal(predicted(loaded)["input"], batch["input"]));
  CHECK(loaded.exported_values().at("num_outputs").as_int() == 1);
  StateTree other = state;
  other["mean"] = StateTree(StateTree::List{95.0, 0.0});
  other["std"] = StateTree(StateTree::List{1.0, 1.0});
  loaded.load_state(other);  // after setup
  CHECK(at::equal(predicted(loaded)["input"][0].flatten(), at::arange(4).to(at::kFloat)));

  write_text(series.folder / "last.csv", "a\n97\n98\n99\n");
  SeriesDataModule short_file(series.options);
  short_file.load_state(state);
  CHECK_THAT(message_of<DataError>([&] { short_file.setup(TrainerFn::predict); }),
             ContainsSubstring("predict_path must have the rows of a window, 4;") && ContainsSubstring("has 3"));
}

TEST_CASE("series that cannot be used are named") {
  Series series;
  const auto error = [&] { return message_of<DataError>([&] { series.made(); }); };
  series.options.window = 9;
  CHECK_THAT(error(), ContainsSubstring("window + horizon = 11 rows; the part for validation has 10 of 100"));
  series.options.window = 4;
  series.options.columns = {"time"};
  // The advice names options that exist.
  CHECK_THAT(error(), ContainsSubstring("column 'time'") && ContainsSubstring("got 'day 0'") &&
                          ContainsSubstring("leave the column out of data.init_args.columns") &&
                          !ContainsSubstring("blank_values"));
  series.options.columns = {"c"};
  CHECK_THAT(error(), ContainsSubstring("must have the column 'c'"));
  series.options.columns = {"a"};
  write_text(series.folder / "s.csv", "a\n1\n\n2\n");
  CHECK_THAT(error(), ContainsSubstring("line 3 of") && ContainsSubstring("gaps"));
  const auto refused = [&](auto change) {
    auto options = series.options;
    change(options);
    return message_of<ConfigError>([&] { SeriesDataModule data(options); });
  };
  CHECK_THAT(refused([](auto& o) { o.columns.clear(); }), ContainsSubstring("columns"));
  CHECK_THAT(refused([](auto& o) { o.columns = {"a", "a"}; }), ContainsSubstring("once"));
  CHECK_THAT(refused([](auto& o) { o.path.clear(); }), ContainsSubstring("path must name"));
  CHECK_THAT(refused([](auto& o) { o.val_fraction = 0.95; }), ContainsSubstring("train on"));
  CHECK_THAT(refused([](auto& o) { o.delimiter = ""; }), ContainsSubstring("delimiter"));
  CHECK(Registry<DataModule>::instance().find("SeriesDataModule") != nullptr);
}

}  // namespace series_data_module_test
