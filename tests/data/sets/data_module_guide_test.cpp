// The data module of docs/custom_components.md.
#include <ATen/ops/linspace.h>
#include <fulgur/core/contracts/data_module.h>
#include <fulgur/core/contracts/registry.h>
#include <fulgur/data/data_loader.h>
#include <fulgur/data/loading_options.h>
#include <fulgur/data/sample_dataset.h>

#include <filesystem>

#include "support/temporary_folder.h"

// Last: LibTorch defines its own CHECK.
#include <catch2/catch_test_macros.hpp>

namespace data_module_guide_test {

/// Waves of 32 values; the class is the number of periods.
class Waves final : public fulgur::SampleDataset {
 public:
  explicit Waves(int64_t count) : count_(count) {}
  int64_t size() const override { return count_; }
  fulgur::Sample get(int64_t index, const fulgur::SampleContext&) const override {
    const int64_t periods = index % 3;
    const fulgur::Tensor wave = at::linspace(0, 6.28 * static_cast<double>(periods), 32).sin();
    return {{"wave", wave}, {"label", periods}, {"file", "wave " + std::to_string(index)}};
  }

 private:
  int64_t count_;
};

class WaveData final : public fulgur::DataModule {
 public:
  struct Options {
    int64_t samples = 96;
    int64_t batch_size = 16;
    fulgur::LoadingOptions loading = {};  // num_workers and others
    void fields(fulgur::Fields& f) {
      f(samples, "samples", "Waves for training.").at_least(1);
      f(batch_size, "batch_size", "Waves in a batch.").at_least(1);
      loading.fields(f);
    }
  };
  explicit WaveData(const Options& options) : options_(options) {}

  void setup(fulgur::TrainerFn fn) override {
    if (fn == fulgur::TrainerFn::fit) train_ = std::make_shared<Waves>(options_.samples);
    other_ = std::make_shared<Waves>(12);
  }
  fulgur::Loaders train_dataloader() override { return loaders_of(train_, /*shuffle=*/true); }
  fulgur::Loaders val_dataloader() override { return loaders_of(other_, /*shuffle=*/false); }
  fulgur::Loaders predict_dataloader() override { return loaders_of(other_, /*shuffle=*/false); }
  fulgur::StateTree exported_values() const override {
    return fulgur::StateTree::map({{"num_features", 32}, {"num_classes", 3}});
  }

 private:
  fulgur::Loaders loaders_of(const std::shared_ptr<Waves>& waves, bool shuffle) const {
    fulgur::DataLoaderOptions how{.batch_size = options_.batch_size, .shuffle = shuffle};
    options_.loading.apply(how);
    return {std::make_shared<fulgur::DataLoader>(waves, how)};
  }
  Options options_;
  std::shared_ptr<Waves> train_, other_;
};
FULGUR_REGISTER(fulgur::DataModule, WaveData, "Waves of up to two periods.");

TEST_CASE("the data module of the guide works, and the guide has its text") {
  WaveData data({.samples = 20, .batch_size = 8});
  data.setup(fulgur::TrainerFn::fit);
  const auto loader = data.loaders(fulgur::RunningStage::train).at(0);
  loader->configure(1, 0, 1);
  CHECK(loader->samples() == 20);
  const auto predict = data.loaders(fulgur::RunningStage::predict).at(0);
  predict->configure(1, 0, 1);
  predict->start_epoch(0);
  fulgur::Batch batch;
  REQUIRE(predict->next(batch));
  CHECK(batch["wave"].size(1) == 32);
  CHECK(batch.strings("file").at(5) == "wave 5");
  CHECK(data.exported_values().at("num_classes").as_int() == 3);

  const std::string source = fulgur::test::read_text(__FILE__);
  const std::string page =
      fulgur::test::read_text(std::filesystem::path(__FILE__).parent_path() / "../../../docs/custom_components.md");
  const size_t begin = source.find("/// Waves of 32 values"), end = source.find("TEST_CASE(\"the data module of");
  CHECK(page.find(source.substr(begin, end - begin - 1)) != std::string::npos);
}

}  // namespace data_module_guide_test
