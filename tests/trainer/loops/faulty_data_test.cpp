// F38 and F39 through the Trainer: data that goes wrong in the middle of a fit.
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "data/file_dataset.h"
#include "fulgur/core/text/errors.h"

namespace faulty_data_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Learns from files of four bytes, and does something to them after its third step.
struct Reads : LightningModule {
  torch::nn::Linear layer{nullptr};
  std::function<void()> after_three;
  int64_t steps = 0;
  explicit Reads(std::function<void()> f) : after_three(std::move(f)) {
    layer = register_module("layer", torch::nn::Linear(4, 1));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return layer->forward(batch[0].to(at::kFloat)).square().mean();
  }
  OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 1e-5}); }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
    if (++steps == 3) after_three();
  }
};

}  // namespace

TEST_CASE("F38, F39: a file that is deleted or changed during a fit ends it as a data error that names it") {
  struct Case {
    std::function<void(const std::filesystem::path&)> harm;
    std::string text;
  };
  const std::vector<Case> cases = {
      {[](const auto& file) { std::filesystem::remove(file); }, "No such file"},
      {[](const auto& file) { write_text(file, "longer than it was"); }, "[18]"},
  };
  for (const Case& c : cases) {
    for (const int64_t workers : {0, 1}) {
      const TemporaryFolder folder, files;
      write_files(files.path(), 20);
      // Far enough after the third batch that no worker has read it.
      auto module = std::make_shared<Reads>([&] { c.harm(files / file_name(15)); });
      auto loader = std::make_shared<DataLoader>(
          std::make_shared<FileDataset>(files.path(), 20),
          DataLoaderOptions{.batch_size = 2, .name = "train", .num_workers = workers, .prefetch_factor = 1});
      std::string message;
      try {
        Trainer(quiet(folder)).fit(module, DataSource(loader));
      } catch (const DataError& error) {
        CHECK(static_cast<int>(error.code()) == 3);
        message = error.what();
      }
      CHECK_THAT(message, ContainsSubstring("sample 15") && ContainsSubstring(c.text));
      if (c.text == "No such file") CHECK_THAT(message, ContainsSubstring((files / file_name(15)).string()));
      CHECK(module->steps == 7);
    }
  }
}

}  // namespace faulty_data_test
