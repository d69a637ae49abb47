#include <ATen/ops/arange.h>

#include <numeric>

#include "data_support.h"
#include "fulgur/core/errors.h"
#include "fulgur/data/iterable_loader.h"
#include "support/expect_error.h"

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// 0, 1, 2, … plus 100 times the epoch; `damaged` cannot be read.
class Counter : public IterableDataset {
 public:
  explicit Counter(int64_t end, int64_t damaged = -1) : end_(end), damaged_(damaged) {}
  void reset(const SampleContext&) override { next_ = 0; }
  std::optional<Batch> next(int64_t count, const SampleContext& context) override {
    const int64_t rows = std::min(count, end_ - next_);
    if (rows == 0) return std::nullopt;
    if (damaged_ >= next_ && damaged_ < next_ + rows) throw DataError("line 7 is damaged");
    Batch batch({Batch::Entry{"x", at::arange(next_, next_ + rows).add(100 * context.epoch)}});
    next_ += rows;
    return batch;
  }
  StateTree state() const override { return StateTree::map({{"next", next_}}); }
  void load_state(const StateTree& state) override { next_ = state.at("next").as_int(); }

 private:
  int64_t end_, damaged_, next_ = 0;
};

std::vector<int64_t> range(int64_t from, int64_t to) {
  std::vector<int64_t> values(static_cast<size_t>(to - from));
  std::iota(values.begin(), values.end(), from);
  return values;
}

}  // namespace

TEST_CASE("a stream comes in batches, with and without a thread") {
  for (const int64_t workers : {0, 1}) {
    IterableLoader loader(std::make_shared<Counter>(10), {.batch_size = 4, .num_workers = workers});
    CHECK_FALSE(loader.size().has_value());
    CHECK(epoch_of(loader, 0) == range(0, 10));
    CHECK(epoch_of(loader, 1) == range(100, 110));
    Batch batch;
    CHECK_FALSE(loader.next(batch));
    IterableLoader full(std::make_shared<Counter>(10), {.batch_size = 4, .drop_last = true, .num_workers = workers});
    CHECK(epoch_of(full, 0) == range(0, 8));
  }
}

TEST_CASE("a stream resumes behind what was given out, whatever was read ahead") {
  for (const int64_t workers : {0, 1}) {
    for (int64_t taken = 0; taken <= 3; ++taken) {
      const auto make = [&] { return std::make_unique<IterableLoader>(std::make_shared<Counter>(10), IterableLoaderOptions{.batch_size = 4, .num_workers = workers}); };
      const auto before = make();
      before->start_epoch(0);
      Batch batch;
      for (int64_t i = 0; i < taken; ++i) REQUIRE(before->next(batch));
      if (workers > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const auto after = make();
      after->load_state(before->state());
      CHECK(epoch_of(*after, 0) == range(std::min<int64_t>(4 * taken, 10), 10));
      if (taken == 0) continue;
      before->unread();
      CHECK(before->state().at("batches").as_int() == taken - 1);
      CHECK(drain(*before) == range(4 * (taken - 1), 10));
    }
  }
}

TEST_CASE("F36: an error of a stream comes in order and is not consumed; threads end") {
  const int64_t before = thread_count();
  for (const int64_t workers : {0, 1}) {
    IterableLoader loader(std::make_shared<Counter>(20, 9), {.batch_size = 4, .num_workers = workers});
    loader.start_epoch(0);
    Batch batch;
    REQUIRE(loader.next(batch));
    REQUIRE(loader.next(batch));
    CHECK_THROWS_AS(loader.next(batch), DataError);
    CHECK(loader.state().at("batches").as_int() == 2);
    CHECK_THROWS_AS(loader.next(batch), DataError);
    loader.start_epoch(1);
    REQUIRE(loader.next(batch));
  }
  CHECK(threads_come_down_to(before));
}

TEST_CASE("a stream has one position, and knows its share or says so") {
  CHECK_THAT(message_of<ConfigError>([] { IterableLoader(std::make_shared<Counter>(4), {.num_workers = 2}); }), ContainsSubstring("one position"));
  CHECK_THROWS_AS(IterableLoader(std::make_shared<Counter>(4), {.batch_size = 0}), ConfigError);
  CHECK_THROWS_AS(IterableLoader(nullptr, {}), ConfigError);
  IterableLoader loader(std::make_shared<Counter>(4), {});
  CHECK_THROWS_AS(loader.configure(0, 0, 2), DistributedError);
  loader.configure(0, 0, 1);
  CHECK(epoch_of(loader, 0).size() == 4);
}
