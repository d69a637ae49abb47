#include "fulgur/callbacks/prediction_writer.h"

#include "trainer/boring.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <set>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/text/text.h"
#include "support/expect_error.h"

namespace prediction_writer_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

std::map<std::string, Tensor> read(const fs::path& file) {
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, value] : read_safetensors(file).tensors) tensors[name] = value;
  return tensors;
}

PredictReport predict(const TemporaryFolder& folder, const std::vector<std::shared_ptr<Callback>>& callbacks,
                      int64_t samples = 10, std::shared_ptr<LightningModule> module = nullptr) {
  TrainerComponents components;
  for (const auto& callback : callbacks) components.callbacks.push_back(callback);
  at::manual_seed(3);
  if (!module) module = std::make_shared<SelfPlanned>();
  return Trainer(quiet(folder), components).predict(module, regression_data(8, samples), {});
}

std::shared_ptr<PredictionWriter> writer(WriteInterval interval, std::optional<fs::path> folder = {}) {
  return std::make_shared<PredictionWriter>(
      PredictionWriter::Options{.output_dir = std::move(folder), .write_interval = interval});
}

constexpr const char* kRun = "fulgur_logs/version_0";

}  // namespace

TEST_CASE("PredictionWriter batch: a file for each batch has its predictions and the indices of its samples") {
  const TemporaryFolder plain, folder;
  const Tensor expected = predict(plain, {}).loaders.at(0)["y"];
  const PredictReport report = predict(folder, {writer(WriteInterval::batch)});
  CHECK(report.samples == 10);
  CHECK(names_in(folder / kRun / "predictions") ==
        std::set<std::string>{"predictions-rank00-loader00-batch00000000.safetensors",
                              "predictions-rank00-loader00-batch00000001.safetensors",
                              "predictions-rank00-loader00-batch00000002.safetensors"});
  for (int64_t b = 0; b < 3; ++b) {
    const auto tensors =
        read(folder / kRun / "predictions" / cat("predictions-rank00-loader00-batch0000000", b, ".safetensors"));
    REQUIRE(tensors.size() == 2);
    const int64_t rows = b < 2 ? 4 : 2;
    CHECK(tensors.at("y").equal(expected.narrow(0, 4 * b, rows)));
    CHECK(tensors.at("sample_index").equal(at::arange(4 * b, 4 * b + rows)));
  }
  // The Trainer keeps nothing.
  CHECK(report.loaders.empty());
  CHECK(report.files.empty());
  CHECK_FALSE(fs::exists(folder / kRun / "predictions.safetensors"));
  CHECK(fs::exists(plain / kRun / "predictions.safetensors"));
}

TEST_CASE("PredictionWriter epoch: one file for each loader at the end, in a folder of your choice") {
  const TemporaryFolder plain, folder;
  const Tensor expected = predict(plain, {}).loaders.at(0)["y"];
  predict(folder, {writer(WriteInterval::epoch, folder / "mine" / "deep")});
  CHECK(names_in(folder / "mine" / "deep") == std::set<std::string>{"predictions-rank00-loader00.safetensors"});
  const auto tensors = read(folder / "mine" / "deep" / "predictions-rank00-loader00.safetensors");
  CHECK(tensors.at("y").equal(expected));
  CHECK(tensors.at("sample_index").equal(at::arange(10)));
  const TemporaryFolder both;
  predict(both, {writer(WriteInterval::batch_and_epoch)});
  CHECK(names_in(both / kRun / "predictions").size() == 4);
}

TEST_CASE("PredictionWriter: two loaders have their own files and indices") {
  const TemporaryFolder folder;
  TrainerComponents components;
  components.add(writer(WriteInterval::epoch, folder / "out"));
  at::manual_seed(3);
  const auto module = std::make_shared<SelfPlanned>();
  const auto loader = [](int64_t samples) {
    return std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(samples)),
                                        DataLoaderOptions{.batch_size = 4});
  };
  struct TwoLoaders : DataModule {
    Loaders all;
    Loaders predict_dataloader() override { return all; }
  };
  const auto data = std::make_shared<TwoLoaders>();
  data->all = {loader(5), loader(3)};
  Trainer(quiet(folder), components).predict(module, data, {});
  const auto first = read(folder / "out" / "predictions-rank00-loader00.safetensors");
  const auto second = read(folder / "out" / "predictions-rank00-loader01.safetensors");
  CHECK(first.at("sample_index").equal(at::arange(5)));
  CHECK(second.at("sample_index").equal(at::arange(3)));
  CHECK(second.at("y").size(0) == 3);
}

TEST_CASE("PredictionWriter: a class derived from it writes what it likes") {
  struct Own : PredictionWriter {
    using PredictionWriter::PredictionWriter;
    std::vector<std::string> calls;
    void write_on_batch_end(RunContext&, const Predicted& predicted, const Batch& batch, int64_t batch_idx,
                            int64_t loader_idx) override {
      calls.push_back(cat("batch ", batch_idx, " of ", loader_idx, ": ", predicted.outputs["y"].size(0), " of ",
                          batch.size(), " from ", predicted.sample_indices[0].item<int64_t>()));
    }
    void write_on_epoch_end(RunContext&, const std::vector<std::vector<Predicted>>& loaders) override {
      calls.push_back(cat("end: ", loaders.size(), " loader, ", loaders[0].size(), " batches"));
    }
  };
  const TemporaryFolder folder;
  const auto own = std::make_shared<Own>(
      PredictionWriter::Options{.output_dir = folder / "own", .write_interval = WriteInterval::batch_and_epoch});
  predict(folder, {own}, 6);
  CHECK(own->calls == std::vector<std::string>{"batch 0 of 0: 4 of 4 from 0", "batch 1 of 0: 2 of 2 from 4",
                                               "end: 1 loader, 2 batches"});
  CHECK(names_in(folder / "own").empty());
}

namespace {

/// Goes wrong in the third batch.
struct WrongOutputs : SelfPlanned {
  std::string kind;
  Outputs predict_step(const Batch& batch, int64_t i, int64_t) override {
    const Tensor y = forward(batch[0]);
    if (i < 2) return {{"y", y}};
    if (kind == "throw") throw Error("[test] trouble.");
    if (kind == "rows") return {{"y", y.narrow(0, 0, 1)}};
    if (kind == "name") return {{"z", y}};
    if (kind == "more") return {{"y", y}, {"z", y}};
    if (kind == "less") return {};
    if (kind == "shape") return {{"y", y.narrow(1, 0, 1)}};
    if (kind == "reserved") return {{"sample_index", y}};
    return {{"y", y.to(at::kDouble)}};
  }
};

}  // namespace

TEST_CASE("PredictionWriter: after an exception, the files of complete batches remain, and no other") {
  const auto module = std::make_shared<WrongOutputs>();
  module->kind = "throw";
  const TemporaryFolder folder;
  CHECK_THROWS_AS(predict(folder, {writer(WriteInterval::batch, folder / "out")}, 12, module), Error);
  CHECK(names_in(folder / "out").size() == 2);
  CHECK_THROWS_AS(predict(folder, {writer(WriteInterval::epoch, folder / "end")}, 12, module), Error);
  CHECK(names_in(folder / "end").empty());
}

TEST_CASE("PredictionWriter: outputs that do not fit are refused") {
  const auto error = [](const std::string& kind, WriteInterval interval) {
    const auto module = std::make_shared<WrongOutputs>();
    module->kind = kind;
    const TemporaryFolder folder;
    return message_of<Error>([&] { predict(folder, {writer(interval)}, 12, module); });
  };
  CHECK_THAT(error("rows", WriteInterval::batch),
             ContainsSubstring("output 'y' must have one row per sample (4); got 1"));
  CHECK_THAT(error("reserved", WriteInterval::batch),
             ContainsSubstring("the name 'sample_index' belongs to the writer"));
  CHECK_THAT(error("name", WriteInterval::epoch), ContainsSubstring("'z' (Float [2] in a row) differs"));
  CHECK_THAT(error("more", WriteInterval::epoch), ContainsSubstring("'z' (Float [2] in a row) differs"));
  CHECK_THAT(error("less", WriteInterval::epoch), ContainsSubstring("'y', which the first batch had, is missing"));
  CHECK_THAT(error("shape", WriteInterval::epoch), ContainsSubstring("'y' (Float [1] in a row) differs"));
  CHECK_THAT(error("dtype", WriteInterval::epoch), ContainsSubstring("'y' (Double [2] in a row) differs"));
  // In files of their own, batches may differ.
  const auto module = std::make_shared<WrongOutputs>();
  module->kind = "name";
  const TemporaryFolder folder;
  CHECK_NOTHROW(predict(folder, {writer(WriteInterval::batch)}, 12, module));
}

TEST_CASE("PredictionWriter: a folder with predictions of another run is refused, and keeps them") {
  const TemporaryFolder folder;
  predict(folder, {writer(WriteInterval::epoch, folder / "out")});
  const auto before = read_text(folder / "out" / "predictions-rank00-loader00.safetensors");
  CHECK_THAT(message_of<ConfigError>([&] { predict(folder, {writer(WriteInterval::batch, folder / "out")}); }),
             ContainsSubstring("must not have predictions of another run"));
  CHECK(names_in(folder / "out").size() == 1);
  CHECK_FALSE(fs::exists(folder / "fulgur_logs/version_1"));  // it is refused before there is a run folder
  CHECK(read_text(folder / "out" / "predictions-rank00-loader00.safetensors") == before);
}

TEST_CASE("PredictionWriter: a folder that cannot be created is refused, with what to do") {
  const TemporaryFolder folder;
  write_text(folder / "file", "no folder");
  CHECK_THAT(message_of<ConfigError>([&] { predict(folder, {writer(WriteInterval::batch, folder / "file" / "out")}); }),
             ContainsSubstring("output_dir must be a folder that can be created; ") &&
                 ContainsSubstring("Choose another folder."));
}

TEST_CASE("PredictionWriter: fast_dev_run and barebones check the outputs and leave nothing behind") {
  const bool barebones = GENERATE(false, true), own_folder = GENERATE(false, true);
  const WriteInterval interval = GENERATE(WriteInterval::batch, WriteInterval::epoch);
  CAPTURE(barebones, own_folder, enum_text(interval));
  const TemporaryFolder folder;
  const auto predict_trial = [&](const std::shared_ptr<LightningModule>& module) {
    TrainerOptions options = quiet(folder);
    if (barebones)
      options.barebones = true;
    else
      options.fast_dev_run.batches = 3;
    TrainerComponents components;
    components.add(writer(interval, own_folder ? std::optional(folder / "out") : std::nullopt));
    return Trainer(options, components).predict(module, regression_data(8, 12), {});
  };
  CHECK(predict_trial(std::make_shared<SelfPlanned>()).samples == 12);
  CHECK(names_in(folder.path()).empty());
  const auto wrong = std::make_shared<WrongOutputs>();
  wrong->kind = "rows";
  CHECK_THAT(message_of<Error>([&] { predict_trial(wrong); }), ContainsSubstring("must have one row per sample (4)"));
}

}  // namespace prediction_writer_test
