#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fulgur/core/device/autocast.h"
#include "fulgur/core/state/tensor.h"
#include "fulgur/nn/checkpoint.h"
#include "fulgur/nn/parallel_apply.h"
#include "support/expect_error.h"

namespace parallel_apply_test {

using namespace fulgur;
using nn::parallel_apply;

namespace {

/// A meeting point of concurrent calls; one that runs alone gives up.
class Meeting {
 public:
  explicit Meeting(size_t expected) : expected_(expected) {}
  /// False if the others have not come within a minute.
  bool arrive() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (++here_ == expected_) all_here_.notify_all();
    return all_here_.wait_for(lock, std::chrono::minutes(1), [&] { return here_ >= expected_; });
  }

 private:
  size_t expected_, here_ = 0;
  std::mutex mutex_;
  std::condition_variable all_here_;
};

}  // namespace

TEST_CASE("parallel_apply calls the work once for each index, the first on the calling thread") {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{7}}) {
    CAPTURE(count);
    std::vector<int> calls(count);
    std::vector<std::thread::id> threads(count);
    parallel_apply(count, [&](size_t i) {
      ++calls[i];
      threads[i] = std::this_thread::get_id();
    });
    CHECK((calls == std::vector<int>(count, 1)));
    CHECK((std::set<std::thread::id>(threads.begin(), threads.end()).size() == count));
    if (count > 0) CHECK((threads[0] == std::this_thread::get_id()));
  }
}

TEST_CASE("parallel_apply does its work at the same time") {
  Meeting meeting(5);
  std::atomic<int> met = 0;
  parallel_apply(5, [&](size_t) { met += meeting.arrive(); });
  CHECK(met == 5);
}

TEST_CASE("parallel_apply keeps its threads from call to call") {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  for (int call = 0; call < 20; ++call) {
    Meeting meeting(3);
    parallel_apply(3, [&](size_t i) {
      meeting.arrive();
      const std::lock_guard<std::mutex> lock(mutex);
      if (i > 0) threads.insert(std::this_thread::get_id());
    });
  }
  // Other tests of this process may have left more of them, of which any may be taken.
  CHECK(threads.size() < 20);
}

TEST_CASE("parallel_apply throws what the lowest index threw, once all have ended") {
  std::atomic<int> ended = 0;
  const auto fail = [&](size_t i) {
    if (i == 0 || i == 3) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ++ended;
    if (i == 1 || i == 2) throw std::runtime_error("work " + std::to_string(i));
  };
  CHECK((test::message_of<std::runtime_error>([&] { parallel_apply(4, fail); }) == "work 1"));
  CHECK(ended == 4);
  // That of the calling thread is waited with, too.
  ended = 0;
  CHECK_THROWS_AS(parallel_apply(3,
                                 [&](size_t i) {
                                   if (i == 0) throw std::invalid_argument("first");
                                   std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                   ++ended;
                                   throw std::runtime_error("later");
                                 }),
                  std::invalid_argument);
  CHECK(ended == 2);
  CHECK_THROWS_AS(parallel_apply(1, [](size_t) { throw std::logic_error("alone"); }), std::logic_error);
  // The threads are as good as new.
  ended = 0;
  parallel_apply(4, [&](size_t) { ++ended; });
  CHECK(ended == 4);
}

TEST_CASE("parallel_apply carries grad and inference mode over, and threads have their own again after it") {
  const auto modes = [] {
    std::vector<std::pair<bool, bool>> seen(3);
    parallel_apply(3, [&](size_t i) { seen[i] = {at::GradMode::is_enabled(), c10::InferenceMode::is_enabled()}; });
    return seen;
  };
  using Modes = std::vector<std::pair<bool, bool>>;
  {
    const at::NoGradGuard no_grad;
    CHECK((modes() == Modes(3, {false, false})));
  }
  {
    const c10::InferenceMode inference;
    CHECK((modes() == Modes(3, {false, true})));
    std::vector<Tensor> made(3);
    parallel_apply(3, [&](size_t i) { made[i] = at::ones({2}); });
    for (const Tensor& tensor : made) CHECK(tensor.is_inference());
  }
  CHECK((modes() == Modes(3, {true, false})));
}

TEST_CASE("parallel_apply carries autocast over: whether, in which format, and its cache of weights") {
  const Tensor weight = at::ones({4, 4}).set_requires_grad(true);
  const auto types = [&] {
    std::vector<at::ScalarType> seen(3);
    parallel_apply(3, [&](size_t i) { seen[i] = at::mm(at::ones({2, 4}), weight).scalar_type(); });
    return seen;
  };
  using Types = std::vector<at::ScalarType>;
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    CHECK((types() == Types(3, at::kBFloat16)));
    {
      const Autocast off(at::kCPU, at::kBFloat16, false);
      CHECK((types() == Types(3, at::kFloat)));
    }
    std::vector<int> cached(3);
    at::autocast::set_autocast_cache_enabled(false);
    parallel_apply(3, [&](size_t i) { cached[i] = at::autocast::is_autocast_cache_enabled(); });
    at::autocast::set_autocast_cache_enabled(true);
    CHECK((cached == std::vector<int>(3, 0)));
  }
  {
    const Autocast autocast(at::kCPU, at::kHalf);
    std::vector<at::ScalarType> formats(3);
    parallel_apply(3, [&](size_t i) { formats[i] = at::autocast::get_autocast_dtype(at::kCPU); });
    CHECK((formats == Types(3, at::kHalf)));
  }
  CHECK((types() == Types(3, at::kFloat)));
}

TEST_CASE("parallel_apply: an autocast of the work's own sees weights as they are now, step after step") {
  Tensor weight = at::ones({4, 4}).set_requires_grad(true);
  const auto sums = [&] {
    std::vector<float> seen(3);
    parallel_apply(3, [&](size_t i) {
      const Autocast autocast(at::kCPU, at::kBFloat16);
      seen[i] = at::mm(at::ones({1, 4}), weight).sum().item<float>();
    });
    return seen;
  };
  CHECK((sums() == std::vector<float>(3, 16)));
  {
    const at::NoGradGuard no_grad;
    weight.fill_(2);
  }
  CHECK((sums() == std::vector<float>(3, 32)));
}

TEST_CASE("parallel_apply: the end of a region of autocast in the work leaves the caller's cache of weights") {
  const Tensor weight = at::ones({4, 4}).set_requires_grad(true);
  const Autocast autocast(at::kCPU, at::kBFloat16);
  const auto cast_of = [](const Tensor& product) { return product.grad_fn()->next_edge(1).function; };  // of the weight
  const auto before = cast_of(at::mm(at::ones({1, 4}), weight));
  parallel_apply(3, [&](size_t i) {
    if (i > 0) Autocast(at::kCPU, at::kBFloat16);
  });
  CHECK(cast_of(at::mm(at::ones({1, 4}), weight)) == before);
}

TEST_CASE("parallel_apply within a checkpoint: its threads know of the recompute, and gradients are the same") {
  std::vector<std::vector<bool>> recomputes;
  const auto sum_of_parts = [&](const Tensor& x) {
    std::vector<Tensor> parts(3);
    std::array<bool, 3> seen{};
    parallel_apply(3, [&](size_t i) {
      seen[i] = nn::in_recompute();
      parts[i] = (x * static_cast<double>(i + 1)).sin();
    });
    recomputes.emplace_back(seen.begin(), seen.end());
    return parts[0] * parts[1] * parts[2];
  };
  const Tensor x = at::full({4}, 0.3).set_requires_grad(true), y = at::full({4}, 0.3).set_requires_grad(true);
  sum_of_parts(x).sum().backward();
  recomputes.clear();
  nn::checkpoint(nn::CheckpointOptions{.early_stop = false}, sum_of_parts, y).sum().backward();
  CHECK((x.grad().equal(y.grad())));
  CHECK((recomputes == std::vector<std::vector<bool>>{{false, false, false}, {true, true, true}}));
  recomputes.clear();
  const at::NoGradGuard no_grad;
  sum_of_parts(x);
  CHECK((recomputes.back() == std::vector<bool>(3, false)));
}

TEST_CASE("parallel_apply: gradients of a shared tensor have the same bits, whatever its threads did before") {
  const Tensor values = at::linspace(0.1, 2, 256);
  const auto gradient = [&] {
    const Tensor x = values.clone().set_requires_grad(true);
    std::vector<Tensor> parts(4);
    parallel_apply(4, [&](size_t i) { parts[i] = (x * (0.7 + static_cast<double>(i))).sin().exp(); });
    at::stack(parts).sum().backward();
    return x.grad();
  };
  const Tensor expected = gradient();
  for (size_t busy = 0; busy < 24; ++busy) {
    parallel_apply(4, [&](size_t i) {
      Tensor y = values.clone().set_requires_grad(true);
      for (size_t n = 0; n < (i == busy % 4 ? 1 + busy : 0); ++n) y = y * 2;
    });
    CAPTURE(busy);
    CHECK((gradient().equal(expected)));
  }
}

TEST_CASE("parallel_apply is differentiable: gradients flow through what other threads made") {
  Tensor x = at::full({3}, 2.0).set_requires_grad(true);
  std::vector<Tensor> results(3);
  parallel_apply(3, [&](size_t i) { results[i] = x * x * static_cast<double>(i + 1); });
  (results[0] + results[1] + results[2]).sum().backward();
  CHECK((x.grad().equal(at::full({3}, 24.0))));
}

TEST_CASE("parallel_apply within parallel_apply, all at the same time") {
  Meeting meeting(12);
  std::atomic<int> met = 0;
  std::vector<std::vector<int>> calls(3, std::vector<int>(4));
  parallel_apply(3, [&](size_t i) {
    parallel_apply(4, [&, i](size_t j) {
      met += meeting.arrive();
      ++calls[i][j];
    });
  });
  CHECK(met == 12);
  CHECK((calls == std::vector<std::vector<int>>(3, std::vector<int>(4, 1))));
}

TEST_CASE("parallel_apply from several threads: each caller waits for its own") {
  constexpr int kCallers = 4, kRounds = 200;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller)
    callers.emplace_back([&, caller] {
      for (int round = 0; round < kRounds; ++round) {
        std::vector<int> results(3);
        try {
          parallel_apply(3, [&](size_t i) {
            results[i] = caller * 1000 + round;
            if (round % 10 == 9 && i == 2) throw std::runtime_error(std::to_string(caller));
          });
          wrong += round % 10 == 9;
        } catch (const std::runtime_error& error) {
          wrong += error.what() != std::to_string(caller);
        }
        wrong += results != std::vector<int>(3, caller * 1000 + round);
      }
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
}

}  // namespace parallel_apply_test
