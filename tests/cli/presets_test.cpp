// Each config of configs/ is run on a few batches of the real data.
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "process.h"

using namespace fulgur::test;
using Json = nlohmann::json;

namespace {

std::filesystem::path configs() { return FULGUR_CONFIGS; }

std::set<std::string> keys(const Json& object) {
  std::set<std::string> names;
  for (const auto& [key, value] : object.items()) names.insert(key);
  return names;
}

}  // namespace

TEST_CASE("every preset trains and tests; classifiers log the agreed names") {
  size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(configs())) {
    if (entry.path().extension() != ".yaml") continue;
    ++found;
    CAPTURE(entry.path());
    const TemporaryFolder folder;
    const std::vector<std::string> few{"--config", entry.path().string(), "--trainer.default_root_dir", folder.path().string(),
                                       "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "4", "--trainer.limit_val_batches", "1",
                                       "--trainer.limit_test_batches", "1", "--trainer.log_every_n_steps", "2"};
    std::vector<std::string> fit{"fit", "--report", (folder / "fit.json").string()};
    fit.insert(fit.end(), few.begin(), few.end());
    const Finished fitted = trainer(fit);
    INFO(fitted.err);
    if (fitted.exit_code == 3 && says(fitted.err, "dataset-fashion-mnist"))
      SKIP("Fashion-MNIST is not installed (Debian package dataset-fashion-mnist)");
    REQUIRE(fitted.exit_code == 0);
    std::vector<std::string> test{"test", "--ckpt_path", "best", "--report", (folder / "test.json").string()};
    test.insert(test.end(), few.begin(), few.end());
    const Finished tested = trainer(test);
    INFO(tested.err);
    REQUIRE(tested.exit_code == 0);
    const auto fit_names = keys(Json::parse(read_text(folder / "fit.json"))["metrics"]);
    const auto test_names = keys(Json::parse(read_text(folder / "test.json"))["metrics"]);
    const bool classifier = entry.path().stem() != "autoencoder";
    CHECK(fit_names == (classifier ? std::set<std::string>{"train_loss", "val_loss", "val_acc"} : std::set<std::string>{"train_loss", "val_loss"}));
    CHECK(test_names == (classifier ? std::set<std::string>{"test_loss", "test_acc"} : std::set<std::string>{"test_loss"}));
  }
  CHECK(found >= 3);
}

TEST_CASE("last and best are those of the newest run that has them, or of the run whose config is given") {
  const TemporaryFolder folder;
  const std::vector<std::string> base{"--config", (configs() / "fashion_mnist_mlp.yaml").string(), "--data", "SyntheticDataModule",
                                      "--data.num_train", "32", "--data.num_val", "16", "--data.num_test", "16", "--data.batch_size", "8",
                                      "--trainer.max_epochs", "1"};
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), base.begin(), base.end());
    return trainer(arguments, {.folder = folder.path()});
  };
  for (int i = 0; i < 2; ++i) {
    const Finished fitted = run({"fit"});
    INFO(fitted.err);
    REQUIRE(fitted.exit_code == 0);
  }
  const Finished evaluated = run({"test", "--ckpt_path", "last"});  // takes version_2, which has no checkpoint
  CHECK(says(evaluated.err, "version_1/checkpoints"));
  CHECK(says(run({"test", "--ckpt_path", "last"}).err, "version_1/checkpoints"));
  const Finished own = trainer({"test", "--config", "fulgur_logs/version_0/config.yaml", "--ckpt_path", "best"}, {.folder = folder.path()});
  INFO(own.err);
  CHECK(own.exit_code == 0);
  CHECK(says(own.err, "version_0/checkpoints"));
}
