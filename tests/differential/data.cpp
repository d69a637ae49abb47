#include "data.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "events.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/combined_loader.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/iterable_loader.h"
#include "fulgur/data/samplers.h"
#include "fulgur/data/tensor_dataset.h"

namespace fulgur::test {

namespace {

Batch samples(int64_t first, int64_t count, int64_t shift) {
  const Tensor id = (at::arange(count, at::kLong) + shift).remainder(count) + first;
  const Tensor x = at::sin((id.to(at::kDouble).unsqueeze(1) + 1) * (at::arange(3, at::kDouble) + 0.7) * 1.3);
  const Tensor y = at::tanh(x.slice(1, 0, 2) - 2 * x.slice(1, 1, 3));
  return Batch({Batch::Entry{"x", x.to(at::kFloat)}, Batch::Entry{"y", y.to(at::kFloat)}, Batch::Entry{"id", id}});
}

/// Every `world_size`-th sample of a stream. Its order changes from epoch to epoch.
class Stream final : public IterableDataset {
 public:
  explicit Stream(Batch samples) : samples_(std::move(samples)), size_(samples_[0].size(0)) {}
  void set_share(int64_t rank, int64_t world_size) override { rank_ = rank, world_size_ = world_size; }
  void reset(const SampleContext&) override { at_ = rank_; }
  std::optional<Batch> next(int64_t count, const SampleContext& context) override {
    std::vector<int64_t> rows;
    for (; count > 0 && at_ < size_; --count, at_ += world_size_) rows.push_back((at_ + 5 * context.epoch) % size_);
    if (rows.empty()) return std::nullopt;
    Batch batch;
    for (const auto& [name, value] : samples_)
      batch.add(name, std::get<Tensor>(value).index_select(0, at::tensor(rows)));
    return batch;
  }
  StateTree state() const override { return StateTree::map({{"at", at_}}); }
  void load_state(const StateTree& state) override { at_ = state.at("at").as_int(); }

 private:
  Batch samples_;
  int64_t size_, rank_ = 0, world_size_ = 1, at_ = 0;
};

CombinedMode mode_of(const std::string& name) {
  if (name == "min_size") return CombinedMode::min_size;
  if (name == "max_size") return CombinedMode::max_size;
  return name == "sequential" ? CombinedMode::sequential : CombinedMode::max_size_cycle;
}

}  // namespace

void DifferentialData::Options::fields(Fields& f) {
  f(num_train, "num_train", "Training samples.").at_least(1);
  f(num_val, "num_val", "Samples of each other set.").at_least(0);
  f(batch_size, "batch_size", "Training samples of a batch.").at_least(1);
  f(eval_batch_size, "eval_batch_size", "Samples of other batches.").at_least(1);
  f(order, "order", "Order of training samples.").one_of({"sequential", "shuffled", "weighted"});
  f(kind, "kind", "Training loader.").one_of({"sized", "stream"});
  f(second, "second", "Samples of a second training loader; 0: there is one.");
  f(mode, "mode", "When an epoch of two training loaders ends.")
      .one_of({"max_size_cycle", "min_size", "max_size", "sequential"});
  f(val_loaders, "val_loaders", "Validation loaders.").at_least(1);
  f(num_workers, "num_workers", "Threads that read ahead.");
  f(drop_last, "drop_last", "Leaves out a last batch that is not full.");
  f(by_epoch, "by_epoch", "Training loaders depend on the epoch in which they are created.");
  f(batches, "batches", "Training batches come from a batch sampler.");
  f(signal_when, "signal_when", "When the process sends itself SIGUSR1.").one_of({"never", "created", "destroyed"});
}

DifferentialData::DifferentialData(const Options& options) : options_(options) {
  if (options_.signal_when == "created") ::raise(SIGUSR1);
}

DifferentialData::~DifferentialData() {
  if (options_.signal_when == "destroyed") ::raise(SIGUSR1);
}

std::shared_ptr<Loader> DifferentialData::loader(int64_t first, int64_t count, bool train,
                                                 const std::string& name) const {
  const int64_t shift = train && options_.by_epoch && run_of_process ? 3 * run_of_process->progress().epoch : 0;
  const Batch all = samples(first, count, shift);
  if (train && options_.kind == "stream")
    return std::make_shared<IterableLoader>(
        std::make_shared<Stream>(all),
        IterableLoaderOptions{.batch_size = options_.batch_size,
                              .drop_last = options_.drop_last,
                              .name = name,
                              .num_workers = std::min<int64_t>(options_.num_workers, 1)});
  DataLoaderOptions options{.batch_size = train ? options_.batch_size : options_.eval_batch_size,
                            .shuffle = train && options_.order == "shuffled",
                            .drop_last = train && options_.drop_last,
                            .name = name};
  options.num_workers = options_.num_workers;
  if (train && options_.order == "weighted") {
    std::vector<double> weights;
    for (int64_t i = 0; i < count; ++i) weights.push_back(static_cast<double>(1 + i % 4));
    options.sampler = std::make_shared<WeightedSampler>(weights, count);
  }
  if (train && options_.batches) {
    std::shared_ptr<const Sampler> order = options.sampler;
    if (!order && options.shuffle) order = std::make_shared<RandomSampler>(count);
    if (!order) order = std::make_shared<SequentialSampler>(count);
    options.batch_sampler = std::make_shared<FixedBatchSampler>(order, options.batch_size, options.drop_last);
    options.sampler = nullptr;
    options.shuffle = options.drop_last = false;
    options.batch_size = 1;
  }
  return std::make_shared<DataLoader>(std::make_shared<TensorDataset>(all), options);
}

Loaders DifferentialData::loaders(RunningStage stage) {
  if (stage == RunningStage::train) {
    auto first = loader(0, options_.num_train, true, "train");
    if (options_.second == 0) return {std::move(first)};
    std::vector<CombinedLoader::Named> both{{"a", std::move(first)},
                                            {"b", loader(options_.num_train, options_.second, true, "second")}};
    return {std::make_shared<CombinedLoader>(std::move(both), mode_of(options_.mode))};
  }
  Loaders all;
  const int64_t count = options_.num_val;
  if (count == 0) return {};
  const int64_t loaders = stage == RunningStage::validate ? options_.val_loaders : 1;
  for (int64_t i = 0; i < loaders; ++i) all.push_back(loader(1000 + 100 * i, count + i, false, cat("other ", i)));
  return all;
}

}  // namespace fulgur::test
