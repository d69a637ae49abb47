#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <stdexcept>

#include "data_support.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/sample_dataset.h"
#include "fulgur/data/samplers.h"
#include "reading/worker_overhead_monitor.h"
#include "reading/worker_tuner.h"
#include "support/expect_error.h"

namespace workers_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using std::chrono::milliseconds;

namespace {

/// All bytes of an epoch, batch by batch.
std::string bytes_of(Loader& loader, int64_t epoch) {
  std::string bytes;
  Batch batch;
  loader.start_epoch(epoch);
  while (loader.next(batch)) {
    for (const auto& [name, value] : batch) {
      const Tensor tensor = std::get<Tensor>(value).contiguous();
      bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    }
    bytes += '|';
  }
  return bytes;
}

void sleep_ms(int count) { std::this_thread::sleep_for(milliseconds(count)); }

struct NotStandard {};

/// Samples that are not contiguous, so that they are copied by LibTorch. Notes the modes of the reading thread.
struct TurnedSamples : SampleDataset {
  mutable std::atomic<int> in_inference_mode{0}, without_gradients{0};
  int64_t size() const override { return 12; }
  Sample get(int64_t index, const SampleContext&) const override {
    in_inference_mode += c10::InferenceMode::is_enabled() ? 1 : 0;
    without_gradients += c10::GradMode::is_enabled() ? 0 : 1;
    return {{"x", at::arange(6 * index, 6 * index + 6).view({2, 3}).t()}};
  }
};

}  // namespace

TEST_CASE("F54: an epoch is the same, bit for bit, for any number of workers") {
  // Samples that take different times come back in order all the same.
  const auto dataset = std::make_shared<WatchedDataset>(103, [](int64_t index, const SampleContext&) {
    if (index % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
  });
  for (const bool shuffle : {false, true}) {
    DataLoader alone(dataset, {.batch_size = 8, .shuffle = shuffle});
    alone.configure(11, 0, 1);
    const std::string expected = bytes_of(alone, 3);
    CHECK(expected != bytes_of(alone, 4));
    for (const int64_t workers : {1, 2, 3, 8}) {
      DataLoader loader(dataset, {.batch_size = 8, .shuffle = shuffle, .num_workers = workers});
      loader.configure(11, 0, 1);
      CHECK(bytes_of(loader, 3) == expected);
      CHECK(bytes_of(loader, 3) == expected);
    }
  }
}

TEST_CASE("F54: stopped and resumed with workers equals never stopped") {
  const auto make = [](int64_t workers) {
    auto loader =
        std::make_unique<DataLoader>(std::make_shared<WatchedDataset>(50),
                                     DataLoaderOptions{.batch_size = 4, .shuffle = true, .num_workers = workers});
    loader->configure(5, 0, 1);
    return loader;
  };
  const std::vector<int64_t> whole = epoch_of(*make(0), 2);
  for (int64_t taken = 0; taken <= 13; taken += 3) {
    const auto before = make(2);
    before->start_epoch(2);
    Batch batch;
    for (int64_t i = 0; i < taken; ++i) REQUIRE(before->next(batch));
    // Read ahead, but not consumed.
    CHECK(before->state().at("samples").as_int() == std::min<int64_t>(taken * 4, 50));
    const auto after = make(3);
    after->load_state(before->state());
    CHECK(epoch_of(*after, 2) == std::vector<int64_t>(whole.begin() + std::min<int64_t>(taken * 4, 50), whole.end()));
  }
}

TEST_CASE("workers read no more than num_workers * prefetch_factor batches ahead") {
  const auto dataset = std::make_shared<WatchedDataset>(400);
  DataLoader loader(dataset, {.batch_size = 4, .num_workers = 2, .prefetch_factor = 3});
  loader.start_epoch(0);
  Batch batch;
  for (int64_t taken = 1; taken <= 3; ++taken) {
    REQUIRE(loader.next(batch));
    for (int i = 0; i < 200 && dataset->reads < (taken + 6) * 4; ++i) sleep_ms(5);
    sleep_ms(20);
    CHECK(dataset->reads == (taken + 6) * 4);
  }
}

TEST_CASE("a batch goes back and comes again, with workers too") {
  for (const int64_t workers : {0, 2}) {
    DataLoader loader(std::make_shared<WatchedDataset>(30), {.batch_size = 4, .num_workers = workers});
    loader.start_epoch(0);
    Batch batch;
    REQUIRE(loader.next(batch));
    REQUIRE(loader.next(batch));
    loader.unread();
    CHECK(loader.state().at("batches").as_int() == 1);
    CHECK(loader.state().at("samples").as_int() == 4);
    loader.unread();  // there is only one to give back
    CHECK(loader.state().at("batches").as_int() == 1);
    std::vector<int64_t> rest(26);
    std::iota(rest.begin(), rest.end(), int64_t{4});
    CHECK(drain(loader) == rest);
    loader.unread();  // the short last one
    CHECK(loader.state().at("samples").as_int() == 28);
    CHECK(drain(loader) == std::vector<int64_t>{28, 29});
  }
}

TEST_CASE("an epoch can begin again while batches are on their way") {
  DataLoader loader(
      std::make_shared<WatchedDataset>(
          200, [](int64_t, const SampleContext&) { std::this_thread::sleep_for(std::chrono::microseconds(100)); }),
      {.batch_size = 8, .shuffle = true, .num_workers = 3});
  loader.configure(1, 0, 1);
  Batch batch;
  for (int64_t epoch = 0; epoch < 6; ++epoch) {
    loader.start_epoch(epoch);
    for (int64_t i = 0; i < epoch; ++i) REQUIRE(loader.next(batch));
  }
  DataLoader alone(std::make_shared<WatchedDataset>(200), {.batch_size = 8, .shuffle = true});
  alone.configure(1, 0, 1);
  CHECK(epoch_of(loader, 7) == epoch_of(alone, 7));
}

TEST_CASE("a thread in inference mode gets the batches that it gets outside of it, with and without workers") {
  const auto dataset = std::make_shared<TurnedSamples>();
  DataLoader outside(dataset, {.batch_size = 5, .shuffle = true});
  outside.configure(2, 0, 1);
  const std::string expected = bytes_of(outside, 1);
  for (const int64_t workers : {0, 2}) {
    DataLoader loader(dataset, {.batch_size = 5, .shuffle = true, .num_workers = workers});
    loader.configure(2, 0, 1);
    {
      const c10::InferenceMode inference;
      CHECK(bytes_of(loader, 1) == expected);
      Batch batch;
      loader.start_epoch(0);
      REQUIRE(loader.next(batch));
      CHECK_FALSE(batch["x"].is_inference());
      CHECK(c10::InferenceMode::is_enabled());
      CHECK_FALSE(c10::GradMode::is_enabled());
    }
    CHECK(bytes_of(loader, 1) == expected);
  }
  CHECK(dataset->in_inference_mode == 0);
  const int before = dataset->without_gradients;
  {
    const c10::InferenceMode inference;
    CHECK(bytes_of(outside, 1) == expected);
  }
  CHECK(dataset->without_gradients == before + 12);
}

TEST_CASE("memory of batches is reused, but not while a tensor of it is held") {
  for (const int64_t workers : {0, 2}) {
    DataLoader loader(std::make_shared<WatchedDataset>(640),
                      {.batch_size = 4, .shuffle = true, .num_workers = workers, .prefetch_factor = 1});
    loader.start_epoch(0);
    Batch batch;
    std::set<const void*> places;
    while (loader.next(batch)) places.insert(batch[1].const_data_ptr());
    CHECK(places.size() <= 5);

    // Held in part: a view of one row, in another shape.
    loader.start_epoch(1);
    std::vector<Tensor> views, copies;
    for (int i = 0; i < 40; ++i) {
      REQUIRE(loader.next(batch));
      views.push_back(batch["noise"].select(0, 1).view({2, 2}));
      copies.push_back(views.back().clone());
    }
    while (loader.next(batch)) {
    }
    for (size_t i = 0; i < views.size(); ++i) CHECK(at::equal(views[i], copies[i]));
  }
}

TEST_CASE("what is done to a batch's tensors ends with that batch") {
  DataLoader loader(std::make_shared<WatchedDataset>(64), {.batch_size = 4, .shuffle = true});
  loader.start_epoch(0);
  Batch batch;
  while (loader.next(batch)) {
    CHECK(batch["noise"].sizes() == at::IntArrayRef({4, 4}));
    CHECK_FALSE(batch["noise"].requires_grad());
    batch["noise"].requires_grad_(true);
    batch["x"].resize_({8, 100});
  }
}

TEST_CASE("F36: an exception of a worker comes out of next with type, index and file, in order") {
  struct Case {
    std::function<void()> raise;
    const char* text;
  };
  const std::vector<Case> cases = {
      {[] { throw DataError("[image] a PNG must have its end; file /x/13.png."); },
       "file /x/13.png. (sample 13 of the train set)"},
      {[] { throw std::runtime_error("broken pipe"); },
       "sample 13 of the train set could not be read; std::runtime_error: broken pipe"},
      {[] { throw NotStandard(); },
       "sample 13 of the train set could not be read; an exception was thrown that is not a std::exception"},
      {[] { throw DataError("[image] index 13 is damaged."); }, "[image] index 13 is damaged."},
  };
  for (const Case& c : cases) {
    for (const int64_t workers : {0, 1, 3}) {
      const auto dataset = std::make_shared<WatchedDataset>(40, [&](int64_t index, const SampleContext&) {
        if (index == 13 || index == 14 || index == 22) c.raise();
      });
      DataLoader loader(dataset, {.batch_size = 5, .name = "train", .num_workers = workers});
      loader.start_epoch(0);
      Batch batch;
      REQUIRE(loader.next(batch));
      REQUIRE(loader.next(batch));
      CHECK_THAT(message_of<DataError>([&] { loader.next(batch); }), ContainsSubstring(c.text));
      CHECK(loader.state().at("batches").as_int() == 2);
      // Once more: the batch was not consumed, so it is tried again.
      CHECK_THAT(message_of<DataError>([&] { loader.next(batch); }), ContainsSubstring(c.text));
      StateTree there = loader.state();
      there["batches"] = 5;
      there["samples"] = 25;
      loader.load_state(there);
      CHECK(epoch_of(loader, 0).size() == 15);
    }
  }
}

TEST_CASE("F36: errors of Fulgur keep their type, others are nested in a DataError") {
  for (const int64_t workers : {0, 2}) {
    const auto loader_of = [&](std::function<void()> raise) {
      return DataLoader(std::make_shared<WatchedDataset>(4, [raise](int64_t, const SampleContext&) { raise(); }),
                        {.name = "train", .num_workers = workers});
    };
    Batch batch;
    DataLoader config = loader_of([] { throw ConfigError("no such column."); });
    config.start_epoch(0);
    CHECK_THAT(message_of<ConfigError>([&] { config.next(batch); }), ContainsSubstring("sample 0"));
    DataLoader other = loader_of([] { throw std::out_of_range("column 3"); });
    other.start_epoch(0);
    try {
      other.next(batch);
      FAIL("nothing was thrown");
    } catch (const DataError& error) {
      CHECK(error.code() == ExitCode::data);
      CHECK_THROWS_AS(std::rethrow_if_nested(error), std::out_of_range);
    }
  }
}

TEST_CASE("F36: threads stay from epoch to epoch and end with the loader") {
  const int64_t before = thread_count();
  {
    DataLoader loader(std::make_shared<WatchedDataset>(60), {.batch_size = 4, .num_workers = 3});
    CHECK(thread_count() == before);
    epoch_of(loader, 0);
    const int64_t with_workers = thread_count();
    CHECK(with_workers == before + 3);
    epoch_of(loader, 1);
    CHECK(thread_count() == with_workers);
  }
  CHECK(threads_come_down_to(before));
  for (int i = 0; i < 20; ++i) {
    DataLoader loader(
        std::make_shared<WatchedDataset>(
            600, [](int64_t, const SampleContext&) { std::this_thread::sleep_for(std::chrono::microseconds(50)); }),
        {.batch_size = 16, .num_workers = 3});
    loader.start_epoch(0);
    Batch batch;
    for (int taken = 0; taken < i % 4; ++taken) loader.next(batch);
  }
  CHECK(threads_come_down_to(before));
}

TEST_CASE("F36: a worker that blocks is an error after timeout_s, with what is waited for") {
  const int64_t before = thread_count();
  // The thread that is stuck may outlive the loader, so the gate is the dataset's as well.
  const auto gate = std::make_shared<Gate>();
  {
    DataLoader loader(std::make_shared<WatchedDataset>(20,
                                                       [gate](int64_t index, const SampleContext&) {
                                                         if (index == 6) gate->pass();
                                                       }),
                      {.batch_size = 4, .name = "train", .num_workers = 2, .timeout_s = 0.2});
    loader.start_epoch(0);
    Batch batch;
    REQUIRE(loader.next(batch));
    CHECK_THAT(message_of<DataError>([&] { loader.next(batch); }), ContainsSubstring("within timeout_s, 0.2 s") &&
                                                                       ContainsSubstring("train set") &&
                                                                       ContainsSubstring("6"));
    CHECK(loader.state().at("batches").as_int() == 1);
    // Still there: the batch comes once the dataset continues.
    SECTION("it goes on") {
      gate->open();
      REQUIRE(loader.next(batch));
      CHECK(batch[0].const_data_ptr<int64_t>()[2] == 6);
    }
    SECTION("the loader ends first, and its thread by itself") { CHECK(thread_count() > before); }
  }
  gate->open();
  CHECK(threads_come_down_to(before));
}

TEST_CASE("F36: a batch that is slow is warned about with its samples") {
  LogLines lines;
  Gate gate;
  DataLoader loader(std::make_shared<WatchedDataset>(8,
                                                     [&](int64_t index, const SampleContext&) {
                                                       if (index == 3) gate.pass();
                                                     }),
                    {.batch_size = 4, .name = "train", .num_workers = 1, .slow_after_s = 0.1});
  loader.start_epoch(0);
  std::thread opener([&] {
    for (int i = 0; i < 500 && lines.text().empty(); ++i) sleep_ms(10);
    gate.open();
  });
  Batch batch;
  CHECK(loader.next(batch));
  opener.join();
  CHECK_THAT(lines.text(), ContainsSubstring("data.slow_batch") && ContainsSubstring("a batch of the train set") &&
                               ContainsSubstring("3"));
}

TEST_CASE("workers are slower if waiting for a batch takes longer than reading it") {
  WorkerOverheadMonitor slower, faster;
  for (int i = 0; i < 16; ++i) CHECK_FALSE(slower.add(1.0, 0.0).has_value());  // threads start
  for (int i = 16; i < 63; ++i) CHECK_FALSE(slower.add(50e-6, 40e-6).has_value());
  const auto times = slower.add(50e-6, 40e-6);
  REQUIRE(times.has_value());
  CHECK(std::abs(times->waited_s - 50e-6) < 1e-9);
  CHECK(std::abs(times->read_s - 40e-6) < 1e-9);
  CHECK_FALSE(slower.add(50e-6, 40e-6).has_value());  // once
  for (int i = 0; i < 100; ++i) CHECK_FALSE(faster.add(40e-6, 40e-6).has_value());
}

TEST_CASE("a loader does not advise against workers that gain") {
  LogLines lines;
  DataLoader loader(std::make_shared<WatchedDataset>(200, [](int64_t, const SampleContext&) { sleep_ms(1); }),
                    {.batch_size = 2, .num_workers = 2});
  epoch_of(loader, 0);
  CHECK(lines.text().empty());
}

TEST_CASE("the number of workers is that with the least time from batch to batch") {
  // Seconds of a batch by number of workers.
  const auto found = [](std::vector<double> times, int64_t most) {
    WorkerTuner tuner(most, 2);
    WorkerTuner::Clock::time_point now{};
    for (int i = 0; i < 1000 && !tuner.done(); ++i) {
      tuner.batch_given(now);
      now += std::chrono::duration_cast<WorkerTuner::Clock::duration>(
          std::chrono::duration<double>(times.at(static_cast<size_t>(tuner.workers()))));
    }
    CHECK(tuner.done());
    return tuner.workers();
  };
  CHECK(found({1, 2, 3}, 4) == 0);
  CHECK(found({2, 1, 1, 9}, 4) == 1);    // one more that gains nothing is not worth its core
  CHECK(found({2, 2.1, 1, 2}, 4) == 2);  // the first worker may gain nothing and the second one all
  CHECK(found({4, 3, 2, 1, 0.5}, 4) == 4);
  CHECK(found({4, 3, 2}, 1) == 1);
  WorkerTuner few(4, 2);
  CHECK_FALSE(few.finish());
  CHECK(few.done());
  CHECK(few.workers() == 0);
}

TEST_CASE("more workers than cores are warned about") {
  LogLines lines;
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  DataLoader(numbers(4), {.num_workers = cores});
  CHECK(lines.text().empty());
  DataLoader(numbers(4), {.num_workers = cores + 5});
  CHECK_THAT(lines.text(), ContainsSubstring("data.more_workers_than_cores") &&
                               ContainsSubstring(std::to_string(cores + 5)) &&
                               ContainsSubstring("has " + std::to_string(cores) + " cores"));
}

TEST_CASE("num_workers auto finds a number in the first epoch, with the same batches") {
  LogLines lines;
  const auto slow = [](int64_t, const SampleContext&) { sleep_ms(1); };
  DataLoader loader(std::make_shared<WatchedDataset>(400, slow),
                    {.batch_size = 4, .shuffle = true, .name = "train", .num_workers = {}});
  DataLoader alone(std::make_shared<WatchedDataset>(400), {.batch_size = 4, .shuffle = true});
  CHECK(epoch_of(loader, 0) == epoch_of(alone, 0));
  // Reading sleeps, so workers gain on any machine.
  if (std::thread::hardware_concurrency() > 1) CHECK(loader.num_workers() >= 1);
  CHECK_THAT(lines.text(), ContainsSubstring("for the train set (time of a batch by number of workers: 0: "));
  const int64_t found = loader.num_workers();
  CHECK(epoch_of(loader, 1) == epoch_of(alone, 1));
  CHECK(loader.num_workers() == found);

  // Too short to measure: as without workers.
  DataLoader few(numbers(3), {.num_workers = {}});
  CHECK(epoch_of(few, 0).size() == 3);
  CHECK(few.num_workers() == 0);
}

TEST_CASE("pin_memory without CUDA is reported once and left out") {
  LogLines lines;
  DataLoader loader(std::make_shared<WatchedDataset>(4), {.pin_memory = true});
  CHECK(epoch_of(loader, 0).size() == 4);
  if (lines.text().empty()) SKIP("there is a CUDA device");
  CHECK_THAT(lines.text(), ContainsSubstring("data.pin_memory_without_cuda"));
}

TEST_CASE("a collate function gets the samples of a batch as lists, on a worker thread") {
  const auto collate = [](Batch batch) {
    const auto& samples = std::get<std::vector<Tensor>>(batch.entry(1).second);
    return Batch({Batch::Entry{"sum", at::stack(samples).sum(0)},
                  Batch::Entry{"x", at::stack(std::get<std::vector<Tensor>>(batch.entry(0).second))}});
  };
  struct Flat : BatchDataset {
    int64_t size() const override { return 10; }
    Batch get(c10::ArrayRef<int64_t> indices, const SampleContext&) const override {
      Tensor x = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
      std::copy(indices.begin(), indices.end(), x.mutable_data_ptr<int64_t>());
      return Batch({x, x.mul(2).unsqueeze(1)});
    }
  };
  for (const int64_t workers : {0, 2}) {
    DataLoader loader(std::make_shared<Flat>(), {.batch_size = 5, .collate = collate, .num_workers = workers});
    loader.start_epoch(0);
    Batch batch;
    REQUIRE(loader.next(batch));
    REQUIRE(loader.next(batch));
    CHECK(batch["sum"].item<int64_t>() == 2 * (5 + 6 + 7 + 8 + 9));
    CHECK(batch["x"].sizes() == at::IntArrayRef({5}));
  }
}

TEST_CASE("loader options out of range are refused") {
  CHECK_THROWS_AS(DataLoader(numbers(4), {.num_workers = -1}), ConfigError);
  CHECK_THROWS_AS(DataLoader(numbers(4), {.prefetch_factor = 0}), ConfigError);
  CHECK_THROWS_AS(DataLoader(numbers(4), {.timeout_s = -1}), ConfigError);
}

}  // namespace workers_test
