// What ranks ask of the store until all have come, counted without processes: ranks are threads, the store is in
// memory.
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <csignal>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "distributed/heartbeat.h"
#include "distributed/rendezvous.h"
#include "fulgur/core/system/stop_signal.h"
#include "fulgur/core/text/errors.h"

namespace rendezvous_requests_test {

using namespace fulgur;

namespace {

class CountingStore final : public c10d::Store {
 public:
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override { ++changes, store_->set(key, value); }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    ++changes;
    return store_->compareSet(key, expected, desired);
  }
  std::vector<uint8_t> get(const std::string& key) override { return ++looks, ++requests, store_->get(key); }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    return ++requests, store_->multiGet(keys);
  }
  int64_t add(const std::string& key, int64_t value) override { return ++changes, store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override {
    while (silent) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ++requests;
    looks += static_cast<int64_t>(keys.size());
    return store_->check(keys);
  }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { store_->wait(keys); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    store_->wait(keys, timeout);
  }

  std::atomic<int64_t> changes = 0, looks = 0, requests = 0;
  std::atomic<bool> silent = false;  // a question gets no answer

 private:
  c10::intrusive_ptr<c10d::HashStore> store_ = c10::make_intrusive<c10d::HashStore>();
};

ProcessPlace place_of(int64_t rank, int64_t ranks) {
  ProcessPlace place;
  place.rank = rank;
  place.world_size = ranks;
  place.environment = "variables";
  return place;
}

}  // namespace

TEST_CASE("requests of a rank at the start do not grow with the number of ranks") {
  for (const int64_t ranks : {8, 64, 512, 1024}) {
    CAPTURE(ranks);
    const auto store = c10::make_intrusive<CountingStore>();
    // Two runs of the same processes after each other.
    for (const int64_t number : {0, 1}) {
      const int64_t before = store->changes;
      std::vector<std::thread> all;
      for (int64_t rank = 0; rank < ranks; ++rank)
        all.emplace_back([&, rank] { fulgur::detail::meet_in(store, place_of(rank, ranks), 300, number); });
      for (std::thread& rank : all) rank.join();
      // The number of processes, the place, the count; the last to come says that all are here.
      CHECK(store->changes - before == 3 * ranks + 1);
    }
  }
}

TEST_CASE("the last rank to come looks once, and a rank that waits looks ever more seldom") {
  const auto store = c10::make_intrusive<CountingStore>();
  constexpr int64_t kRanks = 512;
  std::thread first([&] { fulgur::detail::meet_in(store, place_of(0, kRanks), 300, 0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  // 1, 2, 4 … 128 ms and then each 200 ms: about ten looks, if there is one for each missing rank it would be
  // thousands.
  CHECK(store->looks <= 20);
  for (int64_t rank = 1; rank + 1 < kRanks; ++rank)
    store->add("fulgur/0/0/here/" + std::to_string(rank), 1), store->add("fulgur/0/0/count", 1);
  const int64_t before = store->looks;
  fulgur::detail::meet_in(store, place_of(kRanks - 1, kRanks), 300, 0);
  // Each rank looks whether there is a verdict, and reads it; the first may do so in the meantime.
  CHECK(store->looks - before <= 4);
  first.join();
}

TEST_CASE("a rank that is asked to stop while it waits for others leaves, and they do not wait for it") {
  const auto store = c10::make_intrusive<CountingStore>();
  const auto signal_of = [&](int64_t rank) {
    try {
      fulgur::detail::meet_in(store, place_of(rank, 3), 60, 0);
    } catch (const Interrupted& interrupted) {
      return interrupted.signal();
    }
    return 0;
  };
  std::atomic<int> first = -1;
  std::thread waiting([&] { first = signal_of(0); });
  while (store->looks == 0) std::this_thread::yield();
  stop_signal() = SIGINT;
  waiting.join();
  stop_signal() = 0;
  CHECK(first == SIGINT);
  // These have not got the signal.
  CHECK(signal_of(1) == SIGINT);
  CHECK(signal_of(2) == SIGINT);
}

TEST_CASE("a rank that is asked to stop when all have come does not leave") {
  const auto store = c10::make_intrusive<CountingStore>();
  std::thread waiting([&] { fulgur::detail::meet_in(store, place_of(0, 2), 60, 0); });
  while (store->looks == 0) std::this_thread::yield();
  fulgur::detail::meet_in(store, place_of(1, 2), 60, 0);
  stop_signal() = SIGTERM;
  waiting.join();
  CHECK_NOTHROW(fulgur::detail::meet_in(store, place_of(0, 1), 60, 1));
  stop_signal() = 0;
}

TEST_CASE("a report of what 1,024 ranks did asks the store twice") {
  for (const int64_t ranks : {8, 1024}) {
    const auto store = c10::make_intrusive<CountingStore>();
    for (int64_t rank = 1; rank < ranks; ++rank)
      store->set("does/" + std::to_string(rank), std::vector<uint8_t>{'1', '|', 'b', 'a', 'c', 'k'});
    fulgur::detail::Heartbeat heartbeat(store, 0, ranks);
    heartbeat.say_failed();
    const int64_t before = store->requests;
    const std::string report = heartbeat.report();
    CHECK(store->requests - before == 2);
    CHECK(report.find("rank " + std::to_string(ranks - 1) + ": back, reported ") != std::string::npos);
    CHECK(report.find("rank 0 (this one): failed in start at step 0") != std::string::npos);
  }
}

TEST_CASE("a report does not wait for a store that gives no answer, as that of a node that is gone") {
  const auto store = c10::make_intrusive<CountingStore>();
  fulgur::detail::Heartbeat heartbeat(store, 0, 2);
  store->silent = true;
  const auto begin = std::chrono::steady_clock::now();
  CHECK(heartbeat.report().find("the run's store does not answer") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  store->silent = false;
}

}  // namespace rendezvous_requests_test
