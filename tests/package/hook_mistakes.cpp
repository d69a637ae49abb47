// Hooks that classes miss by their arguments: the compiler names what was expected. Without MISTAKES the file compiles.
#include <fulgur/trainer/load_from_checkpoint.h>
#include <fulgur/trainer/trainer.h>

namespace {

struct Net : fulgur::LightningModule {
  fulgur::StepOutput training_step(const fulgur::Batch& batch, int64_t) override { return batch[0].sum(); }
  fulgur::Outputs validation_step(const fulgur::Batch&, int64_t, int64_t) override { return {}; }
};

struct WrongValidation : fulgur::LightningModule {
  fulgur::StepOutput training_step(const fulgur::Batch& batch, int64_t) override { return batch[0].sum(); }
#ifdef MISTAKES
  fulgur::Outputs validation_step(const fulgur::Batch&, int64_t) { return {}; }
#endif
};

struct WrongPrediction : Net {
#ifdef MISTAKES
  fulgur::Outputs predict_step(const fulgur::Batch&, int64_t) { return {}; }
#endif
};

struct NotConst : Net {
#ifdef MISTAKES
  bool automatic_optimization() { return false; }
#endif
};

struct Watcher : fulgur::Callback {
#ifdef MISTAKES
  void on_train_batch_end(fulgur::RunContext&, const fulgur::StepOutput&, int64_t) {}
#endif
};

struct Data : fulgur::DataModule {
#ifdef MISTAKES
  void setup() {}
#endif
};

FULGUR_REGISTER(fulgur::DataModule, Data, "Data.");

}  // namespace

int main() {
  fulgur::Trainer trainer({}, fulgur::TrainerComponents().add(std::make_shared<Watcher>()));
  trainer.fit(std::make_shared<Net>());
  trainer.fit(std::make_shared<WrongValidation>());
  trainer.predict(std::make_shared<WrongPrediction>());
  fulgur::load_from_checkpoint<NotConst>("last");
}
