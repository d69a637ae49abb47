#pragma once

#include <csignal>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/core/text/log.h"
#include "trainer/boring.h"

/// A fit that something interrupts, and that another process resumes.
namespace fulgur::test::interrupted {

struct Killed : std::runtime_error {
  Killed() : std::runtime_error("killed") {}
};

/// Ends the run before the batch with this number, by a signal or as if it were killed.
struct Ending : Callback {
  int64_t at_batch = -1;
  bool by_signal = true;
  void on_train_batch_start(RunContext& run, const Batch&, int64_t) override {
    if (run.progress().batches_total.completed != at_batch) return;
    if (!by_signal) throw Killed();
    std::raise(SIGTERM);
  }
};

struct Settings {
  CheckpointChoice from = {};
  int64_t ends_at = -1;
  bool by_signal = true;
  ModelCheckpoint::Options saving = {};
  std::function<void(TrainerOptions&, TrainerComponents&)> change = {};
  std::shared_ptr<LightningModule> module = nullptr;
  std::shared_ptr<DataModule> data = nullptr;
};

/// Fits `SelfPlanned` on 10 batches an epoch, six epochs unless `change` says otherwise. `told` receives the log.
inline FitReport fit(const TemporaryFolder& folder, Settings settings, std::string* told = nullptr) {
  TrainerOptions options = quiet(folder);
  options.max_epochs = 6;
  TrainerComponents components;
  components.seed = 5;
  auto ending = std::make_shared<Ending>();
  ending->at_batch = settings.ends_at;
  ending->by_signal = settings.by_signal;
  components.add(ending);
  components.add(std::make_shared<ModelCheckpoint>(settings.saving));
  if (settings.change) settings.change(options, components);
  if (!settings.module) {
    at::manual_seed(3);
    settings.module = std::make_shared<SelfPlanned>(0.3);
  }
  std::string lines;
  log::reset_warnings();
  log::set_sink(
      [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; }, &lines);
  if (!settings.data) settings.data = regression_data(40, 8);
  FitReport report;
  try {
    report = Trainer(options, components).fit(settings.module, settings.data, settings.from);
  } catch (const Killed&) {
  } catch (...) {
    log::set_sink({}, nullptr);
    if (told) *told = lines;
    throw;
  }
  log::set_sink({}, nullptr);
  if (told) *told = lines;
  return report;
}

}  // namespace fulgur::test::interrupted
