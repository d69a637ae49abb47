#include "setup/setup_steps.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/combined_loader.h"
#include "fulgur/data/device_prefetcher.h"
#include "loops/evaluation_loop.h"
#include "loops/validation_schedule.h"
#include "run/batch_sizes.h"
#include "run/global_batch.h"

namespace fulgur::detail {

namespace {

// What the loaders of a stage are made from.
struct StageSource {
  RunningStage stage;
  Loaders (LightningModule::*hook)();  // of a module that brings its own loaders
  const char* hook_name;
  Loaders DataSource::*given;
  BatchLimit TrainerOptions::*limit;
  const char* limit_name;
};

// In the order of the stages, and of the verbs that begin with them.
constexpr StageSource kSources[] = {
    {RunningStage::train, &LightningModule::train_dataloader, "train_dataloader", &DataSource::train,
     &TrainerOptions::limit_train_batches, "limit_train_batches"},
    {RunningStage::validate, &LightningModule::val_dataloader, "val_dataloader", &DataSource::validation,
     &TrainerOptions::limit_val_batches, "limit_val_batches"},
    {RunningStage::test, &LightningModule::test_dataloader, "test_dataloader", &DataSource::test,
     &TrainerOptions::limit_test_batches, "limit_test_batches"},
    {RunningStage::predict, &LightningModule::predict_dataloader, "predict_dataloader", &DataSource::predict,
     &TrainerOptions::limit_predict_batches, "limit_predict_batches"}};

// A batch may be moved to the device ahead of time only if nothing inspects or moves it first.
bool reads_ahead(const RunState& run) {
  const auto moves = [](const HookMask& mask) {
    return mask.has(Hook::on_before_batch_transfer) || mask.has(Hook::transfer_batch_to_device);
  };
  return !run.device().is_cpu() && !moves(ComponentAccess::overridden(*run.model)) &&
         (!run.data.module || !moves(ComponentAccess::overridden(*run.data.module)));
}

// The properties of a loader that must be the same on all ranks that share its samples: those of the whole data set,
// as one process would read it.
struct SharedData {
  static constexpr int64_t kUnknown = -1;
  int64_t samples = kUnknown, batches = kUnknown, batch_size = kUnknown;
  int64_t shuffles = kUnknown;
  int64_t seed = kUnknown;  // of the order, if it is not that of the data set

  // Configures `loader` for one process. The properties of a stream, which has no length, are unknown.
  static SharedData of(Loader& loader, uint64_t seed) {
    loader.configure(seed, /*rank=*/0, /*world_size=*/1);
    if (!loader.samples() || !loader.size()) return {};
    SharedData data{.samples = *loader.samples(), .batches = *loader.size(), .batch_size = loader.batch_size()};
    data.shuffles = loader.shuffles() ? 1 : 0;
    if (loader.shuffles()) data.seed = static_cast<int64_t>(seed);
    return data;
  }
  std::array<int64_t, 5> numbers() const { return {samples, batches, batch_size, shuffles, seed}; }
};

// Throws a DataError that says what differs, and on which ranks. All ranks must call it.
[[noreturn]] void throw_other_data(Collectives& collectives, RunningStage stage,
                                   const std::vector<SharedData>& loaders) {
  StateTree::List own;
  for (const SharedData& data : loaders)
    for (const int64_t number : data.numbers()) own.emplace_back(number);
  std::vector<StateTree> ranks;
  for (const std::string& text : collectives.gather_text(pack_state(own))) ranks.push_back(unpack_state(text));
  constexpr std::array<std::string_view, 5> kNames{"samples", "batches of one process", "batch_size", "shuffle",
                                                   "seed of the order"};
  const auto text_of = [](std::string_view name, int64_t number) {
    if (number == SharedData::kUnknown) return std::string("unknown");
    return name == "shuffle" ? std::string(number != 0 ? "true" : "false") : std::to_string(number);
  };
  std::vector<std::string> differences;
  for (size_t i = 0; i < own.size(); ++i) {
    const std::string_view name = kNames[i % kNames.size()];
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
      const int64_t first = ranks[0].as_list()[i].as_int(), other = ranks[rank].as_list()[i].as_int();
      if (first == other) continue;
      const std::string which =
          loaders.size() > 1 ? cat(" of loader ", static_cast<int64_t>(i / kNames.size())) : std::string();
      differences.push_back(cat(name, which, ": ", text_of(name, first), " on rank 0, ", text_of(name, other),
                                " on rank ", static_cast<int64_t>(rank)));
    }
  }
  throw DataError(cat("[trainer.data] ranks share one data set, so all must have the same ", name_of(stage),
                      " loaders. They differ in ", join_some(differences, 10, "; "),
                      ". Give all ranks the same files and options, or set trainer.use_distributed_sampler: false if "
                      "each rank has its own data."));
}

// If ranks train in lockstep, the smallest number of batches of any rank; for an evaluation, which each rank ends
// independently, the largest. Unknown if one rank does not know its number.
std::vector<std::optional<int64_t>> agreed_lengths(Collectives& collectives, RunningStage stage,
                                                   std::vector<std::optional<int64_t>> lengths,
                                                   const std::vector<SharedData>& shared) {
  if (collectives.world_size() == 1) return lengths;
  const auto count = static_cast<int64_t>(lengths.size());
  const std::vector<int64_t> counts = collectives.start_max({count, -count})->take();
  if (counts[0] != -counts[1])
    throw ConfigError(cat("[trainer.data] all ranks must have the same number of ", name_of(stage),
                          " loaders; some have ", -counts[1], ", others ", counts[0], "."));
  // The minimum is the maximum of the negated numbers.
  std::vector<int64_t> numbers;
  for (const auto& length : lengths)
    numbers.insert(numbers.end(),
                   {length ? 0 : 1, stage == RunningStage::train ? -length.value_or(0) : length.value_or(0)});
  // Ranks that share data must have the same data set: maximum equals minimum, and unknown only for all.
  for (const SharedData& data : shared)
    for (const int64_t number : data.numbers()) numbers.insert(numbers.end(), {number, ~number});
  const std::vector<int64_t> agreed = collectives.start_max(std::move(numbers))->take();
  for (size_t i = 2 * lengths.size(); i < agreed.size(); i += 2)
    if (agreed[i] != ~agreed[i + 1]) throw_other_data(collectives, stage, shared);
  for (size_t i = 0; i < lengths.size(); ++i)
    lengths[i] = agreed[2 * i] != 0 ? std::nullopt : std::optional(std::abs(agreed[2 * i + 1]));
  return lengths;
}

Loaders make_loaders(RunState& run, const StageSource& source) {
  const Loaders& given = run.data.*source.given;
  Loaders loaders = run.data.module  ? run.data.module->loaders(source.stage)
                    : !given.empty() ? given
                                     : ((*run.model).*source.hook)();
  std::erase(loaders, nullptr);
  if (source.stage != RunningStage::train || loaders.size() <= 1) return loaders;
  std::vector<CombinedLoader::Named> named;
  for (auto& loader : loaders) named.emplace_back(std::to_string(named.size()), std::move(loader));
  return {std::make_shared<CombinedLoader>(std::move(named))};
}

// Batches that are trained on again and again keep their order; an evaluation needs no random order.
void check_order(const RunState& run, RunningStage stage, Loader& loader) {
  if (!loader.shuffles()) return;
  if (stage != RunningStage::train)
    return log::warn("data.evaluation_shuffled",
                     cat("the ", name_of(stage), " loader shuffles; evaluation needs no random order"));
  if (run.options.overfit_batches.is_zero()) return;
  if (!loader.keep_order())
    throw ConfigError(
        "[trainer.overfit_batches] the training loader shuffles and cannot keep the dataset's order, so the batches "
        "would differ from epoch to epoch. Use a loader without shuffling.");
  log::warn("trainer.overfit_unshuffled", "overfit_batches: the training loader does not shuffle in this run");
}

// How many batches an epoch has with each batch size that a callback plans. A size that cannot be used is refused now,
// not when its epoch begins.
void measure_batch_sizes(RunState& run, const StageSource& source, const char* limit_name) {
  const StageLoaders& train = run.stages[RunningStage::train];
  run.batch_sizes.reset();
  if (train.loaders.empty()) return;
  Loader& loader = *train.loaders.front();
  const int64_t own = loader.batch_size();
  const std::optional<BatchSizePlan> plan = find_batch_size_plan(run, own);
  if (!plan) return;
  PlannedBatches planned{.plan = *plan, .own = own, .of_epoch = {}};
  if (planned.plan.accumulates) {
    planned.of_epoch[planned.own] = train.batches.front();
  } else {
    for (const int64_t size : planned.plan.sizes(planned.own)) {
      if (!loader.set_batch_size(size))
        throw ConfigError(
            "[trainer.callbacks] the batch size is to change during the fit, which the training loader cannot do: it "
            "has a batch sampler, combines several loaders, or does not override Loader::set_batch_size(). Change the "
            "accumulation instead (by: accumulation).");
      const auto samples = loader.samples();
      if (samples && *samples > 0 && size > *samples)
        log::warn("trainer.large_batch_size",
                  cat("a batch size of ", size, " is planned, but an epoch has only ", *samples, " samples",
                      run.world_size() > 1 ? " on each rank" : "", ": it is then one batch of these"));
      const auto batches = agreed_lengths(run.collectives(), RunningStage::train, {loader.size()}, {}).front();
      planned.of_epoch[size] = (run.options.*source.limit).resolve(batches, limit_name);
    }
  }
  run.batch_sizes = std::move(planned);
  set_batch_size_of_epoch(run);
  plan_window(run, train.batches.front());
}

void set_up_stage(RunState& run, RunningStage stage) {
  const StageSource& source = kSources[static_cast<size_t>(stage)];
  Loaders loaders = make_loaders(run, source);
  if (stage == RunningStage::train) {
    Progress now = run.counters;
    now.fit_time_s = 0;
    run.loaders_created_at = now.state();
  }
  StageLoaders target;
  std::vector<std::optional<int64_t>> lengths;
  std::vector<SharedData> shared;
  for (auto& loader : loaders) {
    // An earlier fit may have changed it, or that of a loader it combines.
    loader->set_batch_size(std::nullopt);
    if (stage == RunningStage::train && run.data_shares() > 1) loader->share_evenly(run.options.uneven_shares);
    const bool shares = run.options.use_distributed_sampler;
    const uint64_t seed = run.seed.value_or(0);
    try {
      if (shares && run.world_size() > 1) shared.push_back(SharedData::of(*loader, seed));
      // An evaluation divides the data among all ranks, each of which has the whole module then.
      const bool trains = stage == RunningStage::train;
      const int64_t share = trains ? run.strategy->data_share() : run.rank();
      loader->configure(seed, shares ? share : 0, !shares ? 1 : trains ? run.data_shares() : run.world_size());
    } catch (const DataError& error) {
      // Several loaders may have the same name, or none.
      throw DataError(cat(error.what(), " This is the ", name_of(stage), " loader",
                          loaders.size() > 1 ? cat(" at index ", target.loaders.size()) : "", "."));
    }
    check_order(run, stage, *loader);
    lengths.push_back(loader->size());
    if (reads_ahead(run)) loader = std::make_shared<DevicePrefetcher>(std::move(loader), run.device());
    target.loaders.push_back(std::move(loader));
  }
  // A fraction refers to the common length of all ranks, so that no rank refuses what others accept; a rank may have
  // fewer batches.
  const auto agreed = agreed_lengths(run.collectives(), stage, lengths, shared);
  // overfit_batches sets two options.
  const bool overfits =
      !run.options.overfit_batches.is_zero() && (stage == RunningStage::train || stage == RunningStage::validate);
  const char* const limit_name = overfits ? "overfit_batches" : source.limit_name;
  for (size_t i = 0; i < lengths.size(); ++i) {
    auto batches = (run.options.*source.limit).resolve(agreed[i], limit_name);
    if (stage != RunningStage::train && batches && lengths[i]) batches = std::min(*batches, *lengths[i]);
    target.batches.push_back(batches);
    target.sized.push_back(agreed[i].has_value());
  }
  run.stages[stage] = std::move(target);
  if (stage != RunningStage::train) return;
  measure_batch_sizes(run, source, limit_name);
  if (!run.stages[stage].loaders.empty()) plan_global_batch(run);
}

// Before a run folder is created. A fit only warns about a missing validation_step.
void require_step(const RunState& run) {
  const HookMask& overridden = ComponentAccess::overridden(*run.model);
  if (run.fn == TrainerFn::validate && !overridden.has(Hook::validation_step))
    throw StepNotOverridden("validation_step");
  if (run.fn == TrainerFn::test && !overridden.has(Hook::test_step)) throw StepNotOverridden("test_step");
  if (run.fn == TrainerFn::predict && !overridden.has(Hook::predict_step)) throw StepNotOverridden("predict_step");
}

void set_up_fit(RunState& run) {
  set_up_stage(run, RunningStage::train);
  if (run.stages[RunningStage::train].loaders.empty())
    throw ConfigError(
        run.data.module
            ? "[trainer.fit] the data module has no training data: its train_dataloader() returned no loader. "
              "Return one (for a TensorDataModule: call set_data)."
            : "[trainer.fit] there is no training data. Give a data module (data: in the config) or a loader.");
  if (!run.options.limit_val_batches.is_zero()) set_up_stage(run, RunningStage::validate);
  run.validation.runs = !run.stages[RunningStage::validate].loaders.empty();
  if (run.validation.runs && !ComponentAccess::overridden(*run.model).has(Hook::validation_step)) {
    warn_no_validation_step();
    run.validation.runs = false;
  }
  const auto batches = run.stages[RunningStage::train].batches.front();
  if (batches == 0 && !run.options.limit_train_batches.is_zero())
    throw DataError(
        "[trainer.fit] the training loader has no batch. Is the data set empty, or smaller than one batch with "
        "drop_last?");
  // Throws now, not after an epoch, if the interval is invalid.
  if (!run.validation.runs) return;
  validation_interval(run.options, batches);
  if (run.batch_sizes)
    for (const auto& [size, batches_of_size] : run.batch_sizes->of_epoch)
      validation_interval(run.options, batches_of_size);
}

}  // namespace

void set_up_loaders(RunState& run, bool from_checkpoint) {
  const StageSource& first = kSources[static_cast<size_t>(run.fn)];
  const DataSource& data = run.data;
  const bool loaders_given = std::any_of(std::begin(kSources), std::end(kSources),
                                         [&](const StageSource& source) { return !(data.*source.given).empty(); });
  if (data.module && loaders_given)
    throw ConfigError("[trainer.data] both a data module and loaders are given. Use one of the two.");
  if ((data.module || loaders_given) && !((*run.model).*first.hook)().empty())
    throw ConfigError(cat("[trainer.data] both ", data.module ? "a data module" : "loaders", " and the module's own ",
                          first.hook_name, "() are given. Omit the data, or do not override ", first.hook_name, "()."));
  run.reload_loaders = [&run](RunningStage stage) { set_up_stage(run, stage); };
  if (run.fn == TrainerFn::fit)
    set_up_fit(run);
  else
    set_up_stage(run, first.stage);
  require_step(run);
  if (run.fn != TrainerFn::fit && run.stages.begin()->second.loaders.empty())
    throw ConfigError(cat("[trainer.", name_of(run.fn), "] there is no ", name_of(run.fn), " data. ",
                          advice_for_missing_data(run, first.stage, from_checkpoint)));
}

}  // namespace fulgur::detail
