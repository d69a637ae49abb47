#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <functional>
#include <thread>

#include "fulgur/core/device/accelerator.h"
#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/nn/layer_norm.h"
#include "fulgur/optim/adam.h"
#include "fulgur/optim/sgd.h"
#include "fulgur/virtual_devices/virtual_devices.h"

namespace devices_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

namespace {

const at::Device d0(at::kPrivateUse1, 0), d1(at::kPrivateUse1, 1);

// In which order a kernel sums depends on the processor and on how memory is aligned.
bool close(const Tensor& a, const Tensor& b) { return at::allclose(a.cpu(), b.cpu(), 1e-5, 1e-6); }

// Values and gradients of a module on a virtual device equal those on the CPU.
template <class M>
void check_like_the_cpu(M here, M there, const Tensor& input) {
  const auto theirs = there->parameters();
  const auto mine = here->parameters();
  for (size_t i = 0; i < mine.size(); ++i) theirs[i].detach().copy_(mine[i].detach());
  there->to(d1);
  const auto out_of = [](const auto& result) {
    if constexpr (requires { std::get<0>(result); })
      return std::get<0>(result);
    else
      return result;
  };
  const Tensor x = input.is_floating_point() ? input.clone().requires_grad_() : input;
  const Tensor y = input.is_floating_point() ? input.to(d1).requires_grad_() : input.to(d1);
  const Tensor a = out_of(here->forward(x)), b = out_of(there->forward(y));
  CHECK(b.device() == d1);
  CHECK(close(a, b));
  const Tensor weights = at::linspace(-1, 1, a.numel()).view(a.sizes());
  (a * weights).sum().backward();
  (b * weights.to(d1)).sum().backward();
  if (x.requires_grad()) CHECK(close(x.grad(), y.grad()));
  for (size_t i = 0; i < mine.size(); ++i) {
    CHECK(theirs[i].grad().device() == d1);
    CHECK(close(mine[i].grad(), theirs[i].grad()));
  }
}

}  // namespace

TEST_CASE("a virtual device is a device of LibTorch, with its own name and place") {
  CHECK(virtual_device_count() == 8);
  CHECK(virtual_device(3).str() == "virtual:3");
  CHECK(at::Device("virtual:3") == virtual_device(3));
  const Tensor a = at::ones({2, 3}, at::TensorOptions().device(d1));
  CHECK(a.device() == d1);
  CHECK(((a + 2) * a).device() == d1);
  CHECK((a + 1).sum().item<float>() == 12);
  CHECK(a.t().is_contiguous() == false);
  CHECK(a.view({6}).data_ptr() == a.data_ptr());
  CHECK(a.select(0, 1).data_ptr() == static_cast<float*>(a.data_ptr()) + 3);
}

TEST_CASE("an operation on two devices is an error that names both") {
  const Tensor a = at::ones({2}, at::TensorOptions().device(d0)), b = at::ones({2}, at::TensorOptions().device(d1)),
               c = at::ones({2});
  CHECK_THROWS_WITH(a + b, ContainsSubstring("virtual:0") && ContainsSubstring("virtual:1"));
  CHECK_THROWS_WITH(a + c, ContainsSubstring("virtual:0") && ContainsSubstring("cpu"));
  CHECK_THROWS_WITH(c * a, ContainsSubstring("virtual:0") && ContainsSubstring("cpu"));
  CHECK((a + at::scalar_tensor(1)).sum().item<float>() == 4);  // a number goes along
}

TEST_CASE("what goes from one virtual device to another is counted") {
  reset_device_copies();
  const Tensor a = at::ones({10, 10}).to(d0);
  const Tensor b = a.to(d1);
  b.to(d1);
  CHECK((a * 2).sum().item<float>() == 200);
  std::vector<std::string> seen;
  for (const DeviceCopies& c : device_copies())
    seen.push_back(c.from.str() + ">" + c.to.str() + " " + std::to_string(c.copies) + " " + std::to_string(c.bytes));
  CHECK(seen == std::vector<std::string>{"virtual:0>virtual:1 1 400", "virtual:0>cpu 1 4", "cpu>virtual:0 1 400"});
  CHECK(bytes_between_virtual_devices() == 400);
}

TEST_CASE("layers give the CPU's values and gradients on a virtual device") {
  namespace tn = torch::nn;
  at::manual_seed(1);
  SECTION("linear") { check_like_the_cpu(tn::Linear(5, 3), tn::Linear(5, 3), at::randn({4, 5})); }
  SECTION("convolution") {
    check_like_the_cpu(tn::Conv2d(tn::Conv2dOptions(2, 4, 3).padding(1)),
                       tn::Conv2d(tn::Conv2dOptions(2, 4, 3).padding(1)), at::randn({3, 2, 8, 8}));
  }
  SECTION("convolution without bias, strided") {
    const auto how = tn::Conv2dOptions(2, 4, 3).stride(2).bias(false);
    check_like_the_cpu(tn::Conv2d(how), tn::Conv2d(how), at::randn({3, 2, 8, 8}));
  }
  SECTION("batch norm") { check_like_the_cpu(tn::BatchNorm2d(3), tn::BatchNorm2d(3), at::randn({4, 3, 5, 5})); }
  SECTION("layer norm") {
    check_like_the_cpu(tn::LayerNorm(tn::LayerNormOptions({6})), tn::LayerNorm(tn::LayerNormOptions({6})),
                       at::randn({4, 6}));
  }
  SECTION("embedding") {
    check_like_the_cpu(tn::Embedding(7, 4), tn::Embedding(7, 4), at::randint(7, {3, 5}, at::kLong));
  }
  SECTION("GRU") {
    check_like_the_cpu(tn::GRU(tn::GRUOptions(4, 5).num_layers(2).batch_first(true)),
                       tn::GRU(tn::GRUOptions(4, 5).num_layers(2).batch_first(true)), at::randn({3, 6, 4}));
  }
  SECTION("LSTM") {
    check_like_the_cpu(tn::LSTM(tn::LSTMOptions(4, 5).num_layers(2).batch_first(true)),
                       tn::LSTM(tn::LSTMOptions(4, 5).num_layers(2).batch_first(true)), at::randn({3, 6, 4}));
  }
}

TEST_CASE("losses, pooling and attention compute on a virtual device") {
  at::manual_seed(2);
  const Tensor logits = at::randn({6, 4}), labels = at::randint(4, {6}, at::kLong);
  CHECK(close(at::cross_entropy_loss(logits, labels), at::cross_entropy_loss(logits.to(d0), labels.to(d0))));
  const Tensor images = at::randn({2, 3, 8, 8});
  CHECK(close(at::max_pool2d(images, 2), at::max_pool2d(images.to(d0), 2)));
  const Tensor q = at::randn({2, 2, 5, 4});
  CHECK(close(at::scaled_dot_product_attention(q, q, q, {}, 0.0, true),
              at::scaled_dot_product_attention(q.to(d0), q.to(d0), q.to(d0), {}, 0.0, true)));
  CHECK(close(std::get<0>(at::topk(logits, 2)), std::get<0>(at::topk(logits.to(d0), 2))));
  CHECK((at::argmax(logits, 1).equal(at::argmax(logits.to(d0), 1).cpu())));
  CHECK((at::arange(5, at::TensorOptions().device(d1)).cpu().equal(at::arange(5))));
  CHECK((at::cat({logits.to(d1), logits.to(d1)}).device() == d1));
  CHECK((at::where(logits.to(d1) > 0, 1.0, 0.0).device() == d1));
}

TEST_CASE("a graph over two devices goes backward on both") {
  Tensor a = at::full({3}, 2.0, at::TensorOptions().device(d0)).requires_grad_(),
         b = at::full({3}, 3.0, at::TensorOptions().device(d1)).requires_grad_();
  const Tensor loss = ((a * a).to(d1) * b).sum();
  CHECK(loss.device() == d1);
  loss.backward();
  CHECK(a.grad().device() == d0);
  CHECK((a.grad().cpu().equal(at::full({3}, 12.0))));
  CHECK((b.grad().cpu().equal(at::full({3}, 4.0))));
}

TEST_CASE("each virtual device draws its own random numbers") {
  seed_everything(5);
  seed_devices(5, {d0, d1});
  const auto draw = [](at::Device device) { return at::rand({4}, at::TensorOptions().device(device)).cpu(); };
  const StateTree state = rng_state({d0, d1});
  const Tensor first = draw(d0), second = draw(d1);
  CHECK_FALSE((first.equal(second)));
  load_rng_state({d0, d1}, state);
  CHECK((draw(d1).equal(second)));
  CHECK((draw(d0).equal(first)));
  const Tensor ones = at::ones({1000}, at::TensorOptions().device(d0));
  load_rng_state({d0, d1}, state);
  const Tensor dropped = at::dropout(ones, 0.5, true);
  CHECK((dropped.cpu().eq(0).sum().item<int64_t>() > 400));
  load_rng_state({d0, d1}, state);
  CHECK((at::dropout(ones, 0.5, true).cpu().equal(dropped.cpu())));
}

TEST_CASE("a virtual device counts its memory and the time that it computes") {
  const int64_t before = device_memory(d1)->allocated;
  {
    const Tensor a = at::zeros({1000}, at::TensorOptions().device(d1));
    const Tensor b = a + 1;  // made by a kernel of the CPU
    CHECK(device_memory(d1)->allocated == before + 8000);
  }
  CHECK(device_memory(d1)->allocated == before);
  CHECK(device_memory(d1)->peak_allocated >= before + 8000);
  const Accelerator* accelerator = find_accelerator("virtual");
  REQUIRE(accelerator != nullptr);
  CHECK(accelerator->device_count() == 8);
  const double busy = *accelerator->busy_s(1);
  const Tensor big = at::ones({300, 300}, at::TensorOptions().device(d1));
  at::mm(big, big);
  CHECK(*accelerator->busy_s(1) > busy);
  CHECK(*accelerator->busy_s(7) == 0);
}

TEST_CASE("tensors grow, are cloned and pinned as on any device") {
  Tensor a = at::ones({4}, at::TensorOptions().device(d0));
  a.resize_({8});
  CHECK(a.numel() == 8);
  CHECK((a.narrow(0, 0, 4).cpu().equal(at::ones({4}))));
  Tensor out = at::empty({0}, at::TensorOptions().device(d0));
  at::add_out(out, a.narrow(0, 0, 4), a.narrow(0, 0, 4));
  CHECK((out.cpu().equal(at::full({4}, 2.0))));
  CHECK(out.device() == d0);
  Tensor b = a.clone();
  b.zero_();
  CHECK((a.narrow(0, 0, 4).cpu().equal(at::ones({4}))));
  Tensor c = at::empty({2}, at::TensorOptions().device(d0));
  c.set_data(a);
  CHECK(c.data_ptr() == a.data_ptr());
  CHECK((at::ones({3}).pin_memory().to(d0, true).cpu().equal(at::ones({3}))));
}

TEST_CASE("optimizers step on a virtual device as on the CPU") {
  at::manual_seed(3);
  const Tensor start = at::randn({5, 3}), gradient = at::randn({5, 3});
  const auto stepped = [&](at::Device device) {
    Tensor parameter = start.to(device).clone().requires_grad_();
    AdamW::Options options;
    options.lr = 0.1;
    AdamW optimizer(options);
    optimizer.attach({{.name = "", .params = {parameter}, .names = {"w"}}});
    for (int i = 0; i < 3; ++i) {
      parameter.mutable_grad() = gradient.to(device);
      optimizer.step();
    }
    return parameter.detach().cpu();
  };
  CHECK(close(stepped(at::kCPU), stepped(d1)));
}

// LibTorch's SGD leaves whole vectors of short dtypes out on the CPU, and a virtual device runs the CPU's kernels.
TEST_CASE("optimizers step every element of bfloat16 on a virtual device") {
  const auto check = [](Optimizer&& here, Optimizer&& there) {
    at::manual_seed(1);
    Tensor mine = at::randn({514}).to(at::kBFloat16), theirs = mine.clone().to(d1);
    here.attach({{.name = "", .params = {mine}, .names = {"value"}}});
    there.attach({{.name = "", .params = {theirs}, .names = {"value"}}});
    for (int i = 0; i < 3; ++i) {
      const Tensor gradient = at::randn({514}).to(at::kBFloat16);
      mine.mutable_grad() = gradient;
      theirs.mutable_grad() = gradient.to(d1);
      here.step();
      there.step();
    }
    CHECK(at::equal(mine, theirs.cpu()));
  };
  const SGD::Options plain{.lr = 0.1}, nesterov{.lr = 0.1, .momentum = 0.9, .nesterov = true};
  check(SGD(plain), SGD(plain));
  check(SGD(nesterov), SGD(nesterov));
  const Adam::Options adam{.lr = 0.1};
  check(Adam(adam), Adam(adam));
}

TEST_CASE("autocast computes in bfloat16 on a virtual device") {
  at::autocast::set_autocast_enabled(at::kPrivateUse1, true);
  at::autocast::set_autocast_dtype(at::kPrivateUse1, at::kBFloat16);
  const Tensor a = at::ones({4, 4}, at::TensorOptions().device(d0));
  const Tensor product = at::mm(a, a);
  const Tensor loss = at::mse_loss(product, product);
  at::autocast::set_autocast_enabled(at::kPrivateUse1, false);
  at::autocast::clear_cache();
  CHECK(product.scalar_type() == at::kBFloat16);
  CHECK(loss.scalar_type() == at::kFloat);
}

TEST_CASE("an allocation beyond the memory of a virtual device fails, and leaves the counts as they were") {
  const at::TensorOptions on_d0 = at::TensorOptions().device(d0);
  const Tensor held = at::zeros({256}, on_d0);
  const auto before = device_memory(d0);
  REQUIRE(before);
  set_virtual_device_memory(before->allocated + 4096);
  CHECK_THROWS_AS(at::zeros({4096}, on_d0), c10::OutOfMemoryError);
  CHECK(device_memory(d0)->allocated == before->allocated);
  // The result of a kernel of the CPU counts like any other allocation.
  {
    const Tensor fits = at::ones({512}, on_d0);
    CHECK(device_memory(d0)->allocated == before->allocated + 2048);
    CHECK_THROWS_AS(at::cat({fits, fits, fits}), c10::OutOfMemoryError);
    CHECK(device_memory(d0)->allocated == before->allocated + 2048);
  }
  CHECK(device_memory(d0)->allocated == before->allocated);
  set_virtual_device_memory(0);
  CHECK_NOTHROW(at::zeros({4096}, on_d0));
  CHECK_THROWS_WITH(set_virtual_device_memory(-1), ContainsSubstring("got -1"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these end the process
TEST_CASE("an allocation on a virtual device for which the host has no memory leaves the counts as they were") {
  reset_peak_memory(d0);
  const auto before = device_memory(d0);
  REQUIRE(before);
  CHECK_THROWS(at::empty({int64_t{1} << 59}, at::TensorOptions().device(d0)));
  const auto after = device_memory(d0);
  CHECK(after->allocated == before->allocated);
  CHECK(after->peak_allocated == before->peak_allocated);
}
#endif

TEST_CASE("virtual devices are created once, and never more than requested first") {
  enable_virtual_devices(4);
  CHECK(virtual_device_count() == 8);
  CHECK_THROWS_WITH(enable_virtual_devices(9), ContainsSubstring("8 virtual devices") && ContainsSubstring("9"));
  CHECK_THROWS_WITH(enable_virtual_devices(0), ContainsSubstring("1 to 64"));
}

}  // namespace devices_test
