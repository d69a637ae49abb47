#include "prepared_run.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <new>

#include "fulgur/core/system/program_name.h"
#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/deferred_init.h"
#include "fulgur/strategies/fsdp.h"
#include "fulgur/trainer/checkpoint_config.h"
#include "fulgur/trainer/missing_data.h"

namespace fulgur::cli {

namespace {

/// Calls `prepare_data`. The processes of a run have no process group yet, so that none can wait for the first of its
/// node; they take turns instead, by a lock of the folder that they share.
void prepare_in_turn(DataModule& data, const std::filesystem::path& root, bool several) {
  detail::UniqueFd turn;
  if (several) {
    std::error_code error;
    std::filesystem::create_directories(root, error);
    turn = detail::UniqueFd(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // A file system without locks gives no turns.
    if (turn.get() >= 0) static_cast<void>(::flock(turn.get(), LOCK_EX));
  }
  data.prepare_data();
}

RunningStage stage_of(TrainerFn fn) {
  switch (fn) {
    case TrainerFn::fit:
      return RunningStage::train;
    case TrainerFn::validate:
      return RunningStage::validate;
    case TrainerFn::test:
      return RunningStage::test;
    case TrainerFn::predict:
      break;
  }
  return RunningStage::predict;
}

/// The data exports values only after its setup, and the model may need them for its construction. True if the data is
/// set up now, from the checkpoint's state if there is one.
bool fill_links(Config& config, DataModule* data, TrainerFn fn, bool several) {
  if (config.link.empty()) return false;
  if (data == nullptr)
    throw ConfigError("[config] link needs a data module to take values from; none is configured. Set `data`.");
  prepare_in_turn(*data, config.trainer.default_root_dir, several);
  if (const auto state = data_state_in_checkpoint(config)) data->load_state(*state);
  data->setup(fn);
  try {
    apply_links(config, data->exported_values(), [&](std::string_view name) { return data->why_not_exported(name); });
  } catch (const ConfigError& error) {
    // Data modules do not know some values without data, such as the size of images.
    if (fn == TrainerFn::fit || !data->loaders(stage_of(fn)).empty()) throw;
    const ConfigNode written = config.data.write();
    const bool trained = config.ckpt_path.has_value();
    throw ConfigError(cat("[trainer.", name_of(fn), "] there is no ", name_of(fn), " data. ",
                          detail::advice_for_missing_data(written.find("init_args"), stage_of(fn), trained),
                          "\nWithout data, links have no value: ", error.what()));
  }
  return true;
}

/// The model's options that are numbers or lists of numbers; `zeros` receives those that contain a 0.
std::string sizes_of(const Spec<LightningModule>& model, std::vector<std::string>& zeros) {
  std::vector<std::string> texts;
  const ConfigNode written = model.write();
  const ConfigNode* const arguments = written.find("init_args");
  if (arguments == nullptr || !arguments->is_map()) return "none";
  for (const auto& [name, value] : arguments->entries()) {
    std::vector<std::string> numbers;
    const auto add = [&](const ConfigNode& node) {
      if (!node.is_scalar() || node.text().empty() || node.text().find_first_not_of("0123456789") != std::string::npos)
        return;
      numbers.push_back(node.text());
      if (node.text() == "0" && (zeros.empty() || zeros.back() != name)) zeros.push_back(name);
    };
    if (value.is_list())
      std::for_each(value.items().begin(), value.items().end(), add);
    else
      add(value);
    if (!numbers.empty())
      texts.push_back(cat(name, value.is_list() ? cat(": [", join(numbers), "]") : cat(": ", numbers.front())));
  }
  return join(texts);
}

/// LibTorch's error for a weight that is too large, or for a layer without inputs, names no option.
std::shared_ptr<LightningModule> make_module(const Spec<LightningModule>& model, bool deferred) {
  const auto failure = [&](std::string_view why) {
    std::vector<std::string> zeros;
    const std::string sizes = sizes_of(model, zeros);
    // What LibTorch says of allocations names no option.
    const bool is_size = why.find("alloc") != std::string_view::npos || why.find("emory") != std::string_view::npos ||
                         why.find("overflow") != std::string_view::npos;
    std::string hint = "Its constructor has failed.";
    if (is_size)
      hint = "Is one of them too large?";
    else if (!zeros.empty())
      hint = cat("A layer must have at least one input and one output, and ", join(zeros, " and "),
                 zeros.size() == 1 ? " is 0." : " are 0.");
    return Error(cat("[cli] the model ", model.class_path(), " cannot be created; its sizes are ", sizes, ". ", hint,
                     " LibTorch says: ", first_line(why)));
  };
  try {
    return deferred ? deferred_init([&] { return model.create(); }) : model.create();
  } catch (const c10::Error& error) {
    throw failure(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    throw failure("Memory has run out.");
  }
}

}  // namespace

PreparedRun prepare(Config config, TrainerFn fn, bool several, TrainerComponents components) {
  if (!config.model) {
    throw ConfigError(cat("[cli] ", name_of(fn),
                          " needs a model; the config names none. Give --config FILE or --model NAME; "
                          "`",
                          program_name(), " list model` lists the models."));
  }
  log::silence(config.silence);
  std::shared_ptr<DataModule> data = config.data ? config.data.create() : nullptr;
  const bool set_up = fill_links(config, data.get(), fn, several);
  // Before the module is created: the trainer seeds the generators that initialise it.
  Trainer trainer = Trainer::from_config(config, std::move(components));
  trainer.prepare_process();
  // No process may have the memory for all parameters.
  const auto strategy = std::dynamic_pointer_cast<FSDPStrategy>(config.trainer.strategy.create());
  std::shared_ptr<LightningModule> module =
      make_module(config.model, /*deferred=*/several && strategy && strategy->defers_init());
  DataSource source = data ? DataSource(std::move(data)) : DataSource();
  if (set_up) source.set_up_for = fn;
  return {std::move(trainer), std::move(module), std::move(source)};
}

}  // namespace fulgur::cli
