#include "prepared_run.h"

#include "fulgur/core/errors.h"
#include "fulgur/core/log.h"
#include "fulgur/core/text.h"

namespace fulgur::cli {

namespace {

/// Facts of the data are known only after its setup, and the model may need them before it is made.
void fill_links(Config& config, DataModule* data, Verb verb) {
  if (config.link.empty()) return;
  if (data == nullptr) throw ConfigError("[config] link needs data to take values from; none is chosen. Set `data`.");
  data->prepare_data();
  data->setup(verb);
  apply_links(config, data->facts());
}

}  // namespace

PreparedRun prepare(Config config, Verb verb) {
  if (!config.model) {
    throw ConfigError(cat("[cli] ", name_of(verb),
                          " needs a model; the config names none. Give --config FILE or --model NAME; "
                          "`trainer list model` shows what there is."));
  }
  log::silence(config.silence);
  std::shared_ptr<DataModule> data = config.data ? config.data.create() : nullptr;
  fill_links(config, data.get(), verb);
  // Before the module is made: the trainer seeds the generators that initialise it.
  Trainer trainer = Trainer::from_config(config);
  std::shared_ptr<LightningModule> module = config.model.create();
  return {std::move(trainer), std::move(module), data ? DataSource(std::move(data)) : DataSource()};
}

}  // namespace fulgur::cli
