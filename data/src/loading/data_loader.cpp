#include "fulgur/data/data_loader.h"

#include <ATen/Context.h>

#include <algorithm>
#include <utility>

#include "fulgur/core/system/usable_cpus.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/samplers.h"
#include "loading/other_loader.h"
#include "loading/sample_order.h"
#include "reading/batch_buffers.h"
#include "reading/batch_task.h"
#include "reading/batch_worker_pool.h"
#include "reading/outside_inference_mode.h"
#include "reading/sample_error.h"
#include "reading/single_thread_guard.h"
#include "reading/worker_overhead_monitor.h"
#include "reading/worker_tuner.h"
#include "sampling/epoch_plan.h"
#include "sampling/rest_sampler.h"

namespace fulgur {
namespace {

using Clock = std::chrono::steady_clock;

bool is_range(c10::ArrayRef<int64_t> indices) {
  for (size_t i = 1; i < indices.size(); ++i)
    if (indices[i] != indices[0] + static_cast<int64_t>(i)) return false;
  return true;
}

EpochPosition position_in(const StateTree& state) {
  const EpochPosition position{.epoch = state.at("epoch").as_int(),
                               .batches = state.at("batches").as_int(),
                               .samples = state.at("samples").as_int(),
                               .dealt_from = state.contains("dealt_from") ? state.at("dealt_from").as_int() : 0};
  if (position.epoch < 0 || position.batches < 0 || position.samples < 0 || position.dealt_from < 0)
    throw CheckpointError(cat("[data.DataLoader] a position must not be negative; got epoch ", position.epoch,
                              ", batch ", position.batches, ", sample ", position.samples, "."));
  return position;
}

}  // namespace

struct DataLoader::Impl {
  std::shared_ptr<const Dataset> dataset;
  DataLoaderOptions options;
  int64_t first_batch_size = 1;  // that of the options before `set_batch_size`
  std::shared_ptr<const Sampler> sampler;
  std::optional<UnevenShares> evenly;  // set if ranks train in lockstep
  SamplerContext context;

  EpochPlan plan;
  EpochPosition position;   ///< consumed
  EpochPosition scheduled;  ///< given to the workers
  std::optional<EpochPosition> before_last, loaded;
  OrderFacts order_of_loaded;                    // if `loaded` is set
  std::optional<int64_t> epoch_of_other_loader;  // the loaded state is one of another kind of loader
  bool started = false;
  bool stale = false;  ///< the prefetched batches no longer follow `position`

  std::shared_ptr<const BatchSpec> recipe;
  std::optional<BatchBuffers> buffers;
  bool pin_transformed = false;
  std::unique_ptr<BatchWorkerPool> ahead;
  std::optional<WorkerTuner> tuner;
  int64_t workers = 0;

  WorkerOverheadMonitor advice;

  void check_options();
  void check_not_empty() const;
  int64_t usable_samples() const;
  OrderFacts order_facts() const;
  void warn_of_other_order(const EpochPosition& start) const;
  EpochPlan make_plan(const EpochPosition& start) const;
  // Throws a DataError if the data no longer has so many samples.
  void plan_from(const EpochPosition& start);
  bool drops_rest() const;
  int64_t batches_left(const EpochPosition& from) const;
  bool pins() const;
  void make_recipe();
  void set_workers(int64_t count);
  void forget_ahead();
  std::shared_ptr<BatchTask> make_task(const EpochPosition& at, int64_t rows);
  void schedule();
  ReadTimeouts patience() const { return {.timeout_s = options.timeout_s, .slow_after_s = options.slow_after_s}; }
  Batch read_next(int64_t rows);
  void measured();
  void advise(double waited);
  void report_workers() const;
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options)
    : impl_(std::make_unique<Impl>()) {
  impl_->dataset = std::move(dataset);
  impl_->options = std::move(options);
  impl_->first_batch_size = impl_->options.batch_size;
  impl_->check_options();
  const DataLoaderOptions& o = impl_->options;
  if (o.sampler)
    impl_->sampler = o.sampler;
  else if (o.shuffle)
    impl_->sampler = std::make_shared<RandomSampler>(impl_->dataset->size());
  else
    impl_->sampler = std::make_shared<SequentialSampler>(impl_->dataset->size());
  impl_->check_not_empty();
  if (o.num_workers.is_auto())
    impl_->tuner.emplace(usable_cpus(), o.prefetch_factor);
  else
    impl_->workers = *o.num_workers.value;
  if (impl_->workers > usable_cpus())
    log::warn("data.more_workers_than_cores",
              cat("num_workers is ", impl_->workers, " for the ", o.name, " set, but this process has ", usable_cpus(),
                  " cores: workers wait for each other and slow the run down"));
}

DataLoader::~DataLoader() = default;

void DataLoader::Impl::check_options() {
  const DataLoaderOptions& o = options;
  if (!dataset) throw ConfigError(cat("[data.DataLoader] a dataset is needed for the ", o.name, " set; got none."));
  const auto least = [&](const char* option, int64_t value, int64_t minimum) {
    if (value < minimum)
      throw ConfigError(cat("[data.DataLoader] ", option, " must be at least ", minimum, "; got ", value, " for the ",
                            o.name, " set."));
  };
  least("batch_size", o.batch_size, 1);
  least("num_workers", o.num_workers.value.value_or(0), 0);
  least("prefetch_factor", o.prefetch_factor, 1);
  if (!(o.timeout_s >= 0))
    throw ConfigError(
        cat("[data.DataLoader] timeout_s must not be negative; got ", o.timeout_s, " for the ", o.name, " set."));
  if (o.shuffle && o.sampler)
    throw ConfigError(cat("[data.DataLoader] shuffle and sampler exclude each other; both are set for the ", o.name,
                          " set. Remove shuffle: the sampler determines the order."));
  if (o.batch_sampler && (o.sampler || o.shuffle || o.drop_last || o.batch_size != 1))
    throw ConfigError(cat("[data.DataLoader] batch_sampler excludes batch_size, shuffle, sampler and drop_last; the ",
                          o.name, " set has one of them, too. The batch sampler determines all four."));
}

void DataLoader::Impl::check_not_empty() const {
  // Evaluation does not run in lockstep: a rank without samples has nothing to do.
  const int64_t of_one = options.batch_sampler ? options.batch_sampler->size(0, 1) : sampler->size(0, 1);
  const bool may_be_empty = context.world_size > 1 && !evenly && of_one > 0;
  // But if no rank has a batch, nothing is evaluated. The first rank has the most samples.
  const int64_t rank = may_be_empty ? 0 : context.rank;
  if (may_be_empty && (!options.drop_last || sampler->size(rank, context.world_size) >= options.batch_size)) return;
  const int64_t here = options.batch_sampler ? options.batch_sampler->size(rank, context.world_size)
                                             : sampler->size(rank, context.world_size);
  const std::string share = context.world_size == 1 ? "" : cat(" on rank ", rank, " of ", context.world_size);
  if (here == 0)
    throw DataError(cat("[data.DataLoader] ", options.name, " set has 0 batches", share, "; it has ", dataset->size(),
                        " samples. Check the data, the size of its split",
                        context.world_size == 1 ? "" : ", the number of processes", " and the sampler."));
  if (options.drop_last && here < options.batch_size)
    throw DataError(cat("[data.DataLoader] ", options.name, " set has 0 batches", share, "; its ", here,
                        " samples do not fill a batch of ", options.batch_size,
                        " and drop_last drops an incomplete batch. Lower batch_size or set drop_last to false."));
}

int64_t DataLoader::Impl::usable_samples() const {
  if (options.batch_sampler) return options.batch_sampler->samples(context.rank, context.world_size);
  const int64_t all = sampler->size(context.rank, context.world_size);
  return options.drop_last ? all - all % options.batch_size : all;
}

OrderFacts DataLoader::Impl::order_facts() const {
  const bool batches = options.batch_sampler != nullptr;
  return {.samples = batches ? options.batch_sampler->samples(0, 1) : sampler->size(0, 1),
          .shuffles = batches ? options.batch_sampler->shuffles() : sampler->shuffles(),
          .seed = static_cast<int64_t>(context.seed)};
}

// The position counts samples of an order that no longer exists.
void DataLoader::Impl::warn_of_other_order(const EpochPosition& start) const {
  const int64_t rest = plan.samples() - start.samples;
  if (start.samples == 0 && start.dealt_from == 0) return;
  const OrderFacts now = order_facts();
  // Without shuffling, the rest has the same order, however many samples there are.
  if (!order_of_loaded.shuffles && !now.shuffles) return;
  const std::string changes = changes_of_order(order_of_loaded, now);
  if (!changes.empty())
    log::warn(
        "data.order_changed",
        cat("the checkpoint was saved inside epoch ", start.epoch, " of the ", options.name, " set, and since then ",
            changes, " changed: in the rest of this epoch (", std::max<int64_t>(rest, 0),
            " samples), samples may repeat or be left out. From the next epoch on, each sample is read exactly once"));
}

bool DataLoader::Impl::drops_rest() const {
  const auto* shared = dynamic_cast<const DistributedSampler*>(sampler.get());
  return shared && shared->rest() == UnevenShares::drop;
}

int64_t DataLoader::Impl::batches_left(const EpochPosition& from) const {
  int64_t share = sampler->size(context.rank, context.world_size);
  if (from.dealt_from > 0) {
    const int64_t rest = std::max<int64_t>(sampler->size(0, 1) - from.dealt_from, 0);
    share = drops_rest() ? rest / context.world_size : (rest + context.world_size - 1) / context.world_size;
  }
  const int64_t left = std::max<int64_t>(share - from.samples, 0);
  return options.drop_last ? left / options.batch_size : (left + options.batch_size - 1) / options.batch_size;
}

// For an epoch that starts or resumes at `start`; drop_last counts batches from there.
EpochPlan DataLoader::Impl::make_plan(const EpochPosition& start) const {
  const auto check = [&](size_t got, int64_t expected, const char* what) {
    if (static_cast<int64_t>(got) != expected)
      throw Error(cat("[data.DataLoader] ", what, " as its size() says; got ", static_cast<int64_t>(got),
                      " instead of ", expected, "."));
  };
  if (options.batch_sampler) {
    const auto batches = options.batch_sampler->batches(context);
    check(batches.size(), options.batch_sampler->size(context.rank, context.world_size),
          "batches() of the batch sampler must return as many");
    return EpochPlan(batches);
  }
  const auto order_of = [&](const Sampler& from) {
    std::vector<int64_t> order = from.order(context);
    check(order.size(), from.size(context.rank, context.world_size),
          "order() of the sampler must return as many indices");
    return order;
  };
  std::vector<int64_t> order =
      start.dealt_from == 0 ? order_of(*sampler)
                            : order_of(DistributedSampler(std::make_shared<RestSampler>(sampler, start.dealt_from),
                                                          drops_rest() ? UnevenShares::drop : UnevenShares::pad));
  const auto all = static_cast<int64_t>(order.size());
  if (options.drop_last && start.samples <= all)
    order.resize(static_cast<size_t>(all - (all - start.samples) % options.batch_size));
  return EpochPlan(std::move(order), options.batch_size, options.drop_last);
}

bool DataLoader::Impl::pins() const {
  // LibTorch's CUDA part is loaded only if a run requests CUDA or finds it, and then it computes there.
  const bool cuda = at::globalContext().hasCUDA();
  const bool wanted = options.pin_memory.value.value_or(cuda);
  if (wanted && !cuda) {
    log::warn("data.pin_memory_without_cuda",
              "pin_memory is true, but there is no CUDA device: batches stay in ordinary memory");
    return false;
  }
  return wanted;
}

void DataLoader::Impl::make_recipe() {
  const bool pinned = pins();
  // With a transform, only its result is pinned: pinning before it would be wasted.
  pin_transformed = pinned && options.transform;
  const bool pinned_buffers = pinned && !options.collate && !options.transform;
  const int64_t rows = plan.largest_batch();
  if (recipe && buffers && buffers->rows() == rows && buffers->pinned() == pinned_buffers) return;
  Batch prototype;
  if (buffers) {
    prototype = buffers->prototype();
  } else {
    const SingleThreadGuard one_thread;
    const OutsideInferenceMode as_on_workers;
    prototype = dataset->prototype();
    if (options.collate) {
      // Sample shapes are unknown, so each sample keeps its own tensor until they are collated.
      for (auto& [name, value] : prototype)
        if (std::holds_alternative<Tensor>(value)) value = std::vector<Tensor>(1);
    }
  }
  recipe = std::make_shared<const BatchSpec>(BatchSpec{.dataset = dataset,
                                                       .collate = options.collate,
                                                       .pin_collated = pinned && !options.transform,
                                                       .name = options.name});
  // Room for the prefetched batches, the consumer's current batch, and its previous one.
  const int64_t most_workers = tuner ? usable_cpus() : workers;
  buffers.emplace(std::move(prototype), rows, static_cast<size_t>(most_workers * options.prefetch_factor + 3),
                  pinned_buffers);
}

void DataLoader::Impl::set_workers(int64_t count) {
  forget_ahead();
  ahead.reset();
  workers = count;
}

void DataLoader::Impl::forget_ahead() {
  if (ahead) ahead->drop();
  scheduled = position;
  stale = false;
}

std::shared_ptr<BatchTask> DataLoader::Impl::make_task(const EpochPosition& at, int64_t rows) {
  auto task = std::make_shared<BatchTask>();
  task->recipe = recipe;
  task->order = plan.order();
  task->begin = at.samples;
  task->rows = rows;
  task->context = {.seed = context.seed, .epoch = context.epoch};
  const auto indices = task->indices(0, rows);
  // With pinned memory a view must be copied anyway.
  if (!options.collate && !buffers->pinned() && is_range(indices)) {
    if (auto view = dataset->view(indices[0], rows)) {
      task->batch = std::move(*view);
      task->whole = true;
      return task;
    }
  }
  task->batch = buffers->take(rows);
  return task;
}

void DataLoader::Impl::schedule() {
  const auto limit = static_cast<size_t>(workers * options.prefetch_factor);
  const OutsideInferenceMode as_on_workers;
  while (ahead->waiting() < limit) {
    const int64_t rows = plan.rows_at(scheduled);
    if (rows <= 0) return;
    ahead->push(make_task(scheduled, rows));
    scheduled.samples += rows;
    ++scheduled.batches;
  }
}

Batch DataLoader::Impl::read_next(int64_t rows) {
  if (workers == 0) {
    const OutsideInferenceMode as_on_workers;
    const std::shared_ptr<BatchTask> task = make_task(position, rows);
    if (!task->whole) {
      const SingleThreadGuard one_thread;
      const auto start = Clock::now();
      task->read(0, rows);
      task->finish();
      const double took = std::chrono::duration<double>(Clock::now() - start).count();
      if (patience().is_slow(took)) report_slow_read(options.name, took, list_samples(task->indices(0, rows)));
    }
    return std::move(task->batch);
  }
  if (!ahead) ahead = std::make_unique<BatchWorkerPool>(ReadAheadOptions{.workers = workers, .patience = patience()});
  const auto start = Clock::now();
  schedule();
  const size_t before = ahead->waiting();
  try {
    Batch batch = ahead->take();
    advise(std::chrono::duration<double>(Clock::now() - start).count());
    return batch;
  } catch (...) {
    // A failed batch was taken; a late one is still being waited for.
    stale = stale || ahead->waiting() < before;
    throw;
  }
}

void DataLoader::Impl::advise(double waited) {
  if (tuner) return;
  if (const auto times = advice.add(waited, ahead->last_read_s()))
    log::warn("data.workers_slower",
              cat("waiting for a batch of the ", options.name, " set took ", format_fixed(times->waited_s * 1e6, 0),
                  " µs with num_workers ", workers, "; reading one without workers takes ",
                  format_fixed(times->read_s * 1e6, 0), " µs. Set num_workers to 0"));
}

void DataLoader::Impl::report_workers() const {
  log::info(cat("num_workers: ", tuner->workers(), " for the ", options.name,
                " set (time of a batch by number of workers: ", tuner->describe(), ")"));
}

void DataLoader::Impl::measured() {
  if (!tuner || tuner->done()) return;
  if (tuner->batch_given(Clock::now())) set_workers(tuner->workers());
  if (tuner->done()) report_workers();
}

std::optional<int64_t> DataLoader::size() const {
  if (impl_->options.batch_sampler)
    return impl_->options.batch_sampler->size(impl_->context.rank, impl_->context.world_size);
  return impl_->batches_left({});
}

std::optional<int64_t> DataLoader::samples() const { return impl_->usable_samples(); }

int64_t DataLoader::batch_size() const {
  return impl_->options.batch_sampler ? impl_->options.batch_sampler->batch_size() : impl_->options.batch_size;
}

const Dataset& DataLoader::dataset() const { return *impl_->dataset; }

int64_t DataLoader::num_workers() const { return impl_->workers; }

bool DataLoader::shares_in_turns() const {
  const SamplerContext& here = impl_->context;
  // A loader without a rank has all samples, or a share that only its creator knows.
  if (impl_->options.batch_sampler || here.world_size == 1) return false;
  const std::vector<int64_t> own = impl_->sampler->order(here);
  const std::vector<int64_t> all = impl_->sampler->order({.seed = here.seed, .epoch = here.epoch});
  for (size_t i = 0; i < own.size(); ++i) {
    const size_t place = static_cast<size_t>(here.rank) + i * static_cast<size_t>(here.world_size);
    if (place >= all.size() || all[place] != own[i]) return false;
  }
  return true;
}

bool DataLoader::shuffles() const {
  return impl_->options.batch_sampler ? impl_->options.batch_sampler->shuffles() : impl_->sampler->shuffles();
}

void DataLoader::configure(uint64_t seed, int64_t rank, int64_t world_size) {
  const SamplerContext before = impl_->context;
  impl_->context = {.seed = seed, .epoch = before.epoch, .rank = rank, .world_size = world_size};
  try {
    check_shares(impl_->options, *impl_->sampler, impl_->context, impl_->evenly);
    impl_->check_not_empty();
  } catch (...) {
    impl_->context = before;
    throw;
  }
}

void DataLoader::share_evenly(UnevenShares rest) {
  Impl& m = *impl_;
  m.evenly = rest;
  const UnevenShares way = rest == UnevenShares::drop ? UnevenShares::drop : UnevenShares::pad;
  if (m.options.batch_sampler) {
    if (auto shared = m.options.batch_sampler->shared_evenly(way)) m.options.batch_sampler = std::move(shared);
  } else if (!dynamic_cast<const DistributedSampler*>(m.sampler.get())) {
    m.sampler = std::make_shared<DistributedSampler>(m.sampler, way);
  }
}

void DataLoader::Impl::plan_from(const EpochPosition& start) {
  context.epoch = start.epoch;
  plan = make_plan(start);
  if (!plan.fits(start))
    throw DataError(cat("[data.DataLoader] the checkpoint is ", start.samples, " samples into epoch ", start.epoch,
                        " of the ", options.name, " set, which has ", plan.samples(),
                        options.batch_sampler ? " in different batches" : "",
                        ". Resume with the same data and the same number of processes."));
}

void DataLoader::check_loaded(int64_t epoch) {
  Impl& m = *impl_;
  refuse_other_loader(m.epoch_of_other_loader, "data.DataLoader", epoch);
  if (m.loaded && m.loaded->epoch == epoch) m.plan_from(*m.loaded);
}

void DataLoader::start_epoch(int64_t epoch) {
  Impl& m = *impl_;
  m.forget_ahead();
  refuse_other_loader(m.epoch_of_other_loader, "data.DataLoader", epoch);
  m.epoch_of_other_loader.reset();
  EpochPosition start{.epoch = epoch};
  if (m.loaded && m.loaded->epoch == epoch) start = *m.loaded;
  m.plan_from(start);
  if (m.loaded && m.loaded->epoch == epoch) m.warn_of_other_order(start);
  m.loaded.reset();
  m.before_last.reset();
  m.position = m.scheduled = start;
  m.make_recipe();
  if (m.tuner) m.tuner->pause();
  m.started = true;
}

void DataLoader::restart_epoch(int64_t epoch) {
  impl_->loaded.reset();
  impl_->epoch_of_other_loader.reset();
  start_epoch(epoch);
}

bool DataLoader::next(Batch& out) {
  Impl& m = *impl_;
  if (!m.started) throw Error("[data.DataLoader] start_epoch must be called before next.");
  const int64_t rows = m.plan.rows_at(m.position);
  if (rows <= 0) {
    if (m.tuner && !m.tuner->done()) {
      if (m.tuner->finish()) m.set_workers(m.tuner->workers());
      m.report_workers();
    }
    return false;
  }
  if (m.stale) m.forget_ahead();
  Batch batch = m.read_next(rows);
  try {
    out = m.options.transform ? m.options.transform(std::move(batch)) : std::move(batch);
    if (m.pin_transformed) out = out.pin_memory();
  } catch (...) {
    m.stale = true;
    throw;
  }
  // Counted only now: a batch that failed to read was not consumed.
  m.before_last = m.position;
  m.position.samples += rows;
  ++m.position.batches;
  if (m.workers > 0) m.schedule();
  m.measured();
  return true;
}

bool DataLoader::keep_order() {
  Impl& m = *impl_;
  if (m.options.batch_sampler) return !m.options.batch_sampler->shuffles();
  m.sampler = std::make_shared<SequentialSampler>(m.dataset->size());
  if (m.evenly) share_evenly(*m.evenly);
  return true;
}

bool DataLoader::set_batch_size(std::optional<int64_t> size) {
  Impl& m = *impl_;
  if (m.options.batch_sampler) return false;
  const int64_t wanted = size.value_or(m.first_batch_size);
  if (wanted == m.options.batch_size) return true;
  const int64_t before = std::exchange(m.options.batch_size, wanted);
  try {
    m.check_options();
    m.check_not_empty();
  } catch (...) {
    m.options.batch_size = before;
    throw;
  }
  return true;
}

void DataLoader::unread() {
  Impl& m = *impl_;
  if (!m.before_last) return;
  m.position = *m.before_last;
  m.before_last.reset();
  // Prefetched batches are not dropped here: that waits for the workers, and the run may be about to end.
  m.stale = true;
}

StateTree DataLoader::state() const {
  const EpochPosition& position = impl_->loaded ? *impl_->loaded : impl_->position;
  const OrderFacts order = impl_->loaded ? impl_->order_of_loaded : impl_->order_facts();
  StateTree state = StateTree::map({{"epoch", position.epoch},
                                    {"batches", position.batches},
                                    {"samples", position.samples},
                                    {"batch_size", batch_size()},
                                    {"set_samples", order.samples},
                                    {"shuffles", order.shuffles},
                                    {"seed", order.seed}});
  if (position.dealt_from > 0) state["dealt_from"] = position.dealt_from;
  return state;
}

StateTree DataLoader::reshard_state(const StateTree& state, int64_t from) const {
  if (impl_->options.batch_sampler)
    throw CheckpointError(
        cat("[data.DataLoader] the checkpoint was saved within an epoch that ", from,
            " processes read in the batches of a batch sampler; only the same number can continue it. Resume with ",
            from, " processes, or from a checkpoint of the end of an epoch."));
  const EpochPosition before = position_in(state);
  const int64_t all = impl_->sampler->size(0, 1);
  EpochPosition position{.epoch = before.epoch, .dealt_from = std::min(before.dealt_from + before.samples * from, all)};
  position.batches = std::max<int64_t>(*size() - impl_->batches_left(position), 0);
  StateTree resharded = state;
  resharded["batches"] = position.batches;
  resharded["samples"] = position.samples;
  resharded["batch_size"] = batch_size();
  resharded["dealt_from"] = position.dealt_from;
  return resharded;
}

void DataLoader::load_state(const StateTree& state) {
  impl_->epoch_of_other_loader = epoch_of_other_loader(state, LoaderKind::indexed);
  if (impl_->epoch_of_other_loader) return impl_->loaded.reset();
  EpochPosition position = position_in(state);
  // The samples are decisive: with another batch size, the remaining samples determine the number of batches left.
  if (!impl_->options.batch_sampler && state.at("batch_size").as_int() != batch_size())
    position.batches = std::max<int64_t>(*size() - impl_->batches_left(position), 0);
  impl_->order_of_loaded = order_facts_in(state);
  impl_->loaded = position;
}

}  // namespace fulgur
