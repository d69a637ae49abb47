#include "fulgur/nn/sync_norm.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include "fulgur/nn/batch_norm.h"
#include "support/expect_error.h"
#include "support/texts_of_one.h"

namespace sync_norm_test {

using namespace fulgur;

namespace {

/// A run of `size` in which nothing may be said.
class Silence final : public test::TextsOfOne {
 public:
  explicit Silence(int64_t size) : size_(size) {}
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return size_; }
  Tensor all_reduce(const Tensor&, ReduceOp) override { throw std::logic_error("communication"); }
  std::vector<Tensor> all_gather(const Tensor&, bool) override { throw std::logic_error("communication"); }
  Tensor broadcast(const Tensor&, int64_t) override { throw std::logic_error("communication"); }
  bool any(bool) override { throw std::logic_error("communication"); }
  void barrier(std::string_view) override { throw std::logic_error("communication"); }

 private:
  int64_t size_;
};

struct Net : torch::nn::Module {
  nn::BatchNorm1d ours{nullptr};
  torch::nn::ModuleList inner{nullptr};
  explicit Net(bool with_libtorch = false) {
    ours = register_module("ours", nn::BatchNorm1d(4));
    inner = torch::nn::ModuleList(torch::nn::Linear(4, 4), nn::BatchNorm2d(4), nn::BatchNorm3d(4));
    if (with_libtorch) {
      inner->push_back(torch::nn::BatchNorm1d(4));
      inner->push_back(torch::nn::ModuleList(torch::nn::BatchNorm2d(4), torch::nn::BatchNorm3d(4)));
    }
    register_module("inner", inner);
  }
};

}  // namespace

TEST_CASE("LibTorch's batch norms in a module are named") {
  using Names = std::vector<std::string>;
  CHECK(nn::unsyncable_batch_norms(Net()).empty());
  CHECK(nn::unsyncable_batch_norms(Net(true)) == Names{"inner.3", "inner.4.0", "inner.4.1"});
  CHECK(nn::unsyncable_batch_norms(*torch::nn::BatchNorm2d(3)) == Names{""});
}

TEST_CASE("all norms of a module are switched over and back, and keep their names") {
  Net net;
  const auto parameters = net.named_parameters().keys(), buffers = net.named_buffers().keys();
  Silence ranks(2);
  CHECK(nn::sync_norms_over(net, &ranks) == 3);
  CHECK(net.named_parameters().keys() == parameters);
  CHECK(net.named_buffers().keys() == buffers);
  const Tensor x = at::randn({4, 4});
  CHECK_THROWS_AS(net.ours->forward(x), std::logic_error);
  CHECK_THROWS_AS(net.inner[1]->as<nn::BatchNorm2d>()->forward(at::randn({2, 4, 2, 2})), std::logic_error);
  CHECK(nn::sync_norms_over(net, nullptr) == 3);
  CHECK(net.ours->forward(x).defined());
  CHECK(nn::sync_norms_over(*net.ours, &ranks) == 1);
  CHECK_THROWS_AS(net.ours->forward(x), std::logic_error);
}

TEST_CASE("a switched norm does not communicate in evaluation, nor with one rank") {
  Silence two(2), one(1);
  for (const bool tracks : {true, false}) {
    nn::BatchNorm1d bn(nn::BatchNorm1dOptions(4).track_running_stats(tracks)),
        plain(nn::BatchNorm1dOptions(4).track_running_stats(tracks));
    const Tensor x = at::randn({6, 4});
    bn->sync_over(&one);
    CHECK(at::equal(bn->forward(x), plain->forward(x)));
    bn->sync_over(&two);
    bn->eval();
    plain->eval();
    CHECK(at::equal(bn->forward(x), plain->forward(x)));
  }
}

TEST_CASE("a clone of a switched norm is switched too") {
  Silence ranks(2);
  nn::BatchNorm1d bn(4);
  bn->sync_over(&ranks);
  const auto copy = std::dynamic_pointer_cast<nn::BatchNorm1dImpl>(bn->clone());
  CHECK_THROWS_AS(copy->forward(at::randn({2, 4})), std::logic_error);
}

}  // namespace sync_norm_test
