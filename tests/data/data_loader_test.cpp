#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <numeric>

#include "fulgur/core/text/errors.h"
#include "fulgur/data/combined_loader.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/device_prefetcher.h"
#include "fulgur/data/iterable_loader.h"
#include "fulgur/data/samplers.h"
#include "fulgur/data/tensor_dataset.h"
#include "support/expect_error.h"
#include "support/gpu.h"
#include "support/shown_lines.h"

namespace data_loader_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

std::shared_ptr<TensorDataset> numbers(int64_t count) {
  return std::make_shared<TensorDataset>(Batch({Batch::Entry{"x", at::arange(count, at::kLong)}}));
}

/// Strings and ragged tensors, read one by one; sample 13 is damaged.
class RaggedDataset : public BatchDataset {
 public:
  int64_t size() const override { return 20; }
  Batch get(c10::ArrayRef<int64_t> indices, const SampleContext& context) const override {
    std::vector<Tensor> ragged;
    std::vector<std::string> names;
    for (const int64_t index : indices) {
      if (index == 13 && context.epoch == 1) throw DataError("sample 13 is damaged");
      ragged.push_back(at::arange(index));
      names.push_back(std::to_string(index) + "@" + std::to_string(context.seed) + "/" + std::to_string(context.epoch));
    }
    return Batch({Batch::Entry{"ragged", ragged}, Batch::Entry{"name", names}});
  }
};

/// Passes on what a Loader must have.
class ForwardingLoader : public Loader {
 public:
  explicit ForwardingLoader(std::shared_ptr<Loader> to) : to_(std::move(to)) {}
  std::optional<int64_t> size() const override { return to_->size(); }
  std::optional<int64_t> samples() const override { return to_->samples(); }
  int64_t batch_size() const override { return to_->batch_size(); }
  void start_epoch(int64_t epoch) override { to_->start_epoch(epoch); }
  bool next(Batch& out) override { return to_->next(out); }
  void unread() override { to_->unread(); }
  void configure(uint64_t seed, int64_t rank, int64_t world_size) override { to_->configure(seed, rank, world_size); }
  StateTree state() const override { return to_->state(); }
  void load_state(const StateTree& state) override { to_->load_state(state); }

 private:
  std::shared_ptr<Loader> to_;
};

std::vector<int64_t> drain(Loader& loader, std::vector<int64_t>* batch_sizes = nullptr) {
  std::vector<int64_t> seen;
  Batch batch;
  while (loader.next(batch)) {
    const auto* values = batch[0].const_data_ptr<int64_t>();
    seen.insert(seen.end(), values, values + batch.size());
    if (batch_sizes != nullptr) batch_sizes->push_back(batch.size());
  }
  return seen;
}

std::vector<int64_t> epoch_of(DataLoader& loader, int64_t epoch) {
  loader.start_epoch(epoch);
  return drain(loader);
}

}  // namespace

TEST_CASE("a loader returns the dataset in batches, the last one shorter") {
  DataLoader loader(numbers(10), {.batch_size = 4});
  CHECK(loader.size() == 3);
  CHECK(loader.samples() == 10);
  loader.start_epoch(0);
  std::vector<int64_t> sizes;
  std::vector<int64_t> all(10);
  std::iota(all.begin(), all.end(), int64_t{0});
  CHECK(drain(loader, &sizes) == all);
  CHECK(sizes == std::vector<int64_t>{4, 4, 2});
  Batch batch;
  CHECK_FALSE(loader.next(batch));
}

TEST_CASE("drop_last drops the incomplete batch") {
  DataLoader loader(numbers(10), {.batch_size = 4, .drop_last = true});
  CHECK(loader.size() == 2);
  CHECK(loader.samples() == 8);
  CHECK(epoch_of(loader, 0).size() == 8);
}

TEST_CASE("batches in the dataset's order are views, shuffled ones are not") {
  const auto dataset = numbers(8);
  const auto* begin = dataset->samples()[0].const_data_ptr<int64_t>();
  const auto inside = [&](const Batch& batch) {
    const auto* at = batch[0].const_data_ptr<int64_t>();
    return at >= begin && at < begin + 8;
  };
  Batch batch;
  DataLoader plain(dataset, {.batch_size = 4});
  plain.start_epoch(0);
  REQUIRE(plain.next(batch));
  CHECK(inside(batch));
  DataLoader shuffled(dataset, {.batch_size = 8, .shuffle = true});
  shuffled.start_epoch(0);
  REQUIRE(shuffled.next(batch));
  CHECK_FALSE(inside(batch));
  CHECK(shuffled.shuffles());
}

TEST_CASE("a batch stays as it is while later ones are read") {
  DataLoader loader(numbers(64), {.batch_size = 4, .shuffle = true});
  loader.start_epoch(0);
  std::vector<Tensor> kept, copies;
  Batch batch;
  while (loader.next(batch)) {
    kept.push_back(batch[0]);
    copies.push_back(batch[0].clone());
  }
  REQUIRE(kept.size() == 16);
  for (size_t i = 0; i < kept.size(); ++i) CHECK(at::equal(kept[i], copies[i]));
}

TEST_CASE("each epoch has its own order, reproducible from seed and epoch") {
  DataLoader a(numbers(50), {.batch_size = 8, .shuffle = true}), b(numbers(50), {.batch_size = 8, .shuffle = true});
  a.configure(7, 0, 1);
  b.configure(7, 0, 1);
  const auto first = epoch_of(a, 0), second = epoch_of(a, 1);
  CHECK(first != second);
  CHECK(epoch_of(b, 1) == second);
  b.configure(8, 0, 1);
  CHECK(epoch_of(b, 1) != second);
}

TEST_CASE("ranks see disjoint shares that make up the whole") {
  std::vector<int64_t> seen;
  for (int64_t rank = 0; rank < 3; ++rank) {
    DataLoader loader(numbers(11), {.batch_size = 2, .shuffle = true});
    loader.configure(1, rank, 3);
    CHECK(loader.samples() == (rank < 2 ? 4 : 3));
    const auto share = epoch_of(loader, 4);
    seen.insert(seen.end(), share.begin(), share.end());
  }
  std::sort(seen.begin(), seen.end());
  std::vector<int64_t> all(11);
  std::iota(all.begin(), all.end(), int64_t{0});
  CHECK(seen == all);
}

TEST_CASE("a loader continues after the loaded position, and only in that epoch") {
  for (const bool shuffle : {false, true}) {
    DataLoader whole(numbers(22), {.batch_size = 4, .shuffle = shuffle});
    whole.configure(3, 0, 1);
    const auto expected = epoch_of(whole, 2);
    for (int64_t taken = 0; taken <= 6; ++taken) {
      DataLoader before(numbers(22), {.batch_size = 4, .shuffle = shuffle});
      before.configure(3, 0, 1);
      before.start_epoch(2);
      Batch batch;
      for (int64_t i = 0; i < taken; ++i) REQUIRE(before.next(batch));
      const StateTree state = before.state();
      CHECK(state.at("epoch").as_int() == 2);
      CHECK(state.at("batches").as_int() == taken);
      CHECK(state.at("samples").as_int() == std::min<int64_t>(taken * 4, 22));

      DataLoader after(numbers(22), {.batch_size = 4, .shuffle = shuffle});
      after.configure(3, 0, 1);
      after.load_state(state);
      CHECK(after.state().at("batches").as_int() == taken);  // a checkpoint before the epoch starts keeps the position
      const auto rest = epoch_of(after, 2);
      CHECK(rest == std::vector<int64_t>(expected.begin() + std::min<int64_t>(taken * 4, 22), expected.end()));
      CHECK(epoch_of(after, 2) == expected);  // once

      DataLoader other(numbers(22), {.batch_size = 4, .shuffle = shuffle});
      other.configure(3, 0, 1);
      other.load_state(state);
      CHECK(epoch_of(other, 3).size() == 22);
      CHECK(other.state().at("batches").as_int() == 6);
    }
  }
}

TEST_CASE("a loader warns if it continues an epoch whose order has changed") {
  const auto saved = [](int64_t batches, bool shuffle = true) {
    DataLoader before(numbers(22), {.batch_size = 4, .shuffle = shuffle, .name = "train"});
    before.configure(3, 0, 1);
    before.start_epoch(2);
    Batch batch;
    for (int64_t i = 0; i < batches; ++i) REQUIRE(before.next(batch));
    return before.state();
  };
  const auto warning = [](const StateTree& state, int64_t samples, bool shuffle, uint64_t seed, int64_t epoch = 2) {
    return test::shown_lines([&] {
      DataLoader after(numbers(samples), {.batch_size = 4, .shuffle = shuffle, .name = "train"});
      after.configure(seed, 0, 1);
      after.load_state(state);
      CHECK(after.state().at("set_samples").as_int() == 22);  // a checkpoint before the epoch starts
      after.start_epoch(epoch);
    });
  };
  CHECK(warning(saved(2), 22, true, 3).empty());
  CHECK(warning(saved(0), 30, true, 3).empty());
  CHECK(warning(saved(2), 30, true, 3, /*epoch=*/3).empty());
  CHECK(warning(saved(2), 30, false, 4) ==
        "warning: the checkpoint was saved inside epoch 2 of the train set, and since then the number of samples (22, "
        "now 30) and shuffle (true, now false) changed: in the rest of this epoch (22 samples), samples may repeat or "
        "be left out. From the next epoch on, each sample is read exactly once [data.order_changed]\n");
  CHECK_THAT(warning(saved(2), 22, true, 4), ContainsSubstring("the seed of the order"));
  // As many samples were read as the smaller set has, but not these.
  CHECK_THAT(warning(saved(2), 8, true, 3), ContainsSubstring("in the rest of this epoch (0 samples)"));
  // In the data's order, more samples come after the rest.
  CHECK(warning(saved(2, /*shuffle=*/false), 30, false, 3).empty());
}

TEST_CASE("a loaded position is checked before it counts") {
  DataLoader loader(numbers(10), {.batch_size = 4, .name = "train"});
  CHECK_THROWS_AS(loader.load_state(StateTree::map({{"epoch", 0}, {"batches", 1}})), CheckpointError);
  CHECK_THROWS_AS(loader.load_state(StateTree::map({{"epoch", 0}, {"batches", -1}, {"samples", 0}})), CheckpointError);
  CHECK(epoch_of(loader, 0).size() == 10);
  DataLoader larger(numbers(30), {.batch_size = 4, .name = "train"});
  larger.start_epoch(1);
  Batch batch;
  for (int i = 0; i < 5; ++i) larger.next(batch);
  loader.load_state(larger.state());
  CHECK_THAT(message_of<DataError>([&] { loader.check_loaded(1); }), ContainsSubstring("20 samples into epoch 1"));
  CHECK_THAT(message_of<DataError>([&] { loader.start_epoch(1); }),
             ContainsSubstring("20 samples into epoch 1") && ContainsSubstring("has 10"));
}

TEST_CASE("a transform is applied to each batch") {
  DataLoader loader(numbers(10), {.batch_size = 4, .transform = [](Batch batch) {
                                    batch.set(0, batch[0].mul(2));
                                    return batch;
                                  }});
  const auto seen = epoch_of(loader, 0);
  CHECK(seen.front() == 0);
  CHECK(seen.back() == 18);
}

TEST_CASE("on a GPU, batches are pinned, those of a transform and of a collate function too", "[gpu]") {
  test::require_gpus(1);
  const auto twice = [](Batch batch) {
    batch.set(0, batch[0].mul(2));
    return batch;
  };
  const auto stack = [](Batch batch) {
    return Batch({Batch::Entry{"x", at::stack(std::get<std::vector<Tensor>>(batch.entry(0).second))}});
  };
  const DataLoaderOptions all[] = {{.batch_size = 4},
                                   {.batch_size = 4, .transform = twice},
                                   {.batch_size = 4, .collate = stack},
                                   {.batch_size = 4, .transform = twice, .collate = stack}};
  for (DataLoaderOptions options : all)
    for (const int64_t workers : {0, 2}) {
      CAPTURE(workers, bool(options.transform), bool(options.collate));
      options.num_workers = workers;
      DataLoader loader(numbers(10), options);
      loader.start_epoch(0);
      int64_t sum = 0;
      for (Batch batch; loader.next(batch);) {
        CHECK(batch[0].is_pinned());
        sum += batch[0].sum().item<int64_t>();
      }
      CHECK(sum == (options.transform ? 90 : 45));
    }
}

TEST_CASE("ragged and text samples reach the batch with seed and epoch") {
  DataLoader loader(std::make_shared<RaggedDataset>(), {.batch_size = 3});
  loader.configure(5, 0, 1);
  loader.start_epoch(2);
  Batch batch;
  REQUIRE(loader.next(batch));
  REQUIRE(loader.next(batch));
  const auto& names = std::get<std::vector<std::string>>(batch.entry(1).second);
  CHECK(names == std::vector<std::string>{"3@5/2", "4@5/2", "5@5/2"});
  CHECK(std::get<std::vector<Tensor>>(batch.entry(0).second)[2].size(0) == 5);
}

TEST_CASE("a batch that cannot be read is not counted as consumed") {
  DataLoader loader(std::make_shared<RaggedDataset>(), {.batch_size = 5});
  loader.start_epoch(1);
  Batch batch;
  REQUIRE(loader.next(batch));
  REQUIRE(loader.next(batch));
  CHECK_THROWS_AS(loader.next(batch), DataError);
  CHECK(loader.state().at("batches").as_int() == 2);
}

TEST_CASE("F38: data without a batch is an error before the first step") {
  CHECK_THAT(message_of<DataError>([] { DataLoader(numbers(0), {.name = "train"}); }),
             ContainsSubstring("train set has 0 batches"));
  CHECK_THAT(
      message_of<DataError>([] { DataLoader(numbers(3), {.batch_size = 4, .drop_last = true, .name = "train"}); }),
      ContainsSubstring("train set has 0 batches") && ContainsSubstring("3 samples") && ContainsSubstring("drop_last"));
  // Two samples on three ranks: one has nothing to evaluate; for training, one comes twice.
  DataLoader loader(numbers(2), {.name = "train"});
  loader.configure(0, 2, 3);
  CHECK(epoch_of(loader, 0).empty());
  loader.share_evenly(UnevenShares::pad);
  loader.configure(0, 2, 3);
  CHECK(epoch_of(loader, 0) == std::vector<int64_t>{0});
}

TEST_CASE("F26: samples that do not divide by the ranks are padded, dropped, or an error") {
  const auto shares = [](UnevenShares rest) {
    std::vector<std::vector<int64_t>> all;
    for (int64_t rank = 0; rank < 3; ++rank) {
      DataLoader loader(numbers(7), {.batch_size = 4, .name = "train"});
      loader.share_evenly(rest);
      loader.configure(0, rank, 3);
      all.push_back(epoch_of(loader, 0));
    }
    return all;
  };
  CHECK(shares(UnevenShares::pad) == std::vector<std::vector<int64_t>>{{0, 3, 6}, {1, 4, 0}, {2, 5, 1}});
  CHECK(shares(UnevenShares::drop) == std::vector<std::vector<int64_t>>{{0, 3}, {1, 4}, {2, 5}});
  CHECK_THAT(message_of<DataError>([&] { shares(UnevenShares::error); }),
             ContainsSubstring("7 samples of the train set cannot be divided evenly among 3") &&
                 ContainsSubstring("Leave 1 out"));
}

TEST_CASE("F38: one sample is a batch") {
  DataLoader loader(numbers(1), {.batch_size = 64, .shuffle = true});
  CHECK(loader.size() == 1);
  CHECK(epoch_of(loader, 0) == std::vector<int64_t>{0});
}

TEST_CASE("a sampler determines the order, and keep_order disables it") {
  DataLoader loader(
      numbers(10), {.batch_size = 2, .sampler = std::make_shared<SubsetSampler>(std::vector<int64_t>{7, 1, 4}, false)});
  CHECK(loader.size() == 2);
  CHECK(loader.samples() == 3);
  CHECK(epoch_of(loader, 0) == std::vector<int64_t>{7, 1, 4});
  CHECK(loader.keep_order());
  CHECK(epoch_of(loader, 1).size() == 10);
}

TEST_CASE("F38: what drop_last leaves is counted by rank, before the first step") {
  DataLoader loader(numbers(9), {.batch_size = 4, .drop_last = true, .name = "train"});
  loader.share_evenly(UnevenShares::pad);
  loader.configure(0, 0, 2);
  CHECK(loader.size() == 1);
  // Three ranks have three samples each, less than a batch.
  CHECK_THAT(message_of<DataError>([&] { loader.configure(0, 1, 3); }),
             ContainsSubstring("train set has 0 batches on rank 1 of 3") &&
                 ContainsSubstring("3 samples do not fill a batch of 4"));
  // An evaluation is not in lockstep: ranks without a batch have nothing to do, but one rank must have one.
  DataLoader evaluation(numbers(9), {.batch_size = 5, .drop_last = true, .name = "validation"});
  evaluation.configure(0, 1, 2);
  CHECK(evaluation.size() == 0);
  for (const int64_t rank : {0, 1, 2})
    CHECK_THAT(message_of<DataError>([&] { evaluation.configure(0, rank, 3); }),
               ContainsSubstring("validation set has 0 batches on rank 0 of 3") &&
                   ContainsSubstring("3 samples do not fill a batch of 5"));
  DataLoader one(numbers(1), {.batch_size = 1, .drop_last = true});
  CHECK(epoch_of(one, 0) == std::vector<int64_t>{0});
}

TEST_CASE("loader options that cannot work are refused") {
  const auto batches = std::make_shared<FixedBatchSampler>(std::make_shared<SequentialSampler>(4), 2);
  CHECK_THROWS_AS(DataLoader(numbers(4), {.shuffle = true, .batch_sampler = batches}), ConfigError);
  CHECK_THROWS_AS(DataLoader(numbers(4), {.sampler = std::make_shared<SequentialSampler>(4), .batch_sampler = batches}),
                  ConfigError);
  CHECK_THROWS_AS(DataLoader(numbers(4), {.drop_last = true, .batch_sampler = batches}), ConfigError);
  CHECK_THROWS_AS(DataLoader(nullptr, {}), ConfigError);
  CHECK_THROWS_AS(DataLoader(numbers(4), {.batch_size = 0}), ConfigError);
  CHECK_THAT(message_of<ConfigError>(
                 [] { DataLoader(numbers(4), {.shuffle = true, .sampler = std::make_shared<SequentialSampler>(4)}); }),
             ContainsSubstring("shuffle and sampler"));
  DataLoader loader(numbers(4), {});
  Batch batch;
  CHECK_THROWS_AS(loader.next(batch), Error);
}

TEST_CASE("a sampler that contradicts itself is found") {
  struct Short : SequentialSampler {
    using SequentialSampler::SequentialSampler;
    std::vector<int64_t> order(const SamplerContext&) const override { return {0}; }
  };
  DataLoader loader(numbers(4), {.sampler = std::make_shared<Short>(4)});
  CHECK_THAT(message_of<Error>([&] { loader.start_epoch(0); }), ContainsSubstring("got 1 instead of 4"));
}

TEST_CASE("another batch size applies from the next epoch on, and keeps the order of the samples") {
  for (const int64_t workers : {0, 2}) {
    CAPTURE(workers);
    DataLoader loader(numbers(40), {.batch_size = 4, .shuffle = true, .num_workers = workers}),
        plain(numbers(40), {.batch_size = 4, .shuffle = true});
    for (Loader* each : {static_cast<Loader*>(&loader), static_cast<Loader*>(&plain)}) each->configure(7, 0, 1);
    CHECK(epoch_of(loader, 0) == epoch_of(plain, 0));
    REQUIRE(loader.set_batch_size(16));
    CHECK(loader.batch_size() == 16);
    CHECK(loader.size() == 3);
    loader.start_epoch(1);
    std::vector<int64_t> sizes;
    CHECK(drain(loader, &sizes) == epoch_of(plain, 1));
    CHECK(sizes == std::vector<int64_t>{16, 16, 8});
    // As many as at the beginning.
    REQUIRE(loader.set_batch_size(std::nullopt));
    CHECK(loader.size() == 10);
    CHECK(epoch_of(loader, 2) == epoch_of(plain, 2));
  }
}

TEST_CASE("another batch size: a position inside an epoch, and shares of ranks") {
  DataLoader loader(numbers(40), {.batch_size = 4, .shuffle = true});
  loader.configure(7, 0, 1);
  const std::vector<int64_t> whole = epoch_of(loader, 1);
  REQUIRE(loader.set_batch_size(16));
  loader.start_epoch(1);
  Batch batch;
  REQUIRE(loader.next(batch));
  const StateTree state = loader.state();
  CHECK(state.at("batch_size").as_int() == 16);
  DataLoader resumed(numbers(40), {.batch_size = 4, .shuffle = true});
  resumed.configure(7, 0, 1);
  REQUIRE(resumed.set_batch_size(16));
  resumed.load_state(state);
  CHECK(resumed.state().at("batches").as_int() == 1);
  CHECK(epoch_of(resumed, 1) == std::vector<int64_t>(whole.begin() + 16, whole.end()));

  std::vector<int64_t> seen;
  for (int64_t rank = 0; rank < 2; ++rank) {
    DataLoader share(numbers(40), {.batch_size = 4, .shuffle = true});
    share.share_evenly(UnevenShares::pad);
    share.configure(7, rank, 2);
    REQUIRE(share.set_batch_size(8));
    CHECK(share.size() == 3);
    const auto part = epoch_of(share, 1);
    seen.insert(seen.end(), part.begin(), part.end());
  }
  std::sort(seen.begin(), seen.end());
  std::vector<int64_t> all(40);
  std::iota(all.begin(), all.end(), int64_t{0});
  CHECK(seen == all);
}

TEST_CASE("another batch size that gives no batch is refused and changes nothing") {
  DataLoader loader(numbers(10), {.batch_size = 4, .drop_last = true});
  CHECK_THROWS_AS(loader.set_batch_size(11), DataError);
  CHECK_THROWS_AS(loader.set_batch_size(0), ConfigError);
  CHECK(loader.batch_size() == 4);
  CHECK(epoch_of(loader, 0).size() == 8);
  DataLoader chosen(numbers(10), {.batch_sampler = std::make_shared<FixedBatchSampler>(
                                      std::make_shared<SequentialSampler>(10), /*batch_size=*/5)});
  CHECK_FALSE(chosen.set_batch_size(2));
}

TEST_CASE("restart_epoch begins at the first batch, whatever position was loaded") {
  struct Stream : IterableDataset {
    int64_t at = 0;
    void reset(const SampleContext&) override { at = 0; }
    std::optional<Batch> next(int64_t count, const SampleContext&) override {
      count = std::min(count, 10 - at);
      if (count <= 0) return std::nullopt;
      at += count;
      return Batch({Batch::Entry{"x", at::arange(at - count, at, at::kLong)}});
    }
    StateTree state() const override { return StateTree::map({{"at", at}}); }
    void load_state(const StateTree& state) override { at = state.at("at").as_int(); }
  };
  using Make = std::function<std::shared_ptr<Loader>()>;
  const Make indexed = [] { return std::make_shared<DataLoader>(numbers(10), DataLoaderOptions{.batch_size = 2}); };
  const Make stream = [] {
    return std::make_shared<IterableLoader>(std::make_shared<Stream>(), IterableLoaderOptions{.batch_size = 2});
  };
  const Make combined = [&] {
    std::vector<CombinedLoader::Named> parts{{"a", indexed()}};
    return std::make_shared<CombinedLoader>(std::move(parts), CombinedMode::sequential);
  };
  const Make prefetched = [&] { return std::make_shared<DevicePrefetcher>(indexed(), at::Device(at::kCPU)); };
  // One of a user, which has only start_epoch.
  const Make plain = [&] { return std::make_shared<ForwardingLoader>(indexed()); };
  std::vector<int64_t> all(10);
  std::iota(all.begin(), all.end(), int64_t{0});
  const std::vector<std::pair<const char*, Make>> kinds = {
      {"indexed", indexed}, {"stream", stream}, {"combined", combined}, {"prefetched", prefetched}, {"plain", plain}};
  for (const auto& [name, make] : kinds) {
    CAPTURE(name);
    const auto first = make(), second = make();
    for (const auto& loader : {first, second}) loader->configure(0, 0, 1);
    first->start_epoch(3);
    Batch batch;
    REQUIRE(first->next(batch));
    REQUIRE(first->next(batch));
    second->load_state(first->state());
    second->restart_epoch(3);
    CHECK(drain(*second) == all);
  }
}

}  // namespace data_loader_test
