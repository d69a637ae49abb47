#include "support/thread_collectives.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <limits>

#include "support/expect_error.h"

namespace thread_collectives_test {

using namespace fulgur;

TEST_CASE("collectives between threads") {
  constexpr int64_t kRanks = 3;
  std::vector<std::vector<Tensor>> results(kRanks);
  std::vector<int> any(kRanks);
  test::run_ranks(kRanks, [&](Collectives& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    const Tensor value = at::tensor({1.0 + static_cast<double>(rank), -static_cast<double>(rank)});
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max})
      results[rank].push_back(ranks.all_reduce(value, op));
    results[rank].push_back(ranks.broadcast(value, 1));
    ranks.barrier("test");
    any[rank] = ranks.any(rank == 2) && !ranks.any(false);
  });
  const std::vector<Tensor> expected = {at::tensor({6.0, -3.0}), at::tensor({2.0, -1.0}), at::tensor({1.0, -2.0}),
                                        at::tensor({3.0, 0.0}), at::tensor({2.0, -1.0})};
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < expected.size(); ++i) CHECK(at::equal(results[rank][i], expected[i]));
    CHECK(any[rank]);
  }
}

TEST_CASE("whether numbers are the same on all ranks") {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  const auto same = [](const std::vector<std::vector<int64_t>>& of_ranks) {
    std::vector<int> answers(of_ranks.size());
    test::run_ranks(static_cast<int64_t>(of_ranks.size()), [&](Collectives& ranks) {
      const auto rank = static_cast<size_t>(ranks.rank());
      answers[rank] = same_on_all_ranks(ranks, of_ranks[rank]);
    });
    for (const int answer : answers) CHECK(answer == answers.front());
    return answers.front() != 0;
  };
  CHECK(same({{kLeast, -1, 0, kMost}, {kLeast, -1, 0, kMost}, {kLeast, -1, 0, kMost}}));
  CHECK(same({{}, {}}));
  CHECK_FALSE(same({{1, 2}, {1, 2}, {1, 3}}));
  CHECK_FALSE(same({{kLeast}, {kMost}}));
  CHECK_FALSE(same({{-1}, {0}}));
}

TEST_CASE("a gather between threads returns gradients to where the values came from") {
  std::vector<Tensor> gradients(2);
  test::run_ranks(2, [&](Collectives& ranks) {
    const Tensor value = at::full({1}, ranks.rank() + 1, at::kDouble).requires_grad_();
    const std::vector<Tensor> all = ranks.all_gather(value, /*with_gradients=*/true);
    // Rank 0: a b; rank 1: 3 a b. Both: 4 a b.
    (all[0] * all[1] * (ranks.rank() == 0 ? 1 : 3)).sum().backward();
    gradients[static_cast<size_t>(ranks.rank())] = value.grad();
  });
  CHECK(gradients[0].item<double>() == 8);
  CHECK(gradients[1].item<double>() == 4);
}

TEST_CASE("threads do not wait for one that has failed") {
  const std::string message = test::message_of<std::runtime_error>([] {
    test::run_ranks(3, [](Collectives& ranks) {
      if (ranks.rank() == 1) throw std::runtime_error("rank 1 is broken");
      ranks.barrier("never");
    });
  });
  CHECK(message == "rank 1 is broken");
}

}  // namespace thread_collectives_test
