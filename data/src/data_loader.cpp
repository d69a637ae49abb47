#include "fulgur/data/data_loader.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"
#include "fulgur/data/samplers.h"

namespace fulgur {
namespace {

bool is_range(c10::ArrayRef<int64_t> indices) {
  for (size_t i = 1; i < indices.size(); ++i)
    if (indices[i] != indices[0] + static_cast<int64_t>(i)) return false;
  return true;
}

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options)
    : dataset_(std::move(dataset)), options_(std::move(options)) {
  if (!dataset_) throw ConfigError(cat("[data.DataLoader] a dataset is needed for the ", options_.name, " set; got none."));
  if (options_.batch_size < 1)
    throw ConfigError(cat("[data.DataLoader] batch_size must be at least 1; got ", options_.batch_size, " for the ", options_.name, " set."));
  if (options_.shuffle && options_.sampler)
    throw ConfigError(cat("[data.DataLoader] shuffle and sampler exclude each other; both are set for the ", options_.name,
                          " set. Leave out shuffle: the sampler gives the order."));
  if (options_.sampler) sampler_ = options_.sampler;
  else if (options_.shuffle) sampler_ = std::make_shared<RandomSampler>(dataset_->size());
  else sampler_ = std::make_shared<SequentialSampler>(dataset_->size());
  check_not_empty();
}

void DataLoader::check_not_empty() const {
  const int64_t here = sampler_->size(context_.rank, context_.world_size);
  const std::string share = context_.world_size == 1 ? "" : cat(" on rank ", context_.rank, " of ", context_.world_size);
  if (here == 0)
    throw DataError(cat("[data.DataLoader] ", options_.name, " set has 0 batches", share, "; it has ", dataset_->size(),
                        " samples. Check the data, the size of its split", context_.world_size == 1 ? "" : ", the number of processes",
                        " and the sampler."));
  if (options_.drop_last && here < options_.batch_size)
    throw DataError(cat("[data.DataLoader] ", options_.name, " set has 0 batches", share, "; its ", here,
                        " samples do not fill a batch of ", options_.batch_size,
                        " and drop_last leaves out what is not full. Lower batch_size or set drop_last to false."));
}

int64_t DataLoader::usable_samples() const {
  const int64_t all = sampler_->size(context_.rank, context_.world_size);
  return options_.drop_last ? all - all % options_.batch_size : all;
}

std::optional<int64_t> DataLoader::size() const { return (usable_samples() + options_.batch_size - 1) / options_.batch_size; }

std::optional<int64_t> DataLoader::samples() const { return usable_samples(); }

void DataLoader::configure(uint64_t seed, int64_t rank, int64_t world_size) {
  const SamplerContext before = context_;
  context_ = {.seed = seed, .epoch = context_.epoch, .rank = rank, .world_size = world_size};
  try {
    check_not_empty();
  } catch (...) {
    context_ = before;
    throw;
  }
}

void DataLoader::start_epoch(int64_t epoch) {
  Position start{.epoch = epoch};
  if (loaded_ && loaded_->epoch == epoch) start = *loaded_;
  context_.epoch = epoch;
  order_ = sampler_->order(context_);
  if (static_cast<int64_t>(order_.size()) != sampler_->size(context_.rank, context_.world_size))
    throw Error(cat("[data.DataLoader] order() of the sampler must give as many indices as its size() says; got ", order_.size(), " instead of ",
                    sampler_->size(context_.rank, context_.world_size), "."));
  order_.resize(static_cast<size_t>(usable_samples()));
  if (start.samples > static_cast<int64_t>(order_.size()))
    throw DataError(cat("[data.DataLoader] the checkpoint lies ", start.samples, " samples into epoch ", epoch, " of the ", options_.name,
                        " set, which has ", order_.size(), ". Resume with the data and number of processes that it was made with."));
  loaded_.reset();
  position_ = start;
  if (prototype_.empty()) prototype_ = dataset_->prototype();
}

Batch DataLoader::allocate(int64_t rows) const {
  Batch batch;
  for (const auto& [name, value] : prototype_) {
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      std::vector<int64_t> sizes = tensor->sizes().vec();
      sizes.at(0) = rows;
      batch.add(name, at::empty(sizes, tensor->options()));
    } else if (std::holds_alternative<std::vector<Tensor>>(value)) {
      batch.add(name, std::vector<Tensor>(static_cast<size_t>(rows)));
    } else {
      batch.add(name, std::vector<std::string>(static_cast<size_t>(rows)));
    }
  }
  return batch;
}

bool DataLoader::next(Batch& out) {
  if (order_.empty()) throw Error("[data.DataLoader] start_epoch must be called before next.");
  const int64_t left = static_cast<int64_t>(order_.size()) - position_.samples;
  if (left <= 0) return false;
  const int64_t rows = std::min(left, options_.batch_size);
  const c10::ArrayRef<int64_t> indices(order_.data() + position_.samples, static_cast<size_t>(rows));
  std::optional<Batch> batch;
  if (is_range(indices)) batch = dataset_->view(indices[0], rows);
  if (!batch) {
    batch = allocate(rows);
    dataset_->read(indices, 0, *batch, {.seed = context_.seed, .epoch = context_.epoch});
  }
  out = options_.transform ? options_.transform(std::move(*batch)) : std::move(*batch);
  // Counted only now: a batch whose reading failed was not consumed.
  position_.samples += rows;
  ++position_.batches;
  return true;
}

bool DataLoader::keep_order() {
  sampler_ = std::make_shared<SequentialSampler>(dataset_->size());
  return true;
}

void DataLoader::unread() {
  if (position_.batches == 0) return;
  --position_.batches;
  position_.samples = position_.batches * options_.batch_size;
}

StateTree DataLoader::state() const {
  const Position& position = loaded_ ? *loaded_ : position_;
  return StateTree::map({{"epoch", position.epoch}, {"batches", position.batches}, {"samples", position.samples}});
}

void DataLoader::load_state(const StateTree& state) {
  const Position position{.epoch = state.at("epoch").as_int(), .batches = state.at("batches").as_int(), .samples = state.at("samples").as_int()};
  if (position.epoch < 0 || position.batches < 0 || position.samples < 0)
    throw CheckpointError(cat("[data.DataLoader] a position must not be negative; got epoch ", position.epoch, ", batch ", position.batches,
                              ", sample ", position.samples, "."));
  loaded_ = position;
}

}  // namespace fulgur
