// The folder of a run that was killed at any moment and resumed is that of one that was not.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <set>
#include <thread>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/loggers/csv_logger.h"
#include "fulgur/loggers/jsonl_logger.h"
#include "support/gpu.h"
#include "trainer/boring.h"

namespace resumed_folder_test {

using namespace fulgur;
using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

struct Logging : SelfPlanned {
  bool logs_step = false;
  explicit Logging(bool step) : SelfPlanned(0.3), logs_step(step) {}
  StepOutput training_step(const Batch& batch, int64_t index) override {
    // Samples seen, as some count steps.
    if (logs_step) log("step", static_cast<double>(4 * run().progress().batches_total.ready));
    log_media(TextRecord{"of_batch", std::to_string(run().progress().batches_total.ready)});
    return SelfPlanned::training_step(batch, index);
  }
  Outputs validation_step(const Batch& batch, int64_t index, int64_t loader) override {
    log("val_index", static_cast<double>(index), {.on_step = true, .on_epoch = false});
    log_media(HistogramRecord{"val/error", forward(batch[0]) - batch[1]});
    return SelfPlanned::validation_step(batch, index, loader);
  }
  void on_train_epoch_end() override {
    log_media(TableRecord{"epochs", {"epoch"}, {{run().progress().epoch}}});
    log_media(ImageRecord{"weights", first->weight.detach().abs().clamp(0, 1).unsqueeze(0)});
  }
  void on_validation_epoch_end() override {
    if (logs_step) log("step", static_cast<double>(run().progress().epoch));
  }
};

/// Copies the run folder at the end of each batch, of each epoch, and of the fit: what a kill there would leave.
struct Copying : Callback {
  fs::path target;
  int copies = 0;
  explicit Copying(fs::path folder) : target(std::move(folder)) {}
  void copy(const RunContext& run) {
    const fs::path copy = target / std::to_string(copies++);
    for (bool whole = false; !whole;) {
      fs::remove_all(copy);
      fs::create_directories(copy);
      // While a checkpoint is published, its temporary folder may go away under the copy.
      try {
        fs::copy(run.log_dir().parent_path(), copy / "fulgur_logs",
                 fs::copy_options::recursive | fs::copy_options::copy_symlinks);
        whole = true;
      } catch (const fs::filesystem_error&) {
      }
    }
  }
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override { copy(run); }
  void on_train_epoch_end(RunContext& run) override { copy(run); }
  void on_validation_end(RunContext& run) override { copy(run); }
  void on_fit_end(RunContext& run) override { copy(run); }
};

/// The files of media, with their names.
std::string media_in(const fs::path& run) {
  std::set<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(run / "media"))
    if (entry.is_regular_file()) files.insert(entry.path());
  std::string all;
  for (const fs::path& file : files) all += file.lexically_relative(run).string() + "\n" + read_text(file) + "\n";
  return all;
}

std::string fit(const fs::path& root, bool logs_step, std::shared_ptr<Callback> callback = nullptr,
                const std::string& accelerator = "cpu") {
  at::manual_seed(21);
  TrainerOptions options;
  options.accelerator = accelerator;
  options.default_root_dir = root;
  options.enable_progress_bar = options.enable_model_summary = false;
  options.num_sanity_val_steps = 0;
  options.max_epochs = 3;
  options.accumulate_grad_batches = 3;
  options.val_check_interval = 4;
  options.log_every_n_steps = 2;
  options.async_checkpoint = accelerator != "cpu";
  TrainerComponents components;
  components.seed = 5;
  components.loggers = {std::make_shared<CsvLogger>(), std::make_shared<JsonlLogger>()};
  ModelCheckpoint::Options saves;
  saves.every_n_train_steps = 3;
  components.callbacks = {std::make_shared<ModelCheckpoint>(saves)};
  if (callback) components.callbacks.push_back(std::move(callback));
  Trainer(options, components).fit(std::make_shared<Logging>(logs_step), regression_data(), "auto");
  return read_text(root / "fulgur_logs/version_0/metrics.csv") +
         read_text(root / "fulgur_logs/version_0/metrics.jsonl") + media_in(root / "fulgur_logs/version_0");
}

std::set<std::string> checkpoints_in(const fs::path& root) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(root / "fulgur_logs/version_0/checkpoints"))
    names.insert(entry.path().filename());
  return names;
}

}  // namespace

TEST_CASE("a run that is killed at any moment and resumed writes the rows and media of one that was not") {
  const TemporaryFolder folder;
  const bool logs_step = GENERATE(false, true);
  const auto copying = std::make_shared<Copying>(folder / "killed");
  const std::string whole = fit(folder / "whole", logs_step, copying);
  REQUIRE(copying->copies > 35);
  int resumed = 0;
  for (int i = 0; i < copying->copies; ++i) {
    CAPTURE(logs_step, i);
    const fs::path root = folder / "killed" / std::to_string(i);
    // Before the first checkpoint there is nothing to resume from.
    if (list_checkpoints(root / "fulgur_logs/version_0/checkpoints").empty()) continue;
    ++resumed;
    CHECK(fit(root, logs_step) == whole);
    CHECK(checkpoints_in(root) == checkpoints_in(folder / "whole"));
  }
  CHECK(resumed > 25);
}

namespace {

std::map<std::string, Tensor> fit_with(const fs::path& root, std::vector<std::shared_ptr<Callback>> callbacks,
                                       bool async) {
  TrainerOptions options;
  options.accelerator = "cpu";
  options.default_root_dir = root;
  options.enable_progress_bar = options.enable_model_summary = false;
  options.max_epochs = 1;
  options.async_checkpoint = async;
  TrainerComponents components;
  components.seed = 5;
  components.callbacks = std::move(callbacks);
  at::manual_seed(21);
  const auto module = std::make_shared<SelfPlanned>(0.3);
  Trainer(options, components).fit(module, regression_data(), "auto");
  return weights(*module);
}

std::shared_ptr<Callback> saves_every(int64_t steps, bool weights_only = false) {
  ModelCheckpoint::Options options;
  options.every_n_train_steps = steps;
  options.save_weights_only = weights_only;
  if (weights_only) options.filename = "weights-{step}";
  return std::make_shared<ModelCheckpoint>(options);
}

}  // namespace

TEST_CASE("a checkpoint that the newest one replaces and that is not removed yet is removed by the run that resumes") {
  // The process ends after the newest save is written and before it is published, which would release the one before.
  struct KilledAtStep4 : Callback {
    fs::path target;
    explicit KilledAtStep4(fs::path folder) : target(std::move(folder)) {}
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      const int64_t before = run.progress().global_step - 1;
      if (before < 1 || before > 3) return;
      const fs::path save = run.checkpoint_dir() / ("epoch=0-step=" + std::to_string(before) + ".ckpt");
      while (!fs::exists(save)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until it is verified
      if (before == 3)
        fs::copy(run.log_dir().parent_path(), target / "fulgur_logs",
                 fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    }
  };
  const TemporaryFolder folder;
  fs::create_directories(folder / "killed");
  fit_with(folder / "whole", {std::make_shared<KilledAtStep4>(folder / "killed"), saves_every(1)}, true);
  REQUIRE(list_checkpoints(folder / "killed/fulgur_logs/version_0/checkpoints").size() == 2);
  fit_with(folder / "killed", {saves_every(1)}, true);
  CHECK(checkpoints_in(folder / "killed") == checkpoints_in(folder / "whole"));
}

TEST_CASE("weights that were saved after the checkpoint that a run resumes from are not duplicated") {
  const TemporaryFolder folder;
  const auto copying = std::make_shared<Copying>(folder / "killed");
  fit_with(folder / "whole", {copying, saves_every(2), saves_every(1, true)}, false);
  const fs::path killed = folder / "killed/3";  // at the end of step 4: the state of step 2, weights of step 3
  REQUIRE(list_checkpoints(killed / "fulgur_logs/version_0/checkpoints").size() == 2);
  fit_with(killed, {saves_every(2), saves_every(1, true)}, false);
  CHECK(checkpoints_in(killed) == checkpoints_in(folder / "whole"));
}

TEST_CASE("F6 a run that a full disk has ended is resumed to the same weights") {
  // From step 5 on the folder of checkpoints is a file.
  struct Full : Callback {
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      if (run.progress().global_step != 5) return;
      fs::rename(run.checkpoint_dir(), run.checkpoint_dir().string() + ".aside");
      write_text(run.checkpoint_dir(), "");
    }
  };
  const TemporaryFolder folder;
  const bool async = GENERATE(false, true);
  CAPTURE(async);
  const auto whole = fit_with(folder / "whole", {saves_every(2)}, async);
  CHECK_THROWS_AS(fit_with(folder / "full", {std::make_shared<Full>(), saves_every(2)}, async), CheckpointError);
  const fs::path checkpoints = folder / "full/fulgur_logs/version_0/checkpoints";
  fs::remove(checkpoints);
  fs::rename(checkpoints.string() + ".aside", checkpoints);
  CHECK(same_weights(fit_with(folder / "full", {saves_every(2)}, async), whole));
  CHECK(checkpoints_in(folder / "full") == checkpoints_in(folder / "whole"));
}

TEST_CASE("on a GPU, a run that is killed at any moment and resumed writes the rows of one that was not", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  // Rows are written some batches after their steps here, and a save in flight is held for those before it.
  const auto copying = std::make_shared<Copying>(folder / "killed");
  const std::string whole = fit(folder / "whole", true, copying, "gpu");
  REQUIRE(copying->copies > 35);
  int resumed = 0;
  for (int i = 0; i < copying->copies; i += 3) {
    CAPTURE(i);
    const fs::path root = folder / "killed" / std::to_string(i);
    if (list_checkpoints(root / "fulgur_logs/version_0/checkpoints").empty()) continue;
    ++resumed;
    CHECK(fit(root, true, nullptr, "gpu") == whole);
  }
  CHECK(resumed > 5);
}

}  // namespace resumed_folder_test
