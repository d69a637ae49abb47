#include "fulgur/data/iterable_loader.h"

#include <chrono>
#include <exception>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "loading/other_loader.h"
#include "reading/outside_inference_mode.h"
#include "reading/single_thread_guard.h"
#include "reading/stream_reader.h"
#include "sampling/epoch_plan.h"

namespace fulgur {

struct IterableLoader::Impl {
  struct Position : EpochPosition {
    StateTree dataset;  ///< its state there
  };

  std::shared_ptr<IterableDataset> dataset;
  IterableLoaderOptions options;
  int64_t first_batch_size = 1;  // that of the options before `set_batch_size`
  SampleContext context;
  Position position;
  std::optional<Position> before_last, loaded;
  int64_t loaded_batch_size = 0;
  std::optional<int64_t> epoch_of_other_loader;  // the loaded state is one of another kind of loader
  std::unique_ptr<StreamReader> reader;
  bool started = false, stale = false, at_end = false;

  void check_batch_size(int64_t size) const {
    if (size < 1)
      throw ConfigError(
          cat("[data.IterableLoader] batch_size must be at least 1; got ", size, " for the ", options.name, " set."));
  }

  StreamRecipe recipe() const {
    return {.dataset = dataset,
            .batch_size = options.batch_size,
            .drop_last = options.drop_last,
            .context = context,
            .name = options.name};
  }

  StreamItem read() {
    const ReadTimeouts patience{.timeout_s = options.timeout_s, .slow_after_s = options.slow_after_s};
    if (options.num_workers > 0) {
      if (!reader)
        reader = std::make_unique<StreamReader>(recipe(), position.batches,
                                                static_cast<size_t>(options.prefetch_factor), patience);
      return reader->take();
    }
    const SingleThreadGuard one_thread;
    const OutsideInferenceMode as_on_the_thread;
    const auto start = std::chrono::steady_clock::now();
    StreamItem item = read_stream(recipe(), position.batches);
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (patience.is_slow(took))
      report_slow_read(options.name, took, cat("batch ", position.batches, " of epoch ", context.epoch));
    return item;
  }

  void stop_reading() {
    if (reader) reader->stop();
    reader.reset();
  }

  /// The stream continues after `position`.
  void go_to_position() {
    stale = true;  // until the stream has moved
    stop_reading();
    const OutsideInferenceMode as_on_the_thread;
    dataset->reset(context);
    if (position.batches > 0) dataset->load_state(position.dataset);
    stale = at_end = false;
  }
};

IterableLoader::IterableLoader(std::shared_ptr<IterableDataset> dataset, IterableLoaderOptions options)
    : impl_(std::make_unique<Impl>()) {
  const auto refuse = [&](const char* rule, auto got) {
    throw ConfigError(cat("[data.IterableLoader] ", rule, "; got ", got, " for the ", options.name, " set."));
  };
  if (!dataset)
    throw ConfigError(cat("[data.IterableLoader] a dataset is needed for the ", options.name, " set; got none."));
  if (options.num_workers < 0 || options.num_workers > 1)
    refuse("a stream has one position, so num_workers must be 0 or 1", options.num_workers);
  if (options.prefetch_factor < 1) refuse("prefetch_factor must be at least 1", options.prefetch_factor);
  if (!(options.timeout_s >= 0)) refuse("timeout_s must not be negative", options.timeout_s);
  impl_->dataset = std::move(dataset);
  impl_->options = std::move(options);
  impl_->check_batch_size(impl_->options.batch_size);
  impl_->first_batch_size = impl_->options.batch_size;
}

IterableLoader::~IterableLoader() = default;

std::optional<int64_t> IterableLoader::samples() const { return impl_->dataset->samples(); }

int64_t IterableLoader::batch_size() const { return impl_->options.batch_size; }

void IterableLoader::configure(uint64_t seed, int64_t rank, int64_t world_size) {
  impl_->stop_reading();
  impl_->dataset->set_share(rank, world_size);
  impl_->context.seed = seed;
  impl_->stale = true;
}

bool IterableLoader::set_batch_size(std::optional<int64_t> size) {
  Impl& m = *impl_;
  const int64_t wanted = size.value_or(m.first_batch_size);
  m.check_batch_size(wanted);
  if (wanted == m.options.batch_size) return true;
  // A thread reads batches of the old size.
  m.stop_reading();
  m.options.batch_size = wanted;
  m.stale = true;
  return true;
}

void IterableLoader::check_loaded(int64_t epoch) {
  const Impl& m = *impl_;
  refuse_other_loader(m.epoch_of_other_loader, "data.IterableLoader", epoch);
  if (m.loaded && m.loaded->epoch == epoch && m.loaded->batches > 0 && m.loaded_batch_size != m.options.batch_size)
    throw CheckpointError(cat("[data.IterableLoader] the checkpoint was saved within an epoch with batch_size ",
                              m.loaded_batch_size, ", but the run has ", m.options.batch_size,
                              "; iterable data resumes only with the same batch size."));
}

void IterableLoader::start_epoch(int64_t epoch) {
  Impl& m = *impl_;
  check_loaded(epoch);
  m.epoch_of_other_loader.reset();
  m.context.epoch = epoch;
  Impl::Position start;
  start.epoch = epoch;
  if (m.loaded && m.loaded->epoch == epoch) start = *m.loaded;
  m.position = std::move(start);
  m.go_to_position();
  m.loaded.reset();
  m.before_last.reset();
  m.started = true;
}

void IterableLoader::restart_epoch(int64_t epoch) {
  impl_->loaded.reset();
  impl_->epoch_of_other_loader.reset();
  start_epoch(epoch);
}

bool IterableLoader::next(Batch& out) {
  Impl& m = *impl_;
  if (!m.started) throw Error("[data.IterableLoader] start_epoch must be called before next.");
  if (m.stale) m.go_to_position();
  if (m.at_end) return false;
  StreamItem item = m.read();
  if (item.error) {
    m.stale = true;
    std::rethrow_exception(item.error);
  }
  if (!item.batch) {
    m.at_end = true;
    return false;
  }
  const int64_t rows = item.batch->size();
  try {
    out = m.options.transform ? m.options.transform(std::move(*item.batch)) : std::move(*item.batch);
  } catch (...) {
    m.stale = true;
    throw;
  }
  m.before_last = std::move(m.position);
  m.position.epoch = m.context.epoch;
  m.position.batches = m.before_last->batches + 1;
  m.position.samples = m.before_last->samples + rows;
  m.position.dataset = std::move(item.state_after);
  return true;
}

void IterableLoader::unread() {
  Impl& m = *impl_;
  if (!m.before_last) return;
  m.position = std::move(*m.before_last);
  m.before_last.reset();
  m.stale = true;
}

StateTree IterableLoader::reshard_state(const StateTree& state, int64_t from) const {
  if (state.at("batches").as_int() == 0) return state;
  throw CheckpointError(cat("[data.IterableLoader] the checkpoint was saved within an epoch of iterable data that ",
                            from, " processes read; only the same number can continue it. Resume with ", from,
                            " processes, or from a checkpoint of the end of an epoch."));
}

StateTree IterableLoader::state() const {
  const Impl::Position& p = impl_->loaded ? *impl_->loaded : impl_->position;
  return StateTree::map({{"epoch", p.epoch},
                         {"batches", p.batches},
                         {"samples", p.samples},
                         {"batch_size", impl_->options.batch_size},
                         {"dataset", p.dataset}});
}

void IterableLoader::load_state(const StateTree& state) {
  impl_->epoch_of_other_loader = epoch_of_other_loader(state, LoaderKind::iterable);
  if (impl_->epoch_of_other_loader) return impl_->loaded.reset();
  Impl::Position p;
  p.epoch = state.at("epoch").as_int();
  p.batches = state.at("batches").as_int();
  p.samples = state.at("samples").as_int();
  p.dataset = state.at("dataset");
  if (p.epoch < 0 || p.batches < 0 || p.samples < 0)
    throw CheckpointError(cat("[data.IterableLoader] a position must not be negative; got epoch ", p.epoch, ", batch ",
                              p.batches, ", sample ", p.samples, "."));
  impl_->loaded_batch_size = state.at("batch_size").as_int();
  impl_->loaded = std::move(p);
}

}  // namespace fulgur
