// A trial run (TrainerComponents::is_trial), such as those of `trainer tune`: what a module brings for the whole length
// of its fit does not end it.
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>

#include "fulgur/callbacks/batch_size_scheduler.h"
#include "fulgur/callbacks/early_stopping.h"
#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/core/contracts/monitor.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/optim/reduce_lr_on_plateau.h"

namespace trial_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

using CallbackList = std::vector<std::shared_ptr<Callback>>;

struct CountBatches final : Callback {
  int64_t batches = 0;
  void on_train_batch_start(RunContext&, const Batch&, int64_t) override { ++batches; }
};

struct Bringing : SelfPlanned {
  CallbackList brought;
  explicit Bringing(CallbackList callbacks) : brought(std::move(callbacks)) {}
  CallbackList configure_callbacks() override { return brought; }
};

struct Following : BoringModule {
  OptimizerPlan configure_optimizers() override {
    return {std::make_shared<SGD>(SGD::Options{.lr = 0.05}),
            SchedulerConfig{.scheduler = std::make_shared<ReduceLROnPlateau>(ReduceLROnPlateau::Options{}),
                            .monitor = "val_loss"}};
  }
};

// Two epochs of 10 steps, as the trials of `trainer tune` have them.
FitReport try_module(const std::shared_ptr<LightningModule>& module, const TemporaryFolder& folder,
                     bool is_trial = true) {
  TrainerOptions options = quiet(folder);
  options.barebones = true;
  options.max_epochs = 2;
  TrainerComponents components;
  components.is_trial = is_trial;
  return Trainer(options, components).fit(module, regression_data());
}

}  // namespace

TEST_CASE("trial: callbacks of the module that save or follow a metric are left out, and others remain") {
  const auto counts = std::make_shared<CountBatches>();
  ModelCheckpoint::Options best;
  best.monitor = "val_loss";
  EarlyStopping::Options stopping;
  stopping.monitor = "val_loss";
  const TemporaryFolder folder;
  const auto module = std::make_shared<Bringing>(CallbackList{
      std::make_shared<ModelCheckpoint>(best), std::make_shared<ModelCheckpoint>(ModelCheckpoint::Options{}),
      std::make_shared<EarlyStopping>(stopping), counts});
  CHECK(try_module(module, folder).global_step == 20);
  CHECK(counts->batches == 20);
  CHECK(std::filesystem::is_empty(folder.path()));
  // Only a trial leaves them out.
  CHECK_THROWS_AS(try_module(module, folder, /*is_trial=*/false), ConfigError);
  const auto stops = [&] {
    return std::make_shared<Bringing>(CallbackList{std::make_shared<EarlyStopping>(stopping)});
  };
  CHECK(try_module(stops(), folder).global_step == 20);
  CHECK_THROWS_AS(try_module(stops(), folder, /*is_trial=*/false), MonitorError);
}

TEST_CASE("trial: the batch size is the one that is tried, not the one that the module plans") {
  const TemporaryFolder folder;
  const auto grows = [] {
    BatchSizeScheduler::Options options;
    options.every = Interval{1, Interval::Unit::epochs};
    options.max = 8;
    return std::make_shared<Bringing>(CallbackList{std::make_shared<BatchSizeScheduler>(options)});
  };
  CHECK(try_module(grows(), folder).global_step == 20);
  CHECK(try_module(grows(), folder, /*is_trial=*/false).global_step == 15);
}

TEST_CASE("trial: a schedule of the module that follows a metric does not end it") {
  const TemporaryFolder folder;
  CHECK(try_module(std::make_shared<Following>(), folder).global_step == 20);
  CHECK_THROWS_AS(try_module(std::make_shared<Following>(), folder, /*is_trial=*/false), MonitorError);
}

}  // namespace trial_test
