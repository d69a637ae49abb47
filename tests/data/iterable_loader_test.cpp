#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <numeric>
#include <stdexcept>

#include "data_support.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/data/iterable_loader.h"
#include "support/expect_error.h"

namespace iterable_loader_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// 0, 1, 2, … plus 100 times the epoch; `damaged` cannot be read. `before_read` is called for each batch with its first
/// number.
class Counter : public IterableDataset {
 public:
  explicit Counter(int64_t end, int64_t damaged = -1, std::function<void(int64_t)> before_read = {})
      : end_(end), damaged_(damaged), before_read_(std::move(before_read)) {}
  void reset(const SampleContext&) override { next_ = 0; }
  std::optional<Batch> next(int64_t count, const SampleContext& context) override {
    const int64_t rows = std::min(count, end_ - next_);
    if (rows == 0) return std::nullopt;
    if (before_read_) before_read_(next_);
    if (damaged_ >= next_ && damaged_ < next_ + rows) throw DataError("line 7 is damaged");
    Batch batch({Batch::Entry{"x", at::arange(next_, next_ + rows).add(100 * context.epoch)}});
    next_ += rows;
    return batch;
  }
  StateTree state() const override { return StateTree::map({{"next", next_}}); }
  void load_state(const StateTree& state) override { next_ = state.at("next").as_int(); }

 private:
  int64_t end_, damaged_, next_ = 0;
  std::function<void(int64_t)> before_read_;
};

/// 1, 2, …, 6: a tensor that is made when an epoch begins, and changed by the thread that reads.
class Growing : public IterableDataset {
 public:
  void reset(const SampleContext&) override { sum_ = at::zeros({1}, at::kLong); }
  std::optional<Batch> next(int64_t, const SampleContext&) override {
    if (sum_.item<int64_t>() == 6) return std::nullopt;
    sum_.add_(1);
    return Batch({Batch::Entry{"x", sum_.clone()}});
  }
  StateTree state() const override { return StateTree::map({{"sum", sum_.item<int64_t>()}}); }
  void load_state(const StateTree& state) override { sum_.fill_(state.at("sum").as_int()); }

 private:
  Tensor sum_;
};

/// Calls until no DataError comes: on a machine that is busy, anything may be late.
template <class Call>
auto at_last(Call&& call) {
  for (int i = 0;; ++i) {
    try {
      return call();
    } catch (const DataError&) {
      if (i == 1000) throw;
    }
  }
}

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

TEST_CASE("a stream may change tensors that it made for a thread in inference mode") {
  for (const int64_t workers : {0, 1}) {
    IterableLoader loader(std::make_shared<Growing>(), {.batch_size = 1, .num_workers = workers});
    {
      const c10::InferenceMode inference;
      CHECK(epoch_of(loader, 0) == range(1, 7));
      loader.start_epoch(1);
    }
    CHECK(drain(loader) == range(1, 7));
  }
}

TEST_CASE("a stream resumes after what was given out, whatever was read ahead") {
  for (const int64_t workers : {0, 1}) {
    for (int64_t taken = 0; taken <= 3; ++taken) {
      const auto make = [&] {
        return std::make_unique<IterableLoader>(std::make_shared<Counter>(10),
                                                IterableLoaderOptions{.batch_size = 4, .num_workers = workers});
      };
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

TEST_CASE("the batch size of a stream may change between epochs, not inside one") {
  const auto make = [](int64_t batch_size) {
    return std::make_unique<IterableLoader>(std::make_shared<Counter>(8),
                                            IterableLoaderOptions{.batch_size = batch_size});
  };
  const auto before = make(4);
  before->start_epoch(0);
  CHECK(drain(*before) == range(0, 8));
  const auto next = make(2), same = make(2);
  next->load_state(before->state());
  CHECK_NOTHROW(next->start_epoch(1));
  same->load_state(before->state());
  CHECK_THAT(message_of<CheckpointError>([&] { same->start_epoch(0); }),
             ContainsSubstring("batch_size 4, but the run has 2"));
}

TEST_CASE("F36: an error of a stream comes in order and is not consumed; threads end") {
  const int64_t before = thread_count();
  for (const int64_t workers : {0, 1}) {
    IterableLoader loader(std::make_shared<Counter>(20, 9), {.batch_size = 4, .num_workers = workers});
    loader.start_epoch(0);
    Batch batch;
    REQUIRE(loader.next(batch));
    REQUIRE(loader.next(batch));
    CHECK_THAT(message_of<DataError>([&] { loader.next(batch); }),
               ContainsSubstring("line 7 is damaged (batch 2 of the data set)"));
    CHECK(loader.state().at("batches").as_int() == 2);
    CHECK_THROWS_AS(loader.next(batch), DataError);
    loader.start_epoch(1);
    REQUIRE(loader.next(batch));
  }
  CHECK(threads_come_down_to(before));
}

TEST_CASE("F36: what a stream throws that is not an error of Fulgur is nested in a DataError") {
  for (const int64_t workers : {0, 1}) {
    const auto raise = [](int64_t) { throw std::out_of_range("column 3"); };
    IterableLoader loader(std::make_shared<Counter>(4, -1, raise), {.name = "train", .num_workers = workers});
    loader.start_epoch(0);
    Batch batch;
    try {
      loader.next(batch);
      FAIL("nothing was thrown");
    } catch (const DataError& error) {
      CHECK(error.code() == ExitCode::data);
      CHECK_THAT(error.what(),
                 ContainsSubstring(
                     "[data.IterableLoader] batch 0 of the train set could not be read; std::out_of_range: column 3"));
      CHECK_THROWS_AS(std::rethrow_if_nested(error), std::out_of_range);
    }
  }
}

TEST_CASE("F36: a stream that blocks is an error after timeout_s, with what is waited for") {
  const int64_t before = thread_count();
  // The thread that is stuck may outlive the loader, so the gate is the dataset's as well.
  const auto gate = std::make_shared<Gate>();
  {
    IterableLoader loader(std::make_shared<Counter>(20, -1,
                                                    [gate](int64_t first) {
                                                      if (first == 8) gate->pass();
                                                    }),
                          {.batch_size = 4, .name = "train", .num_workers = 1, .timeout_s = 0.05});
    loader.start_epoch(0);
    Batch batch;
    for (int i = 0; i < 2; ++i) REQUIRE(at_last([&] { return loader.next(batch); }));
    gate->wait_for_a_reader();
    CHECK_THAT(message_of<DataError>([&] { loader.next(batch); }),
               ContainsSubstring("[data.IterableLoader]") && ContainsSubstring("within timeout_s, 0.05 s") &&
                   ContainsSubstring("train set") && ContainsSubstring("batch 2, being read for"));
    CHECK(loader.state().at("batches").as_int() == 2);
    // Still there: the batch comes once the dataset continues.
    SECTION("it goes on") {
      gate->open();
      REQUIRE(at_last([&] { return loader.next(batch); }));
      CHECK(batch[0].const_data_ptr<int64_t>()[0] == 8);
    }
    SECTION("another place has to wait, since the thread is in the dataset") {
      CHECK_THAT(message_of<DataError>([&] { loader.start_epoch(1); }),
                 ContainsSubstring("only while nothing is being read") && ContainsSubstring("train set"));
      CHECK_THROWS_AS(loader.next(batch), DataError);
      CHECK_THROWS_AS(loader.configure(1, 0, 1), DataError);
      gate->open();
      at_last([&] {
        loader.start_epoch(1);
        return true;
      });
      for (int64_t first = 100; first < 120; first += 4) {
        REQUIRE(at_last([&] { return loader.next(batch); }));
        CHECK(batch[0].const_data_ptr<int64_t>()[0] == first);
      }
      CHECK_FALSE(at_last([&] { return loader.next(batch); }));
    }
    SECTION("a batch that is returned makes the stream begin again, once it can") {
      loader.unread();
      CHECK_THROWS_AS(loader.next(batch), DataError);
      gate->open();
      REQUIRE(at_last([&] { return loader.next(batch); }));
      CHECK(batch[0].const_data_ptr<int64_t>()[0] == 4);
    }
    SECTION("the loader ends first, and its thread by itself") { CHECK(thread_count() > before); }
  }
  gate->open();
  CHECK(threads_come_down_to(before));
}

TEST_CASE("without timeout_s a stream is waited for, and without a thread there is none") {
  const auto gate = std::make_shared<Gate>();
  const auto pass = [gate](int64_t) { gate->pass(); };
  IterableLoader loader(std::make_shared<Counter>(4, -1, pass), {.batch_size = 4, .num_workers = 1});
  loader.start_epoch(0);
  std::thread opener([&] {
    gate->wait_for_a_reader();
    gate->open();
  });
  Batch batch;
  CHECK(loader.next(batch));
  opener.join();
  IterableLoader alone(std::make_shared<Counter>(4), {.batch_size = 4, .timeout_s = 1e-9});
  CHECK(epoch_of(alone, 0).size() == 4);
}

TEST_CASE("a stream is read no more than prefetch_factor batches ahead") {
  const auto reads = std::make_shared<std::atomic<int64_t>>(0);
  IterableLoader loader(std::make_shared<Counter>(400, -1, [reads](int64_t) { ++*reads; }),
                        {.batch_size = 4, .num_workers = 1, .prefetch_factor = 3});
  loader.start_epoch(0);
  Batch batch;
  for (int64_t taken = 1; taken <= 3; ++taken) {
    REQUIRE(loader.next(batch));
    for (int i = 0; i < 6000 && *reads < taken + 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(*reads == taken + 3);
  }
}

TEST_CASE("a stream's transform is applied to each batch, on the thread of the run") {
  for (const int64_t workers : {0, 1}) {
    const auto here = std::this_thread::get_id();
    bool elsewhere = false, fails = true;
    const auto twice = [&](Batch batch) {
      elsewhere = elsewhere || std::this_thread::get_id() != here;
      if (fails && batch[0][0].item<int64_t>() == 4) throw DataError("no");
      batch.set(0, batch[0].mul(2));
      return batch;
    };
    IterableLoader loader(std::make_shared<Counter>(8), {.batch_size = 4, .transform = twice, .num_workers = workers});
    loader.start_epoch(0);
    Batch batch;
    REQUIRE(loader.next(batch));
    CHECK_THROWS_AS(loader.next(batch), DataError);
    // Not consumed, so it comes again.
    CHECK(loader.state().at("batches").as_int() == 1);
    fails = false;
    CHECK(drain(loader) == std::vector<int64_t>{8, 10, 12, 14});
    CHECK_FALSE(elsewhere);
  }
}

TEST_CASE("a stream has one position, and knows its share or throws") {
  CHECK_THAT(message_of<ConfigError>([] { IterableLoader(std::make_shared<Counter>(4), {.num_workers = 2}); }),
             ContainsSubstring("one position"));
  CHECK_THROWS_AS(IterableLoader(std::make_shared<Counter>(4), {.batch_size = 0}), ConfigError);
  CHECK_THROWS_AS(IterableLoader(std::make_shared<Counter>(4), {.prefetch_factor = 0}), ConfigError);
  CHECK_THAT(message_of<ConfigError>(
                 [] { IterableLoader(std::make_shared<Counter>(4), {.name = "train", .timeout_s = -0.5}); }),
             ContainsSubstring("timeout_s must not be negative; got -0.5 for the train set"));
  CHECK_THROWS_AS(IterableLoader(nullptr, {}), ConfigError);
  IterableLoader loader(std::make_shared<Counter>(4), {});
  CHECK_THROWS_AS(loader.configure(0, 0, 2), DistributedError);
  loader.configure(0, 0, 1);
  CHECK(epoch_of(loader, 0).size() == 4);
}

TEST_CASE("another batch size of a stream applies from the next epoch on") {
  for (const int64_t workers : {0, 1}) {
    CAPTURE(workers);
    IterableLoader loader(std::make_shared<Counter>(10), {.batch_size = 4, .num_workers = workers});
    loader.configure(0, 0, 1);
    loader.start_epoch(0);
    Batch batch;
    REQUIRE(loader.next(batch));
    REQUIRE(loader.set_batch_size(6));
    loader.start_epoch(1);
    REQUIRE(loader.next(batch));
    CHECK(batch.size() == 6);
    const StateTree state = loader.state();
    CHECK(drain(loader) == range(106, 110));

    IterableLoader resumed(std::make_shared<Counter>(10), {.batch_size = 4, .num_workers = workers});
    resumed.configure(0, 0, 1);
    REQUIRE(resumed.set_batch_size(6));
    resumed.load_state(state);
    CHECK(epoch_of(resumed, 1) == range(106, 110));
    REQUIRE(resumed.set_batch_size(std::nullopt));
    CHECK(resumed.batch_size() == 4);
    CHECK_THROWS_AS(resumed.set_batch_size(0), ConfigError);
  }
}

}  // namespace iterable_loader_test
