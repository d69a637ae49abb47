#include "fulgur/strategies/deferred_init.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <cstring>

#include "fulgur/core/state/materialize_module.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace deferred_init_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using torch::indexing::Slice;

namespace {

constexpr int64_t kSize = 600;  // a matrix has 1.4 MB
constexpr uint64_t kSeed = 4;

class CapturedLog {
 public:
  CapturedLog() {
    log::reset_warnings();
    log::set_sink(
        [](log::Level, const std::string& line, void* user) { static_cast<CapturedLog*>(user)->text_ += line; }, this);
  }
  ~CapturedLog() {
    log::set_sink(nullptr, nullptr);
    log::reset_warnings();
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

struct Plain : LightningModule {
  StepOutput training_step(const Batch& batch, int64_t) override { return batch["x"].sum(); }
};

// Each way in which constructors give weights their values.
struct ManyInits final : Plain {
  explicit ManyInits(uint64_t order) {
    SplitMix64 random(order);
    for (int i = 0; i < 12; ++i) add(cat("w", i), static_cast<int>(random.below(14)));
    first->weight.set_requires_grad(true);
  }

  void add(const std::string& name, int kind) {
    const at::NoGradGuard no_grad;
    Tensor value = at::empty({kSize, kSize});
    switch (kind) {
      case 0:
        torch::nn::init::normal_(value, 0.5, 0.02);
        break;
      case 1:
        torch::nn::init::kaiming_uniform_(value, std::sqrt(5));
        break;
      case 2:
        torch::nn::init::orthogonal_(value);
        break;
      case 3:
        value = at::randn({kSize, kSize}) * 0.02;
        break;
      case 4:
        torch::nn::init::eye_(value);
        break;
      case 5:
        value = first->weight.detach().t().clone().mul_(2);
        break;
      case 6:
        value.uniform_(-1, 1).erfinv_().mul_(0.02).clamp_(-0.04, 0.04);
        break;
      case 7: {
        value.normal_();
        value.narrow(0, 3, 5).zero_();
        value[7].fill_(2);
        break;
      }
      case 8:
        value.copy_(at::arange(kSize)).add_(at::randn({kSize, 1}));
        break;
      case 9:
        value = at::ones({kSize, kSize}).tril_().div_(first->weight.detach().norm().item<double>());
        break;
      case 10: {
        // The scale follows from the values.
        value.normal_();
        value.div_(value.norm(2, {1}, /*keepdim=*/true));
        break;
      }
      case 11:
        value = at::zeros({kSize, 2 * kSize}).normal_().chunk(2, 1)[1].contiguous();
        break;
      case 12:
        value = torch::dropout(at::ones({kSize, kSize}), 0.5, true);
        break;
      default:
        value = at::zeros({kSize, kSize}).bernoulli_(0.25);
        break;
    }
    register_parameter(name, value);
    if (kind % 3 == 0) static_cast<void>(at::randn({3}));  // a small tensor
  }

  torch::nn::Linear first = register_module("first", torch::nn::Linear(kSize, kSize));
};

struct Layers final : Plain {
  Layers() {
    const at::NoGradGuard no_grad;
    for (const Tensor& weight : parameters())
      if (weight.dim() > 1) torch::nn::init::normal_(weight, 0, 0.02);
    embedding->weight[0].zero_();
    head->weight = embedding->weight;
    tie_parameters(*this, "embedding.weight", "head.weight");
    Tensor places = at::zeros({2000, kSize});
    const Tensor angles = at::arange(2000).unsqueeze(1) * at::arange(kSize / 2).mul(0.01).exp();
    places.index_put_({Slice(), Slice(0, torch::indexing::None, 2)}, at::sin(angles));
    places.index_put_({Slice(), Slice(1, torch::indexing::None, 2)}, at::cos(angles));
    register_buffer("places", places);
  }
  torch::nn::Embedding embedding =
      register_module("embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(2000, kSize).padding_idx(0)));
  torch::nn::Conv2d convolution = register_module("convolution", torch::nn::Conv2d(256, 256, 3));
  torch::nn::LSTM lstm = register_module("lstm", torch::nn::LSTM(kSize, kSize));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kSize, 2000));
};

struct ReadsMemory final : Plain {
  ReadsMemory() { weight.mutable_data_ptr<float>()[5] = 3; }
  Tensor weight = register_parameter("weight", at::randn({kSize, kSize}));
};

struct KeepsTensor final : Plain {
  Tensor mask = at::ones({kSize, kSize});
  Tensor weight = register_parameter("weight", at::randn({kSize, kSize}));
};

struct AsksForMemory final : Plain {
  AsksForMemory() { std::memset(weight.mutable_data_ptr(), 0, 64); }
  Tensor weight = register_parameter("weight", at::randn({kSize, kSize}));
};

struct Fails final : Plain {
  Fails() { throw ConfigError("no such size"); }
};

using Make = std::function<std::shared_ptr<LightningModule>()>;

struct Created {
  std::shared_ptr<LightningModule> module;
  Tensor next;  // random numbers drawn afterwards
};

Created created(const Make& make, bool deferred) {
  seed_everything(kSeed);
  auto module = deferred ? deferred_init(make) : make();
  return {.module = std::move(module), .next = at::randn({5})};
}

int64_t without_memory(const LightningModule& module) {
  int64_t count = 0;
  for (const Tensor& parameter : module.parameters()) count += stored_values(parameter) ? 1 : 0;
  return count;
}

void check_equal(const Make& make, int64_t least_deferred) {
  const Created whole = created(make, false), deferred = created(make, true);
  CHECK(at::equal(whole.next, deferred.next));
  CHECK(without_memory(*deferred.module) >= least_deferred);
  const auto expected = whole.module->named_parameters();
  // In another order than that of the creation.
  const auto keys = expected.keys();
  for (auto name = keys.rbegin(); name != keys.rend(); ++name) {
    INFO(*name);
    const Tensor now = read_now(deferred.module->named_parameters()[*name]);
    CHECK(now.is_cpu());
    CHECK(now.strides() == expected[*name].strides());
    CHECK(at::equal(now, expected[*name]));
    CHECK(deferred.module->named_parameters()[*name].requires_grad() == expected[*name].requires_grad());
  }
  for (const auto& item : whole.module->named_buffers())
    CHECK(at::equal(deferred.module->named_buffers()[item.key()], item.value()));
  materialize_module(*deferred.module);
  CHECK(without_memory(*deferred.module) == 0);
  for (const auto& item : expected) CHECK(at::equal(deferred.module->named_parameters()[item.key()], item.value()));
  // Computing them draws none of the process's random numbers.
  const Tensor drawn = at::randn({5});
  static_cast<void>(created(make, false));
  CHECK(at::equal(at::randn({5}), drawn));
}

}  // namespace

TEST_CASE("deferred_init: parameters have the values of a module that is created whole") {
  const CapturedLog log;
  for (uint64_t order = 0; order < 8; ++order) {
    INFO("order " << order);
    check_equal([order] { return std::make_shared<ManyInits>(order); }, 10);
  }
  CHECK(log.text() == "");
}

TEST_CASE("deferred_init: layers of LibTorch, tied weights and buffers") {
  const CapturedLog log;
  check_equal([] { return std::make_shared<Layers>(); }, 4);
  CHECK(log.text() == "");
  seed_everything(kSeed);
  const auto module = std::static_pointer_cast<Layers>(deferred_init([] { return std::make_shared<Layers>(); }));
  CHECK(module->head->weight.is_same(module->embedding->weight));
}

TEST_CASE("deferred_init: what needs memory is created whole, and a warning says why") {
  const auto warned = [](const Make& make) {
    const CapturedLog log;
    check_equal(make, 0);
    return log.text();
  };
  CHECK_THAT(warned([] { return std::make_shared<ReadsMemory>(); }), ContainsSubstring("created whole"));
  CHECK_THAT(warned([] { return std::make_shared<AsksForMemory>(); }), ContainsSubstring("data pointer"));
  CHECK_THAT(warned([] { return std::make_shared<KeepsTensor>(); }),
             ContainsSubstring("a tensor of 1440000 bytes is kept that is neither a parameter nor a buffer"));
  CHECK_THROWS_AS(deferred_init([] { return std::make_shared<Fails>(); }), ConfigError);
}

TEST_CASE("deferred_init: other values take the place of those of the constructor") {
  seed_everything(kSeed);
  const auto module = deferred_init([] { return std::make_shared<ManyInits>(uint64_t{1}); });
  const Tensor weight = module->named_parameters()["first.weight"];
  const Tensor given = at::randn({kSize, kSize}, at::kDouble);
  assign_values(weight, given);
  CHECK(weight.is_meta());
  CHECK(at::equal(read_now(weight), given.to(at::kFloat)));
  convert_floating(*module, at::kBFloat16);
  CHECK(module->named_parameters()["first.weight"].scalar_type() == at::kBFloat16);
  CHECK(at::equal(read_now(weight), given.to(at::kFloat).to(at::kBFloat16)));
}

TEST_CASE("deferred_init: values that are written too early are an error") {
  const auto module = deferred_init([] { return std::make_shared<ManyInits>(uint64_t{1}); });
  const Tensor weight = module->named_parameters()["first.weight"];
  {
    const at::NoGradGuard no_grad;
    weight.mul_(2);
  }
  CHECK_THROWS_WITH(read_now(weight), ContainsSubstring("deferred_init: false"));
  CHECK_THROWS_WITH(materialize_module(*module), ContainsSubstring("would be lost"));
  CHECK_THROWS_WITH(convert_floating(*module, at::kDouble), ContainsSubstring("would be lost"));
}

}  // namespace deferred_init_test
