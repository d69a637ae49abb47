#include <ATen/ops/zeros.h>
#include <fulgur/core/contracts/registry.h>
#include <fulgur/optim/adam.h>
#include <fulgur/trainer/trainer.h>

#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <memory>

#include "point_classifier.h"
#include "point_data.h"
#include "weight_norm.h"

namespace {

// A folder for the logs and checkpoints of one test, which is removed at its end.
class Folder {
 public:
  explicit Folder(const char* name) : path_(std::filesystem::temp_directory_path() / name) {
    std::filesystem::remove_all(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("PointClassifier gives a score for each class") {
  PointClassifier classifier({.hidden = 8, .num_classes = 4});
  CHECK(classifier.forward(at::zeros({5, 2})).sizes() == at::IntArrayRef({5, 4}));
}

TEST_CASE("PointData has points for training and validation, always the same") {
  PointData data({.circles = 2, .points = 30});
  data.setup(fulgur::TrainerFn::fit);
  const auto loader = data.loaders(fulgur::RunningStage::train).at(0);
  CHECK(loader->samples() == 60);
  CHECK(data.loaders(fulgur::RunningStage::validate).at(0)->samples() == 20);
  CHECK(data.exported_values().at("num_classes").as_int() == 2);
}

TEST_CASE("a fit learns the circles, and WeightNorm logs") {
  const Folder folder("template_project_tests");
  fulgur::TrainerOptions options;
  options.max_epochs = 8;
  options.accelerator = "cpu";
  options.default_root_dir = folder.path();
  options.enable_progress_bar = false;
  fulgur::TrainerComponents components;
  components.seed = 1;
  components.optimizer = fulgur::Spec<fulgur::Optimizer>::of<fulgur::AdamW>("AdamW", {.lr = 0.01});
  components.add(std::make_shared<WeightNorm>(WeightNorm::Options{}));
  fulgur::Trainer trainer(options, components);
  trainer.prepare_process();
  const auto report =
      trainer.fit<PointClassifier>(PointClassifier::Options{}, std::make_shared<PointData>(PointData::Options{}));
  CHECK(report.metric("val_acc") > 0.9);
  CHECK(report.metric("weight_norm") > 0);
}
