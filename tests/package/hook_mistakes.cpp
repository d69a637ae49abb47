// Hooks that a class misses by their arguments: the compiler names what was expected. MISTAKE chooses one; 0: no
// mistake.
#include <fulgur/trainer/load_from_checkpoint.h>
#include <fulgur/trainer/trainer.h>

namespace {

struct Net : fulgur::LightningModule {
  fulgur::StepOutput training_step(const fulgur::Batch& batch, int64_t) override { return batch[0].sum(); }
#if MISTAKE == 1
  fulgur::Outputs validation_step(const fulgur::Batch&, int64_t) { return {}; }
#else
  fulgur::Outputs validation_step(const fulgur::Batch&, int64_t, int64_t) override { return {}; }
#endif
#if MISTAKE == 2
  fulgur::Outputs predict_step(const fulgur::Batch&, int64_t) { return {}; }
#endif
#if MISTAKE == 3
  bool automatic_optimization() { return false; }
#endif
};

struct Watcher : fulgur::Callback {
#if MISTAKE == 4
  void on_train_batch_end(fulgur::RunContext&, const fulgur::StepOutput&, int64_t) {}
#endif
};

struct Data : fulgur::DataModule {
#if MISTAKE == 5
  void setup() {}
#endif
};

FULGUR_REGISTER(fulgur::DataModule, Data, "Data.");

}  // namespace

int main() {
  const auto net = std::make_shared<Net>();
  fulgur::Trainer trainer({}, fulgur::TrainerComponents().add(std::make_shared<Watcher>()));
#if MISTAKE == 2
  trainer.predict(net);
#elif MISTAKE == 3
  fulgur::load_from_checkpoint<Net>("last");
#else
  trainer.fit(net);
#endif
}
