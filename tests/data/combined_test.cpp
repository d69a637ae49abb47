#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <catch2/generators/catch_generators.hpp>
#include <functional>
#include <set>

#include "data_support.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/combined_loader.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/device_prefetcher.h"
#include "fulgur/data/iterable_loader.h"
#include "loading/look_ahead.h"
#include "support/expect_error.h"

namespace combined_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

std::shared_ptr<Loader> loader_of(int64_t samples, bool shuffle = false, int64_t workers = 0) {
  return std::make_shared<DataLoader>(numbers(samples),
                                      DataLoaderOptions{.batch_size = 2, .shuffle = shuffle, .num_workers = workers});
}

std::shared_ptr<CombinedLoader> both(CombinedMode mode, bool shuffle = false) {
  return std::make_shared<CombinedLoader>(
      std::vector<CombinedLoader::Named>{{"a", loader_of(10, shuffle, 1)}, {"b", loader_of(4, shuffle)}}, mode);
}

struct Stream : IterableDataset {
  int64_t end, at = 0;
  explicit Stream(int64_t e) : end(e) {}
  void reset(const SampleContext&) override { at = 0; }
  std::optional<Batch> next(int64_t count, const SampleContext&) override {
    if (at >= end) return std::nullopt;
    at += count;
    return Batch({Batch::Entry{"x", at::arange(at - count, at)}});
  }
  StateTree state() const override { return StateTree::map({{"at", at}}); }
  void load_state(const StateTree& state) override { at = state.at("at").as_int(); }
};

std::shared_ptr<Loader> stream(int64_t samples) {
  return std::make_shared<IterableLoader>(std::make_shared<Stream>(samples), IterableLoaderOptions{.batch_size = 2});
}

/// Each batch as `a.x=0,1 b.x=2,3`.
std::vector<std::string> texts(Loader& loader) {
  std::vector<std::string> all;
  Batch batch;
  while (loader.next(batch)) {
    std::vector<std::string> entries;
    for (const auto& [name, value] : batch) {
      const auto* x = std::get<Tensor>(value).const_data_ptr<int64_t>();
      entries.push_back(name + "=" + std::to_string(x[0]) + "," + std::to_string(x[1]));
    }
    all.push_back(join(entries, " "));
  }
  return all;
}

}  // namespace

TEST_CASE("combined loaders end as their mode says") {
  struct Case {
    CombinedMode mode;
    std::vector<std::string> expected;
  };
  const std::vector<Case> cases = {
      {CombinedMode::max_size_cycle,
       {"a.x=0,1 b.x=0,1", "a.x=2,3 b.x=2,3", "a.x=4,5 b.x=0,1", "a.x=6,7 b.x=2,3", "a.x=8,9 b.x=0,1"}},
      {CombinedMode::min_size, {"a.x=0,1 b.x=0,1", "a.x=2,3 b.x=2,3"}},
      {CombinedMode::max_size, {"a.x=0,1 b.x=0,1", "a.x=2,3 b.x=2,3", "a.x=4,5", "a.x=6,7", "a.x=8,9"}},
      {CombinedMode::sequential, {"x=0,1", "x=2,3", "x=4,5", "x=6,7", "x=8,9", "x=0,1", "x=2,3"}},
  };
  for (const Case& c : cases) {
    const auto loader = both(c.mode);
    loader->start_epoch(0);
    CHECK(texts(*loader) == c.expected);
    CHECK(loader->size() == static_cast<int64_t>(c.expected.size()));
    loader->start_epoch(1);
    CHECK(texts(*loader) == c.expected);
  }
  CHECK(both(CombinedMode::sequential)->samples() == 14);
  CHECK_FALSE(both(CombinedMode::min_size)->samples().has_value());
}

TEST_CASE("combined streams end as their mode says, with no size known") {
  struct Case {
    CombinedMode mode;
    std::vector<std::string> expected;
  };
  const std::vector<Case> cases = {
      {CombinedMode::max_size_cycle, {"a.x=0,1 b.x=0,1", "a.x=2,3 b.x=2,3", "a.x=0,1 b.x=4,5"}},
      {CombinedMode::min_size, {"a.x=0,1 b.x=0,1", "a.x=2,3 b.x=2,3"}},
      {CombinedMode::max_size, {"a.x=0,1 b.x=0,1", "a.x=2,3 b.x=2,3", "b.x=4,5"}},
      {CombinedMode::sequential, {"x=0,1", "x=2,3", "x=0,1", "x=2,3", "x=4,5"}},
  };
  for (const Case& c : cases) {
    CombinedLoader loader({{"a", stream(4)}, {"b", stream(6)}}, c.mode);
    CHECK_FALSE(loader.size().has_value());
    CHECK_FALSE(loader.samples().has_value());
    CHECK(loader.batch_size() == 2);
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      loader.start_epoch(epoch);
      CHECK(texts(loader) == c.expected);
      Batch batch;
      CHECK_FALSE(loader.next(batch));
    }
  }
  // One stream is enough for the size to be unknown.
  CHECK_FALSE(CombinedLoader({{"a", loader_of(4)}, {"b", stream(6)}}, CombinedMode::min_size).size().has_value());
}

TEST_CASE("inside an epoch only the same kind of loader continues; after it, any") {
  const std::vector<std::function<std::shared_ptr<Loader>()>> kinds{
      [] { return loader_of(12, true); }, [] { return stream(12); }, [] { return both(CombinedMode::sequential); }};
  for (size_t from = 0; from < kinds.size(); ++from)
    for (size_t to = 0; to < kinds.size(); ++to) {
      CAPTURE(from, to);
      const auto before = kinds[from](), after = kinds[to]();
      Batch batch;
      before->start_epoch(3);
      REQUIRE(before->next(batch));
      after->load_state(before->state());
      if (from == to) {
        CHECK_NOTHROW(after->start_epoch(3));
        continue;
      }
      CHECK_THAT(message_of<CheckpointError>([&] { after->start_epoch(3); }),
                 ContainsSubstring("inside epoch 3, which another kind of loader was reading"));
      after->load_state(before->state());
      CHECK_NOTHROW(after->start_epoch(4));
      CHECK(after->next(batch));
    }
}

TEST_CASE("a combined loader gives each of its loaders seed and share") {
  const auto make = [](uint64_t seed, int64_t rank) {
    CombinedLoader loader({{"a", loader_of(16, true)}, {"b", loader_of(16, true)}}, CombinedMode::sequential);
    loader.configure(seed, rank, 2);
    CHECK(loader.samples() == 16);
    return epoch_of(loader, 0);
  };
  const auto first = make(1, 0), second = make(1, 1);
  CHECK(make(1, 0) == first);
  CHECK(make(2, 0) != first);
  for (std::ptrdiff_t part : {0, 8}) {
    std::set<int64_t> seen(first.begin() + part, first.begin() + part + 8);
    seen.insert(second.begin() + part, second.begin() + part + 8);
    CHECK(seen.size() == 16);
  }
}

TEST_CASE("combined loaders resume at any batch, and a batch can go back") {
  for (const CombinedMode mode :
       {CombinedMode::max_size_cycle, CombinedMode::min_size, CombinedMode::max_size, CombinedMode::sequential}) {
    const auto whole = both(mode, true);
    whole->configure(3, 0, 1);
    whole->start_epoch(1);
    const auto expected = texts(*whole);
    for (size_t taken = 0; taken <= expected.size(); ++taken) {
      const auto before = both(mode, true);
      before->configure(3, 0, 1);
      before->start_epoch(1);
      Batch batch;
      for (size_t i = 0; i < taken; ++i) REQUIRE(before->next(batch));
      const std::vector<std::string> rest(expected.begin() + static_cast<std::ptrdiff_t>(taken), expected.end());
      const auto after = both(mode, true);
      after->configure(3, 0, 1);
      after->load_state(before->state());
      after->start_epoch(1);
      CHECK(texts(*after) == rest);
      if (taken == expected.size()) continue;
      REQUIRE(before->next(batch));
      before->unread();
      CHECK(texts(*before) == rest);
    }
  }
}

TEST_CASE("combined loaders resume with another batch size after the samples that were read") {
  const auto sized = [](CombinedMode mode, int64_t batch_size) {
    const auto part = [&](int64_t samples) {
      return std::make_shared<DataLoader>(numbers(samples), DataLoaderOptions{.batch_size = batch_size});
    };
    const auto loader =
        std::make_shared<CombinedLoader>(std::vector<CombinedLoader::Named>{{"a", part(24)}, {"b", part(10)}}, mode);
    loader->configure(3, 0, 1);
    return loader;
  };
  const auto samples_of = [](Loader& loader, int64_t batches) {
    std::multiset<std::pair<std::string, int64_t>> all;
    Batch batch;
    for (int64_t i = 0; i != batches && loader.next(batch); ++i)
      for (const auto& [name, value] : batch) {
        const Tensor& x = std::get<Tensor>(value);
        for (int64_t at = 0; at < x.numel(); ++at) all.emplace(name.substr(0, 1), x[at].item<int64_t>());
      }
    return all;
  };
  for (const CombinedMode mode : {CombinedMode::sequential, CombinedMode::max_size})
    for (const int64_t now : {1, 3, 4})
      for (const int64_t taken : {1, 5, 7, 11}) {
        CAPTURE(mode, now, taken);
        const auto before = sized(mode, 2), after = sized(mode, now), whole = sized(mode, 2);
        before->start_epoch(0);
        auto seen = samples_of(*before, taken);
        after->load_state(before->state());
        after->start_epoch(0);
        seen.merge(samples_of(*after, -1));
        whole->start_epoch(0);
        CHECK(seen == samples_of(*whole, -1));
      }
}

TEST_CASE("the last batch of a combined epoch can go back, also once the loader has said that there is no other") {
  const auto mode =
      GENERATE(CombinedMode::max_size_cycle, CombinedMode::min_size, CombinedMode::max_size, CombinedMode::sequential);
  const bool sized = GENERATE(true, false);
  const auto [a, b] = GENERATE(table<int64_t, int64_t>({{4, 6}, {6, 4}, {10, 2}, {2, 10}, {4, 4}}));
  CAPTURE(static_cast<int>(mode), sized, a, b);
  const auto make = [&, a = a, b = b] {
    return std::make_shared<CombinedLoader>(
        std::vector<CombinedLoader::Named>{{"a", sized ? loader_of(a, true) : stream(a)},
                                           {"b", sized ? loader_of(b, true) : stream(b)}},
        mode);
  };
  const auto rest_from = [&](const StateTree& state) {
    const auto after = make();
    after->load_state(state);
    after->start_epoch(1);
    return texts(*after);
  };
  const auto loader = make();
  loader->start_epoch(1);
  const std::vector<std::string> all = texts(*loader);
  const auto batches = static_cast<int64_t>(all.size());
  CHECK(loader->state().at("batches").as_int() == batches);
  CHECK(rest_from(loader->state()).empty());
  loader->unread();
  loader->unread();  // there is only one to give back
  CHECK(loader->state().at("batches").as_int() == batches - 1);
  CHECK(rest_from(loader->state()) == std::vector<std::string>{all.back()});
  CHECK(texts(*loader) == std::vector<std::string>{all.back()});
  CHECK(loader->state().at("batches").as_int() == batches);
  loader->start_epoch(1);
  CHECK(texts(*loader) == all);
}

TEST_CASE("a combined batch of which one loader fails is read again whole") {
  const bool resumed = GENERATE(false, true);
  const auto make = [](int* failures) {
    const auto dataset = std::make_shared<WatchedDataset>(8, [failures](int64_t index, const SampleContext&) {
      if (index == 4 && failures && (*failures)-- > 0) throw DataError("damaged");
    });
    return std::make_shared<CombinedLoader>(std::vector<CombinedLoader::Named>{
        {"a", loader_of(8)}, {"b", std::make_shared<DataLoader>(dataset, DataLoaderOptions{.batch_size = 2})}});
  };
  int failures = 1;
  auto loader = make(&failures);
  loader->start_epoch(0);
  Batch batch;
  for (int i = 0; i < 2; ++i) REQUIRE(loader->next(batch));
  CHECK_THROWS_AS(loader->next(batch), DataError);
  CHECK(loader->state().at("batches").as_int() == 2);
  if (resumed) {
    const StateTree state = loader->state();
    loader = make(nullptr);
    loader->load_state(state);
    loader->start_epoch(0);
  }
  for (int64_t first = 4; first < 8; first += 2) {
    REQUIRE(loader->next(batch));
    CHECK(batch["a.x"].const_data_ptr<int64_t>()[0] == first);
    CHECK(batch["b.x"].const_data_ptr<int64_t>()[0] == first);
  }
  CHECK_FALSE(loader->next(batch));
}

TEST_CASE("a shorter loader that begins again has a new order") {
  const auto loader = std::make_shared<CombinedLoader>(
      std::vector<CombinedLoader::Named>{{"long", loader_of(80)}, {"short", loader_of(20, true)}});
  CHECK(loader->shuffles());
  loader->start_epoch(0);
  std::vector<int64_t> seen;
  Batch batch;
  while (loader->next(batch)) {
    const auto* x = batch["short.x"].const_data_ptr<int64_t>();
    seen.insert(seen.end(), x, x + 2);
  }
  REQUIRE(seen.size() == 80);
  CHECK(std::vector<int64_t>(seen.begin(), seen.begin() + 20) !=
        std::vector<int64_t>(seen.begin() + 20, seen.begin() + 40));
  CHECK(loader->keep_order());
  CHECK_FALSE(loader->shuffles());
}

TEST_CASE("a combined loader resets the batch sizes of its loaders, and sets none") {
  const auto a = loader_of(20), b = loader_of(20);
  const int64_t own = a->batch_size();
  CombinedLoader loader({{"a", a}, {"b", b}});
  REQUIRE(a->set_batch_size(own + 3));
  REQUIRE(b->set_batch_size(own + 5));
  CHECK_FALSE(loader.set_batch_size(own + 1));
  CHECK(b->batch_size() == own + 5);
  CHECK(loader.set_batch_size(std::nullopt));
  CHECK(a->batch_size() == own);
  CHECK(b->batch_size() == own);
}

TEST_CASE("combined loaders refuse what cannot work") {
  CHECK_THROWS_AS(CombinedLoader({}), ConfigError);
  CHECK_THROWS_AS(CombinedLoader({{"a", nullptr}}), ConfigError);
  CHECK_THAT(message_of<ConfigError>([] {
               CombinedLoader({{"a", loader_of(2)}, {"a", loader_of(2)}});
             }),
             ContainsSubstring("'a' occurs twice"));
  const auto loader = both(CombinedMode::min_size);
  StateTree state = loader->state();
  CombinedLoader one({{"a", loader_of(2)}});
  one.load_state(state);
  CHECK_THROWS_AS(one.start_epoch(0), DataError);
}

TEST_CASE("a look-ahead gives the same batches, and its state is that of the batches given out") {
  const auto make = [](bool shuffle) {
    return LookAhead(loader_of(11, shuffle, 2), [](const Batch& batch) { return batch; });
  };
  const auto rest_of = [](LookAhead& ahead) {
    std::vector<int64_t> seen;
    Batch batch;
    while (ahead.next(batch)) {
      const auto* x = batch[0].const_data_ptr<int64_t>();
      seen.insert(seen.end(), x, x + batch.size());
      ahead.read_ahead();
    }
    return seen;
  };
  LookAhead whole = make(true);
  whole.start_epoch(2);
  const auto expected = rest_of(whole);
  REQUIRE(expected.size() == 11);
  for (int64_t taken = 0; taken <= 6; ++taken) {
    LookAhead before = make(true);
    before.start_epoch(2);
    Batch batch;
    for (int64_t i = 0; i < taken; ++i) {
      REQUIRE(before.next(batch));
      before.read_ahead();
    }
    CHECK(before.state().at("batches").as_int() == taken);
    LookAhead after = make(true);
    after.load_state(before.state());
    after.start_epoch(2);
    CHECK(rest_of(after) == std::vector<int64_t>(expected.begin() + std::min<int64_t>(taken * 2, 11), expected.end()));
    if (taken == 0) continue;
    before.unread();
    CHECK(before.state().at("batches").as_int() == taken - 1);
    CHECK(rest_of(before) == std::vector<int64_t>(expected.begin() + (taken - 1) * 2, expected.end()));
  }
}

TEST_CASE("an error of the batch that is read ahead comes with that batch") {
  const auto dataset = std::make_shared<WatchedDataset>(8, [](int64_t index, const SampleContext&) {
    if (index == 4) throw DataError("damaged");
  });
  LookAhead ahead(std::make_shared<DataLoader>(dataset, DataLoaderOptions{.batch_size = 2}),
                  [](const Batch& batch) { return batch; });
  ahead.start_epoch(0);
  Batch batch;
  for (int i = 0; i < 2; ++i) {
    REQUIRE(ahead.next(batch));
    ahead.read_ahead();
  }
  CHECK(ahead.state().at("batches").as_int() == 2);
  CHECK_THROWS_AS(ahead.next(batch), DataError);
  CHECK(ahead.state().at("batches").as_int() == 2);
}

TEST_CASE("on a CPU a device prefetcher passes batches through") {
  DevicePrefetcher loader(loader_of(10), at::Device(at::kCPU));
  CHECK(loader.size() == 5);
  loader.start_epoch(0);
  Batch batch;
  REQUIRE(loader.next(batch));
  CHECK(loader.state().at("batches").as_int() == 1);
  loader.unread();
  CHECK(drain(loader).size() == 10);
  CHECK_THROWS_AS(DevicePrefetcher(nullptr, at::Device(at::kCPU)), ConfigError);
}

}  // namespace combined_test
