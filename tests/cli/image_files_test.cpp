#include <catch2/catch_test_macros.hpp>

#include "process.h"

namespace image_files_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

constexpr const char* kConfig = R"(
seed_everything: 1
trainer: {max_epochs: 2, num_threads: 1, enable_model_summary: false}
model: {class_path: MlpClassifier, init_args: {hidden: [8]}}
data:
  class_path: ImageFolderDataModule
  init_args: {train_dir: train, val_dir: val, batch_size: 4, num_workers: 2, transforms: [ToFloat], eval_transforms: [ToFloat]}
optimizer: {class_path: SGD, init_args: {lr: 0.01}}
link: {model.init_args.in_features: data.num_features, model.init_args.num_classes: data.num_classes}
)";

/// A config, and classes a and b with images of one size.
struct ImageRun : TemporaryFolder {
  ImageRun() {
    write_text(*this / "c.yaml", kConfig);
    for (const char* part : {"train", "val"})
      for (const char* name : {"a", "b"}) {
        fs::create_directories(*this / part / name);
        for (int i = 0; i < 5; ++i)
          fs::copy_file(fs::path(FULGUR_IMAGE_FIXTURES) / (i % 2 == 0 ? "colour.png" : "alpha.png"),
                        *this / part / name / (std::to_string(i) + ".png"));
      }
  }
  Finished operator()(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin() + 1, {"-c", "c.yaml"});
    return trainer(arguments, {.folder = path()});
  }
};

}  // namespace

TEST_CASE("images in folders train a model, and a checkpoint knows its classes") {
  const ImageRun run;
  const Finished fit = run({"fit"});
  INFO(fit.err);
  REQUIRE(fit.exit_code == 0);
  const std::vector<std::string> validate{"validate", "--ckpt_path", "fulgur_logs/version_0/checkpoints/last.ckpt"};
  CHECK(run(validate).exit_code == 0);
  for (const char* part : {"train", "val"}) fs::rename(run / part / "a", run / part / "z");
  const Finished other = run(validate);
  INFO(other.err);
  CHECK(other.exit_code == 4);
  CHECK(says(other.err, "class 0 is 'a' in the checkpoint and 'b' in the data"));
}

TEST_CASE("F37: a damaged image exits 3 with its path, or is skipped up to a limit") {
  const ImageRun run;
  fs::resize_file(run / "train/b/3.png", 100);
  write_text(run / "val/a/1.png", "");
  const Finished raised = run({"fit", "--data.val_dir", "train"});
  INFO(raised.err);
  CHECK(raised.exit_code == 3);
  CHECK(says(raised.err, "train/b/3.png"));
  CHECK(says(raised.err, "sample 8"));
  CHECK(says(raised.err, "on_bad_sample"));

  const Finished skipped = run({"fit", "--data.on_bad_sample", "skip"});
  INFO(skipped.err);
  CHECK(skipped.exit_code == 0);
  CHECK(says(skipped.err, "images.bad_sample"));
  CHECK(says(skipped.err, "train/b/3.png"));
  CHECK(says(skipped.err, "val/a/1.png"));

  const Finished limited = run({"fit", "--data.on_bad_sample", "skip", "--data.max_bad_samples", "0"});
  INFO(limited.err);
  CHECK(limited.exit_code == 3);
  CHECK(says(limited.err, "max_bad_samples = 0"));
}

}  // namespace image_files_test
