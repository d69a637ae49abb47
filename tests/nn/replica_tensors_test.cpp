#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/nn/replica_tensors.h"
#include "support/device_counts.h"
#include "support/expect_error.h"
#include "support/gpu.h"

namespace replica_tensors_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

struct Net : torch::nn::Module {
  explicit Net(int64_t width = 4) : first(width, 3), norm(nn::BatchNormOptions(3)), last(3, 2) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("dropout", dropout);
    register_module("last", last);
    register_buffer("nothing", Tensor());
    scale = register_buffer("scale", at::ones({2}));
  }
  Tensor forward(const Tensor& x) { return last(dropout(norm->forward(first(x)))) * scale; }

  torch::nn::Linear first;
  nn::BatchNorm1d norm;
  torch::nn::Dropout dropout{0.5};
  torch::nn::Linear last;
  Tensor scale;
};

template <class Module>
struct Group {
  std::shared_ptr<Module> source;
  std::vector<std::shared_ptr<Module>> copies;
  nn::ReplicaTensors tensors;
  template <class... Args>
  explicit Group(const Args&... args)
      : source(std::make_shared<Module>(args...)),
        copies{std::make_shared<Module>(args...), std::make_shared<Module>(args...)},
        tensors(*source, {copies[0], copies[1]}) {}
};

bool equal_values(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto all_equal = [](const auto& these, const auto& those) {
    for (const auto& item : these) {
      if (item.value().defined() != those[item.key()].defined()) return false;
      if (item.value().defined() && !item.value().equal(those[item.key()])) return false;
    }
    return these.size() == those.size();
  };
  return all_equal(a.named_parameters(), b.named_parameters()) && all_equal(a.named_buffers(), b.named_buffers());
}

/// The copy's versions of all tensors: what copies raise.
std::vector<uint32_t> versions(const torch::nn::Module& module) {
  std::vector<uint32_t> all;
  for (const Tensor& parameter : module.parameters()) all.push_back(parameter._version());
  for (const Tensor& buffer : module.buffers())
    if (buffer.defined()) all.push_back(buffer._version());
  return all;
}

}  // namespace

TEST_CASE("ReplicaTensors makes replicas equal, and copies only what has changed since") {
  Group<Net> group;
  CHECK_FALSE(equal_values(*group.source, *group.copies[0]));
  CHECK(group.tensors.copy_values() == 0);  // all on one device
  for (const auto& copy : group.copies) CHECK(equal_values(*group.source, *copy));

  group.source->eval();
  group.tensors.copy_values();  // what training may have left
  const auto before = versions(*group.copies[1]);
  const auto copied = [&] {
    std::vector<size_t> places;
    const auto after = versions(*group.copies[1]);
    for (size_t i = 0; i < after.size(); ++i)
      if (after[i] != before[i]) places.push_back(i);
    return places;
  };
  group.tensors.copy_values();
  CHECK(copied().empty());
  {
    const at::NoGradGuard no_grad;
    group.source->last->weight.mul_(2);
  }
  group.tensors.copy_values();
  for (const auto& copy : group.copies) CHECK(equal_values(*group.source, *copy));
  // In the order of registration: first.weight, first.bias, norm.weight, norm.bias, last.weight.
  CHECK((copied() == std::vector<size_t>{4}));
  // In training floating buffers go each time; parameters do not.
  group.source->train();
  group.tensors.copy_values();
  group.tensors.copy_values();
  REQUIRE(copied().size() == 4);  // with scale, running_mean, running_var
  CHECK(copied()[0] == 4);
  CHECK(copied()[1] >= 6);
  // On demand all do.
  group.tensors.copy_values(true);
  CHECK(copied().size() == before.size());
}

TEST_CASE("ReplicaTensors copies everything on demand: after writes that bypass the version") {
  Group<Net> group;
  group.tensors.copy_values();
  group.source->last->bias.data().fill_(5);
  group.tensors.copy_values(true);
  for (const auto& copy : group.copies) CHECK((copy->last->bias.equal(at::full({2}, 5.0))));
}

TEST_CASE("ReplicaTensors sees a source whose tensor got other memory") {
  Group<Net> group;
  group.tensors.copy_values();
  // As a change of format or a load may do it: without a write to the old memory.
  group.source->last->weight.set_data(at::full({2, 3}, 7.0));
  group.tensors.copy_values();
  CHECK((group.copies[1]->last->weight.equal(at::full({2, 3}, 7.0))));
}

TEST_CASE("ReplicaTensors: running statistics that a replica computed itself are replaced by the source's") {
  Group<Net> group;
  group.tensors.copy_values();
  const at::NoGradGuard no_grad;
  const Tensor x = at::randn({8, 4});
  for (Net* net : {group.source.get(), group.copies[0].get(), group.copies[1].get()})
    net->forward(net == group.source.get() ? x : x * 3 + 1);
  const Tensor mean = group.source->norm->running_mean.clone();
  CHECK_FALSE(mean.equal(group.copies[0]->norm->running_mean));
  group.tensors.copy_values();
  CHECK((group.source->norm->running_mean.equal(mean)));
  for (const auto& copy : group.copies) CHECK(equal_values(*group.source, *copy));
  // Training ends after a batch: what it left goes once more.
  group.source->forward(x * 2);
  group.source->eval();
  group.tensors.copy_values();
  for (const auto& copy : group.copies) CHECK(equal_values(*group.source, *copy));
  // One replica alone, while the source is as it was.
  group.copies[1]->norm->running_var.add_(1);
  group.tensors.copy_values();
  CHECK(equal_values(*group.source, *group.copies[1]));
}

TEST_CASE("ReplicaTensors adds the gradients of the replicas to the source's, and they have none after it") {
  Group<Net> group;
  group.tensors.copy_values();
  for (Net* net : {group.source.get(), group.copies[0].get(), group.copies[1].get()})
    net->norm->eval(), net->dropout->eval();
  const std::vector<Tensor> x = {at::randn({5, 4}), at::randn({3, 4}), at::randn({1, 4})};
  group.source->forward(x[0]).sum().backward();
  group.copies[0]->forward(x[1]).sum().backward();
  group.copies[1]->forward(x[2]).sum().backward();
  std::vector<Tensor> sums;
  for (const auto& item : group.source->named_parameters())
    sums.push_back(item.value().grad() + group.copies[0]->named_parameters()[item.key()].grad() +
                   group.copies[1]->named_parameters()[item.key()].grad());
  CHECK(group.tensors.reduce_gradients() == 0);
  const auto parameters = group.source->parameters();
  REQUIRE(parameters.size() == sums.size());
  for (size_t i = 0; i < sums.size(); ++i) CHECK((parameters[i].grad().equal(sums[i])));
  for (const auto& copy : group.copies)
    for (const Tensor& parameter : copy->parameters()) CHECK_FALSE(parameter.grad().defined());
  // Without anything new it stays.
  group.tensors.reduce_gradients();
  for (size_t i = 0; i < sums.size(); ++i) CHECK((parameters[i].grad().equal(sums[i])));
}

TEST_CASE("ReplicaTensors: a gradient that only a replica has becomes the source's, none stays none") {
  Group<Net> group;
  group.tensors.copy_values();
  group.copies[1]->last->weight.sum().backward();
  group.tensors.reduce_gradients();
  CHECK((group.source->last->weight.grad().equal(at::ones({2, 3}))));
  CHECK_FALSE(group.source->last->bias.grad().defined());
}

TEST_CASE("ReplicaTensors: gradients of replicas that were dropped are not added") {
  Group<Net> group;
  group.tensors.copy_values();
  group.source->last->weight.sum().backward();
  for (const auto& copy : group.copies) copy->last->weight.sum().backward();
  group.tensors.drop_gradients();
  group.tensors.reduce_gradients();
  CHECK((group.source->last->weight.grad().equal(at::ones({2, 3}))));
  for (const auto& copy : group.copies) CHECK_FALSE(copy->last->weight.grad().defined());
}

TEST_CASE("ReplicaTensors adds sparse gradients") {
  Group<torch::nn::EmbeddingImpl> group(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  group.tensors.copy_values();
  group.source->forward(at::full({1}, 1, at::kLong)).sum().backward();
  for (const auto& copy : group.copies) copy->forward(at::full({2}, 3, at::kLong)).sum().backward();
  group.tensors.reduce_gradients();
  const Tensor gradient = group.source->weight.grad().to_dense();
  CHECK((gradient.sum(1).equal(at::full({5}, 0.0)
                                   .index_fill_(0, at::full({1}, 1, at::kLong), 2.0)
                                   .index_fill_(0, at::full({1}, 3, at::kLong), 8.0))));
}

TEST_CASE("ReplicaTensors: what is frozen in the source is frozen in the replicas, and thawed with it") {
  Group<Net> group;
  group.source->first->weight.set_requires_grad(false);
  group.tensors.copy_values();
  for (const auto& copy : group.copies) {
    CHECK_FALSE(copy->first->weight.requires_grad());
    CHECK(copy->first->bias.requires_grad());
    copy->forward(at::randn({4, 4})).sum().backward();
    CHECK_FALSE(copy->first->weight.grad().defined());
  }
  group.source->first->weight.set_requires_grad(true);
  group.tensors.copy_values();
  for (const auto& copy : group.copies) CHECK(copy->first->weight.requires_grad());
}

TEST_CASE("ReplicaTensors: replicas are in training or evaluation mode as the source is, layer by layer") {
  Group<Net> group;
  const auto modes = [](const Net& net) {
    return std::vector<bool>{net.is_training(), net.first->is_training(), net.norm->is_training(),
                             net.dropout->is_training()};
  };
  group.source->eval();
  group.tensors.copy_values();
  for (const auto& copy : group.copies) CHECK((modes(*copy) == std::vector<bool>(4, false)));
  group.source->train();
  group.source->norm->eval();
  group.tensors.copy_values();
  for (const auto& copy : group.copies) CHECK((modes(*copy) == std::vector<bool>{true, true, false, true}));
  group.source->eval();
  group.source->dropout->train();
  group.tensors.copy_values();
  for (const auto& copy : group.copies) CHECK((modes(*copy) == std::vector<bool>{false, false, false, true}));
}

namespace {

struct Tied : torch::nn::Module {
  explicit Tied(bool ties = true) {
    register_module("embedding", embedding);
    register_module("head", head);
    shared = register_buffer("shared", at::rand({3}));
    register_buffer("shared_too", shared);
    if (!ties) return;
    head->weight = embedding->weight;
    tie_parameters(*this, "embedding.weight", "head.weight");
  }
  torch::nn::Embedding embedding{5, 3};
  torch::nn::Linear head{torch::nn::LinearOptions(3, 5).bias(false)};
  Tensor shared;
};

}  // namespace

TEST_CASE("ReplicaTensors: a tied parameter is one, and its gradient comes once") {
  Group<Tied> group;
  group.tensors.copy_values();
  for (const auto& copy : group.copies) {
    CHECK((copy->embedding->weight.equal(group.source->embedding->weight)));
    CHECK((copy->head->weight.is_same(copy->embedding->weight)));
    (copy->embedding->weight.sum() + copy->head->weight.sum()).backward();
  }
  group.tensors.reduce_gradients();
  CHECK((group.source->head->weight.grad().equal(at::full({5, 3}, 4.0))));
  // A buffer under two names is not seen as changed each time.
  group.source->eval();
  group.tensors.copy_values();
  const uint32_t version = group.copies[0]->shared._version();
  group.tensors.copy_values();
  CHECK(group.copies[0]->shared._version() == version);
}

TEST_CASE("on GPUs, ReplicaTensors copies as many pieces as there are dtypes, however many tensors", "[gpu]") {
  test::require_gpus(3);
  struct Many : torch::nn::Module {
    explicit Many(int64_t layers) {
      for (int64_t i = 0; i < layers; ++i) {
        register_module(cat("linear", i), torch::nn::Linear(3, 5));
        register_module(cat("norm", i), torch::nn::BatchNorm1d(5));
      }
    }
  };
  const auto copies_of = [](int64_t layers) {
    Group<Many> group(layers);
    group.source->to(at::Device(at::kCUDA, 0));
    for (size_t i = 0; i < 2; ++i) group.copies[i]->to(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(i + 1)));
    const auto between = [] {
      const auto counts = test::device_counts();
      return counts ? counts->copies_between_devices : 0;
    };
    const int64_t before = between();
    CHECK(group.tensors.copy_values() > 0);
    for (const auto& copy : group.copies)
      for (const auto& item : group.source->named_parameters())
        CHECK((copy->named_parameters()[item.key()].cpu().equal(item.value().cpu())));
    const int64_t values = between() - before;
    std::vector<Tensor> sums;
    int64_t number = 0;
    for (Many* module : {group.source.get(), group.copies[0].get(), group.copies[1].get()})
      for (const Tensor& parameter : module->parameters())
        parameter.mutable_grad() = at::full_like(parameter.detach(), 0.1 * static_cast<double>(++number));
    for (size_t i = 0; i < group.source->parameters().size(); ++i)
      sums.push_back(group.source->parameters()[i].grad().cpu() + group.copies[0]->parameters()[i].grad().cpu() +
                     group.copies[1]->parameters()[i].grad().cpu());
    const int64_t middle = between();
    group.tensors.reduce_gradients();
    for (size_t i = 0; i < sums.size(); ++i) CHECK((group.source->parameters()[i].grad().cpu().equal(sums[i])));
    return std::pair(values, between() - middle);
  };
  const auto few = copies_of(1), many = copies_of(8);
  CHECK(few == many);
  // Parameters, floating buffers, counts of batches, for each of two replicas.
  if (test::device_counts()) CHECK((many == std::pair<int64_t, int64_t>(6, 2)));
}

TEST_CASE("ReplicaTensors names what a replica has otherwise") {
  const auto of = [](auto source, auto replica) {
    return message_of<ConfigError>([&] { nn::ReplicaTensors(*source, {replica}); });
  };
  CHECK_THAT(of(std::make_shared<Net>(4), std::make_shared<Net>(6)),
             ContainsSubstring("[nn.ReplicaTensors]") && ContainsSubstring("parameters; 1 differ") &&
                 ContainsSubstring("'first.weight' [3, 4] Float and 'first.weight' [3, 6] Float") &&
                 ContainsSubstring("from the options alone"));
  auto wide = std::make_shared<Net>();
  convert_floating(*wide, at::kDouble);
  CHECK_THAT(of(std::make_shared<Net>(), wide),
             ContainsSubstring("6 differ") && ContainsSubstring("Double") && ContainsSubstring(", and 1 more"));
  CHECK_THAT(of(std::make_shared<Tied>(true), std::make_shared<Tied>(false)),
             ContainsSubstring("none and 'head.weight' [5, 3] Float"));
  auto more = std::make_shared<Net>();
  more->register_buffer("extra", at::zeros({1}));
  CHECK_THAT(of(std::make_shared<Net>(), more), ContainsSubstring("buffers") && ContainsSubstring("'extra' [1] Float"));
  // Layers without tensors too, or modes would go to the wrong ones.
  auto deeper = std::make_shared<Net>();
  deeper->register_module("second_dropout", torch::nn::Dropout());
  CHECK_THAT(of(std::make_shared<Net>(), deeper), ContainsSubstring("layers; 1 differ: none and 'second_dropout'"));
}

}  // namespace replica_tensors_test
