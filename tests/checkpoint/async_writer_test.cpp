#include "fulgur/checkpoint/async_writer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <signal.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <iostream>
#include <thread>

#include "checkpoint/fault_calls.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "snapshot/tensor_snapshot.h"
#include "support/scarce_memory.h"
#include "support/temporary_folder.h"

namespace async_writer_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

CheckpointContent content(int64_t value) {
  CheckpointContent c;
  c.module = {{"w", at::full({500}, value)}, {"transposed", at::full({3, 4}, value).t()}};
  c.optimizers = StateTree::List{StateTree::map({{"momentum", at::full({300}, value)}})};
  c.state["progress"] = StateTree::map({{"global_step", value}, {"epoch", 0}});
  c.state["nested"]["list"] = StateTree::List{at::full({2}, value), "text"};
  return c;
}

// Every number of the checkpoint is `value`.
bool holds(const fs::path& path, int64_t value) {
  const CheckpointContent c = read_checkpoint(path);
  const auto all = [&](const Tensor& tensor) { return tensor.eq(value).all().item<bool>(); };
  return all(c.module[0].second) && all(c.module[1].second) && all(c.optimizers.as_list()[0].at("momentum").tensor()) &&
         all(c.state.at("nested").at("list").as_list()[0].tensor()) &&
         c.state.at("progress").at("global_step").as_int() == value;
}

void change(CheckpointContent& c) {
  for (auto& [name, tensor] : c.module) tensor.add_(1000);
  c.optimizers.as_list()[0].at("momentum").tensor().add_(1000);
  c.state.at("nested").at("list").as_list()[0].tensor().add_(1000);
}

// Writes that wait until they may continue.
class Gate {
 public:
  Gate()
      : calls_([this](std::string_view call_name, const auto& call) {
          if (call_name == "write") {
            reached_ = true;
            reached_.notify_all();
            open_.wait(false);
          }
          return call();
        }) {}
  ~Gate() { open(); }
  void wait_until_reached() { reached_.wait(false); }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false}, reached_{false};
  FaultCalls calls_;
};

}  // namespace

TEST_CASE("F52 an asynchronous save holds what was there at submit, whatever changes during it") {
  TemporaryFolder folder;
  CheckpointContent c = content(7);
  Gate gate;
  AsyncCheckpointWriter writer;
  CHECK_FALSE(writer.busy());
  CHECK(writer.submit(folder / "a.ckpt", c) == 1);
  gate.wait_until_reached();
  CHECK(writer.busy());
  CHECK(writer.poll().empty());
  change(c);
  c.state["more"] = 1;
  gate.open();
  const auto results = writer.wait();
  REQUIRE(results.size() == 1);
  CHECK(results[0].ticket == 1);
  CHECK_FALSE(results[0].error.has_value());
  CHECK(results[0].path == folder / "a.ckpt");
  CHECK(holds(results[0].path, 7));
  CHECK(writer.wait().empty());
}

TEST_CASE("a state that several threads copy is copied whole") {
  TemporaryFolder folder;
  CheckpointContent c;
  // Sizes that end in the middle of what one thread takes at once.
  for (const int64_t size : {20'000'003, 1, 7'000'001, 0})
    c.module.emplace_back(cat("t", size), at::arange(size, at::kFloat));
  AsyncCheckpointWriter writer;
  for (int round = 0; round < 2; ++round) writer.submit(folder / cat("a", round, ".ckpt"), c);
  for (const auto& result : writer.wait()) {
    REQUIRE_FALSE(result.error);
    for (const auto& [name, value] : read_checkpoint(result.path).module)
      CHECK(value.equal(at::arange(value.numel(), at::kFloat)));
  }
}

TEST_CASE("F52 of two saves the second waits for the first, and both are whole") {
  TemporaryFolder folder;
  CheckpointContent c = content(1);
  Gate gate;
  AsyncCheckpointWriter writer;
  writer.submit(folder / "a.ckpt", c);
  gate.wait_until_reached();
  std::thread opens([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  change(c);
  c.state["progress"]["global_step"] = 1001;
  const auto start = std::chrono::steady_clock::now();
  CHECK(writer.submit(folder / "a.ckpt", c) == 2);
  CHECK(std::chrono::steady_clock::now() - start > std::chrono::milliseconds(30));
  const auto first = writer.poll();
  REQUIRE_FALSE(first.empty());
  CHECK(first[0].ticket == 1);
  change(c);
  const auto second = writer.wait();
  opens.join();
  CHECK(holds(folder / "a.ckpt", 1));
  CHECK(holds(folder / "a-v1.ckpt", 1001));
  CHECK(first.size() + second.size() == 2);
}

TEST_CASE("an asynchronous save writes the same bytes as a synchronous one") {
  TemporaryFolder folder;
  const CheckpointContent c = content(3);
  const fs::path sync = write_checkpoint(folder / "sync.ckpt", c);
  AsyncCheckpointWriter writer;
  writer.submit(folder / "async.ckpt", c);
  const fs::path async = writer.wait().at(0).path;
  for (const auto& entry : fs::directory_iterator(sync))
    CHECK(read_text(entry.path()) == read_text(async / entry.path().filename()));
}

TEST_CASE("F52 whatever the writer's thread throws is the result of that save, and the next one goes") {
  TemporaryFolder folder;
  AsyncCheckpointWriter writer;
  const auto fail_with = [&](const std::function<long()>& thrower) {
    const FaultCalls calls(
        [&](std::string_view call_name, const auto& call) { return call_name == "write" ? thrower() : call(); });
    writer.submit(folder / "bad.ckpt", content(1));
    const auto results = writer.wait();
    REQUIRE(results.size() == 1);
    REQUIRE(results[0].error.has_value());
    CHECK(fs::is_empty(folder.path()));
    return std::string(results[0].error->what());
  };
  CHECK_THAT(fail_with([]() -> long { throw 42; }), ContainsSubstring("an exception of unknown type"));
  CHECK_THAT(fail_with([]() -> long { throw std::runtime_error("the roof is on fire"); }),
             ContainsSubstring("the roof is on fire"));
  CHECK_THAT(fail_with([]() -> long { throw std::bad_alloc(); }), ContainsSubstring("not enough memory"));
  CHECK_THAT(fail_with([]() -> long { return errno = ENOSPC, -1; }),
             ContainsSubstring("No space left") && ContainsSubstring("The checkpoint needs"));
  writer.submit(folder / "good.ckpt", content(2));
  CHECK(holds(writer.wait().at(0).path, 2));
}

TEST_CASE("F52 memory that ends during a snapshot fails that save, at any tensor, and the next one is complete") {
  const TemporaryFolder folder;
  const Tensor large = at::full({50'000}, 1.0f);
  // The tensor for which there is no memory is the first, one between the others, or the last.
  for (const int place : {0, 1, 2}) {
    AsyncCheckpointWriter writer;
    const auto with_large = [&](int64_t value) {
      CheckpointContent c = content(value);
      c.module.emplace(c.module.begin() + std::min(place, 2), "large", large);
      if (place == 2) c.state["late"] = large;
      return c;
    };
    writer.submit(folder / "before.ckpt", content(1));
    CHECK(holds(writer.wait().at(0).path, 1));
    {
      const ScarceMemory scarce(large.nbytes());
      std::string message;
      try {
        writer.submit(folder / "bad.ckpt", with_large(2));
      } catch (const CheckpointError& error) {
        message = error.what();
      }
      CHECK_THAT(message, ContainsSubstring("there is not enough memory") && ContainsSubstring("async_checkpoint"));
      CHECK(scarce.refused() == 1);
      CHECK(writer.wait().empty());
      CHECK_FALSE(fs::exists(folder / "bad.ckpt"));
      writer.submit(folder / "after.ckpt", content(3));
      CHECK(holds(writer.wait().at(0).path, 3));
    }
    writer.submit(folder / "large.ckpt", with_large(4));
    const CheckpointContent read = read_checkpoint(writer.wait().at(0).path);
    CHECK(read.module.at(std::min(place, 2)).second.equal(large));
    for (const auto& entry : fs::directory_iterator(folder.path())) remove_checkpoint(entry.path());
  }
}

TEST_CASE("F52 the writer's end waits for its save, and logs an error that was not fetched") {
  TemporaryFolder folder;
  static std::string logged;
  logged.clear();
  log::set_sink([](log::Level, const std::string& line, void*) { logged += line; }, nullptr);
  {
    Gate gate;
    AsyncCheckpointWriter writer;
    writer.submit(folder / "a.ckpt", content(5));
    gate.open();
  }
  CHECK(holds(folder / "a.ckpt", 5));
  CHECK(logged.empty());
  {
    const FaultCalls calls([](std::string_view call_name, const auto& call) -> long {
      return call_name == "fsync" ? (errno = EIO, -1) : call();
    });
    AsyncCheckpointWriter writer;
    writer.submit(folder / "b.ckpt", content(5));
  }
  log::set_sink(nullptr, nullptr);
  CHECK_THAT(logged, ContainsSubstring("syncing failed"));
}

TEST_CASE(
    "a held save is written when it is complete, with what was added; exit() and the destructor write it as it is") {
  TemporaryFolder folder;
  AsyncCheckpointWriter::Rules held;
  held.held = true;
  {
    AsyncCheckpointWriter writer;
    const uint64_t first = writer.submit(folder / "a.ckpt", content(7), held);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CHECK(writer.busy());
    CHECK_FALSE(fs::exists(folder / "a.ckpt"));
    writer.complete(first, [](CheckpointContent& c) { c.state["late"] = 3; });
    writer.complete(first, [](CheckpointContent& c) { c.state["late"] = 4; });  // too late, and of no save
    const auto results = writer.wait();
    REQUIRE(results.size() == 1);
    CHECK_FALSE(results[0].error.has_value());
    CHECK(holds(folder / "a.ckpt", 7));
    CHECK(read_checkpoint(folder / "a.ckpt").state.at("late").as_int() == 3);
    writer.submit(folder / "b.ckpt", content(8));
    CHECK(writer.wait().size() == 1);
    CHECK_FALSE(read_checkpoint(folder / "b.ckpt").state.contains("late"));
    writer.submit(folder / "c.ckpt", content(9), held);
    writer.complete(first, [](CheckpointContent& c) { c.state["late"] = 5; });  // of another save
  }
  CHECK_FALSE(read_checkpoint(folder / "c.ckpt").state.contains("late"));
  CHECK(holds(folder / "c.ckpt", 9));
  const int status = in_child([&] {
    static auto* const writer = new AsyncCheckpointWriter;
    writer->submit(folder / "d.ckpt", content(10), held);
    std::exit(42);
    return 0;
  });
  CHECK(exited(status, 42));
  CHECK(holds(folder / "d.ckpt", 10));
}

TEST_CASE("F52 exit() waits for the save in flight") {
  TemporaryFolder folder;
  std::cout.flush();
  const int status = in_child([&] {
    // What the parent had not printed yet is not the child's to print.
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, 1);
    const FaultCalls slow([](std::string_view call_name, const auto& call) {
      if (call_name == "fsync") std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return call();
    });
    static auto* const writer = new AsyncCheckpointWriter;  // never destroyed: only exit() can wait
    writer->submit(folder / "a.ckpt", content(6));
    std::exit(42);
    return 0;
  });
  CHECK(exited(status, 42));
  CHECK(holds(folder / "a.ckpt", 6));
}

TEST_CASE("F52 a process killed during an asynchronous save leaves the checkpoint before it") {
  TemporaryFolder folder;
  write_checkpoint(folder / "a.ckpt", content(1));
  for (const int nth : {1, 5, 10}) {
    const int status = in_child([&] {
      int writes = 0;
      const FaultCalls calls([&](std::string_view call_name, const auto& call) {
        if (call_name == "write" && ++writes == nth) raise(SIGKILL);
        return call();
      });
      AsyncCheckpointWriter writer;
      writer.submit(folder / "b.ckpt", content(2));
      writer.wait();
      return 0;
    });
    CHECK(WIFSIGNALED(status));
    CHECK(list_checkpoints(folder.path()).size() == 1);
    CHECK(holds(folder / "a.ckpt", 1));
  }
  remove_leftovers(folder.path());
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("the writer's thread takes no signals of the program") {
  TemporaryFolder folder;
  std::atomic<int> blocked{-1};
  const FaultCalls calls([&](std::string_view, const auto& call) {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    blocked = sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGTERM) == 1;
    return call();
  });
  AsyncCheckpointWriter writer;
  writer.submit(folder / "a.ckpt", content(1));
  writer.wait();
  CHECK(blocked == 1);
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  CHECK(sigismember(&mask, SIGINT) == 0);
}

TEST_CASE("a save that is refused leaves nothing, and its result says why; facts are copied, and not written") {
  TemporaryFolder folder;
  CheckpointContent c = content(3);
  const Tensor fact = at::full({2}, 5);
  AsyncCheckpointWriter writer;
  const auto save = [&](const char* name, int64_t wanted) {
    AsyncCheckpointWriter::Rules rules;
    rules.facts["fact"] = fact;
    rules.refuse = [wanted](const CheckpointContent& copies, const StateTree& facts) -> std::optional<std::string> {
      if (copies.module[0].second[0].item<int64_t>() != 3) return "other copies";
      const auto found = facts.at("fact").tensor()[1].item<int64_t>();
      return found == wanted ? std::nullopt : std::optional<std::string>(cat("the fact is ", found));
    };
    writer.submit(folder / name, c, std::move(rules));
    fact.add_(1);
    return writer.wait().at(0);
  };
  const auto kept = save("kept.ckpt", 5);
  CHECK_FALSE(kept.error);
  CHECK_FALSE(kept.refused);
  CHECK_FALSE(read_checkpoint_state(kept.path).contains("fact"));
  const auto refused = save("refused.ckpt", 5);
  REQUIRE(refused.error);
  CHECK(refused.refused);
  CHECK(refused.error->what() == std::string("the fact is 6"));
  CHECK(list_checkpoints(folder.path()).size() == 1);
}

TEST_CASE("a snapshot reuses its memory if shapes match, and releases what is no longer needed") {
  fulgur::detail::TensorSnapshot snapshot;
  CheckpointContent c = content(1);
  c.module[0].second.requires_grad_(false);
  const CheckpointContent first = snapshot.take(c);
  const void* const memory = first.module[0].second.const_data_ptr();
  const void* const momentum = first.optimizers.as_list()[0].at("momentum").tensor().const_data_ptr();
  CHECK(memory != c.module[0].second.const_data_ptr());
  CHECK(first.module[1].second.is_contiguous());
  change(c);
  const CheckpointContent second = snapshot.take(c);
  CHECK(second.module[0].second.const_data_ptr() == memory);
  CHECK(second.module[0].second.equal(c.module[0].second));
  CHECK(second.module[1].second.equal(c.module[1].second));
  // Another shape takes other memory; the rest stays.
  c.module[0].second = at::arange(10).to(at::kFloat);
  const CheckpointContent third = snapshot.take(c);
  CHECK(third.module[0].second.equal(c.module[0].second));
  CHECK(third.optimizers.as_list()[0].at("momentum").tensor().const_data_ptr() == momentum);
  // A save of weights now and then keeps the memory of the optimizers; many in a row do not.
  const at::Tensor held = third.optimizers.as_list()[0].at("momentum").tensor();
  const auto owners = [&] { return held.use_count(); };
  const auto before = owners();
  c.optimizers = nullptr;
  for (int i = 0; i < 3; ++i) snapshot.take(c);
  CHECK(owners() == before);
  snapshot.take(c);
  CHECK(owners() == before - 1);
}

TEST_CASE("parameters that take gradients are saved as they are") {
  TemporaryFolder folder;
  CheckpointContent c;
  Tensor weight = at::arange(6).to(at::kFloat).requires_grad_(true);
  c.module = {{"w", weight}, {"view", weight.reshape({2, 3}).t()}, {"empty", at::full({0, 3}, 1)}};
  AsyncCheckpointWriter writer;
  writer.submit(folder / "a.ckpt", c);
  const CheckpointContent back = read_checkpoint(writer.wait().at(0).path);
  CHECK(back.module[0].second.equal(weight.detach()));
  CHECK(back.module[1].second.equal(weight.detach().reshape({2, 3}).t()));
  CHECK(back.module[2].second.sizes() == at::IntArrayRef{0, 3});
  CHECK_FALSE(back.module[0].second.requires_grad());
}

}  // namespace async_writer_test
