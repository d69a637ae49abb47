// The numbers of simulated CUDA: operations on the device give the CPU's results, forward and backward, in a captured
// graph too; and negative controls, which show that what is missing in a program is seen.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <functional>
#include <thread>

#include "fulgur/simulated_cuda/simulated_cuda.h"

namespace operators_test {

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

const at::Device kGpu(at::kCUDA, 0);

struct Schedule {
  explicit Schedule(uint64_t schedule) { simulated_cuda_set_schedule(schedule); }
  ~Schedule() { simulated_cuda_set_schedule(0); }
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;
};

// `compute` on the CPU and on the device: the same results, and the same gradients of every input that takes one.
void check_same(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& compute, double tolerance = 1e-5) {
  const auto run = [&](at::Device device) {
    Tensors leaves;
    for (const Tensor& input : inputs) {
      Tensor leaf = input.detach().to(device, input.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
      leaves.push_back(leaf.is_floating_point() ? leaf.requires_grad_(true) : leaf);
    }
    Tensors results = compute(leaves), learning, differentiable;
    for (const Tensor& leaf : leaves)
      if (leaf.requires_grad()) learning.push_back(leaf);
    Tensor loss;
    for (const Tensor& result : results)
      if (result.requires_grad())
        loss = loss.defined() ? loss + result.to(at::kDouble).square().sum() : result.to(at::kDouble).square().sum();
    if (loss.defined())
      for (const Tensor& gradient : torch::autograd::grad({loss}, learning, {}, {}, false, /*allow_unused=*/true))
        if (gradient.defined()) results.push_back(gradient);
    for (Tensor& result : results) result = result.detach().cpu();
    return results;
  };
  const Tensors expected = run(at::kCPU), got = run(kGpu);
  REQUIRE(expected.size() == got.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    REQUIRE(expected[i].sizes() == got[i].sizes());
    CHECK(expected[i].scalar_type() == got[i].scalar_type());
    CHECK(at::allclose(expected[i].to(at::kDouble), got[i].to(at::kDouble), tolerance, tolerance));
  }
}

Tensor fill_with_steps(at::IntArrayRef sizes) {
  const int64_t count = c10::multiply_integers(sizes);
  return (at::arange(count).remainder(17).to(at::kFloat) / 8 - 1 +
          at::arange(count).to(at::kFloat) / static_cast<float>(3 * count + 1))
      .reshape(sizes);
}

}  // namespace

TEST_CASE("operations on the device give the CPU's results", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1, 2, 3));
  const Tensor image = fill_with_steps({2, 4, 9, 9});
  check_same({fill_with_steps({6, 5}), fill_with_steps({5, 3}), fill_with_steps({3})},
             [](const Tensors& in) { return Tensors{at::addmm(in[2], in[0], in[1]).relu()}; });
  check_same(
      {image, fill_with_steps({6, 4, 3, 3}), fill_with_steps({6})},
      [](const Tensors& in) { return Tensors{at::conv2d(in[0], in[1], in[2], 1, 1)}; }, 1e-4);
  check_same(
      {image.contiguous(at::MemoryFormat::ChannelsLast), fill_with_steps({6, 4, 3, 3}), fill_with_steps({6})},
      [](const Tensors& in) { return Tensors{at::conv2d(in[0], in[1], in[2], 2)}; }, 1e-4);
  check_same(
      {image, fill_with_steps({4, 1, 3, 3})},
      [](const Tensors& in) { return Tensors{at::conv2d(in[0], in[1], {}, 1, 1, 1, /*groups=*/4)}; }, 1e-4);
  check_same(
      {image, fill_with_steps({4, 3, 2, 2})},
      [](const Tensors& in) { return Tensors{at::conv_transpose2d(in[0], in[1], {}, 2)}; }, 1e-4);
  check_same(
      {image, fill_with_steps({4}) + 2, fill_with_steps({4})},
      [](const Tensors& in) {
        Tensor mean = at::zeros({4}, in[0].options()).detach(), variance = at::ones({4}, in[0].options()).detach();
        const Tensor y = at::batch_norm(in[0], in[1], in[2], mean, variance, true, 0.1, 1e-5, true);
        return Tensors{y, mean, variance};
      },
      1e-4);
  const auto in_bfloat16 = [](const Tensor& value) { return value.to(at::kBFloat16); };
  check_same(
      {in_bfloat16(image), in_bfloat16(fill_with_steps({4}) + 2), in_bfloat16(fill_with_steps({4}))},
      [](const Tensors& in) {
        const Tensor mean = at::zeros({4}, in[0].options()).detach(),
                     variance = at::ones({4}, in[0].options()).detach();
        return Tensors{at::batch_norm(in[0], in[1], in[2], mean, variance, true, 0.1, 1e-5, true)};
      },
      5e-2);
  check_same(
      {fill_with_steps({5, 8}), fill_with_steps({8}), fill_with_steps({8})},
      [](const Tensors& in) { return Tensors{at::layer_norm(in[0], {8}, in[1], in[2])}; }, 1e-4);
  check_same(
      {fill_with_steps({5, 8}), fill_with_steps({8})},
      [](const Tensors& in) { return Tensors{at::rms_norm(in[0], {8}, in[1], 1e-6)}; }, 1e-4);
  check_same({fill_with_steps({10, 4}), at::arange(7).remainder(10)},
             [](const Tensors& in) { return Tensors{at::embedding(in[0], in[1])}; });
  check_same({fill_with_steps({7, 6}), at::arange(7).remainder(6)},
             [](const Tensors& in) { return Tensors{at::cross_entropy_loss(in[0], in[1])}; });
  check_same({fill_with_steps({5, 6})}, [](const Tensors& in) {
    return Tensors{std::get<0>(in[0].topk(2)), std::get<1>(in[0].sort(1)), in[0].cumsum(0), at::std(in[0], 1, true)};
  });
  check_same({fill_with_steps({4, 4})}, [](const Tensors& in) {
    return Tensors{at::linalg_vector_norm(in[0]), in[0].masked_select(in[0] > 0), in[0].nonzero(),
                   std::get<0>(at::_unique(in[0].detach()))};
  });
  const Tensor square = fill_with_steps({4, 4});
  check_same(
      {at::mm(square, square.t()) + at::eye(4)}, [](const Tensors& in) { return Tensors{at::linalg_cholesky(in[0])}; },
      1e-4);
}

// What the two kernels save for their backward differs: in sizes, in dtype, or there is nothing.
TEST_CASE("operations that save other tensors on CUDA give the CPU's results", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1, 2));
  const Tensor x = fill_with_steps({5, 8});
  check_same({x}, [](const Tensors& in) { return Tensors{at::log_sigmoid(in[0])}; });
  check_same({x, fill_with_steps({8}) + 2}, [](const Tensors& in) {
    const Tensor target = at::ones_like(in[0]).detach() * 0.25;
    return Tensors{at::binary_cross_entropy_with_logits(in[0], target, {}, in[1].detach())};
  });
  for (const int64_t mode : {0, 1, 2})
    for (const bool last_offset : {false, true})
      for (const int64_t padding : {-1, 4})
        for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
          CAPTURE(mode, last_offset, padding, type);
          check_same(
              {fill_with_steps({10, 4}).to(type), at::tensor({1, 2, 4, 5, 4, 3, 2, 9}, at::kLong),
               at::tensor({0, 4, 4, 8}, at::kLong)},
              [&](const Tensors& in) {
                const auto [bags, of_index, sizes, maxima] =
                    at::embedding_bag(in[0], in[1], in[2], /*scale_grad_by_freq=*/false, mode, /*sparse=*/false, {},
                                      last_offset, padding);
                return Tensors{bags};
              },
              type == at::kHalf ? 1e-2 : 1e-5);
        }
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    const double tolerance = type == at::kHalf ? 2e-2 : 0.1;
    check_same(
        {x.to(type), (fill_with_steps({8}) + 2).to(type), fill_with_steps({8}).to(type)},
        [](const Tensors& in) { return Tensors{at::layer_norm(in[0], {8}, in[1], in[2])}; }, tolerance);
    check_same(
        {fill_with_steps({3, 8, 5}).to(type), (fill_with_steps({8}) + 2).to(type), fill_with_steps({8}).to(type)},
        [](const Tensors& in) { return Tensors{at::group_norm(in[0], 2, in[1], in[2])}; }, tolerance);
  }
  // As under autocast: the results are float32, and the gradient is float16 again.
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    check_same({x.to(type)}, [](const Tensors& in) { return Tensors{in[0].softmax(1, at::kFloat)}; });
    check_same({x.to(type)}, [](const Tensors& in) { return Tensors{in[0].log_softmax(1, at::kFloat)}; });
    check_same(
        {x.to(type)}, [](const Tensors& in) { return Tensors{in[0].softmax(1)}; }, 1e-2);
  }
  // CUDA keeps what it normalizes by in float32.
  const Tensor half = x.to(at::kHalf).to(kGpu);
  CHECK(std::get<1>(at::native_layer_norm(half, {8}, {}, {}, 1e-5)).scalar_type() == at::kFloat);
}

// The real kernels wait there: for sizes that follow from a mask, for limits that are checked.
TEST_CASE("operations whose host code reads what is computed inside them give the CPU's results", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1, 2));
  const Tensor x = fill_with_steps({5, 8}), many = at::arange(300).remainder(7).to(at::kFloat);
  check_same({x}, [](const Tensors& in) { return Tensors{in[0].index({in[0] > 0})}; });
  check_same({x}, [](const Tensors& in) {
    const Tensor mask = in[0] > 0, count = mask.sum();
    return Tensors{in[0].index_put({mask}, at::arange(count.item<int64_t>(), in[0].options()).detach())};
  });
  check_same({at::arange(10).to(at::kFloat), x, at::arange(10)}, [](const Tensors& in) {
    return Tensors{at::searchsorted(in[0].detach(), in[1].detach(), false, false, {}, in[2])};
  });
  check_same({x, many}, [](const Tensors& in) {
    return Tensors{at::isin(in[0].detach(), in[1].detach()), in[1].detach().histc(4)};
  });
  check_same({many}, [](const Tensors& in) { return Tensors{std::get<0>(in[0].reshape({2, 150}).detach().mode())}; });
  check_same({many, at::tensor({100, 200}, at::kLong)}, [](const Tensors& in) {
    return Tensors{at::segment_reduce(in[0], "sum", in[1], {}, {}, 0, /*unsafe=*/false)};
  });
  const Tensor zeros = at::zeros({50}, kGpu);
  CHECK_FALSE(at::equal(at::normal(zeros, zeros + 1).cpu(), at::normal(zeros, zeros + 1).cpu()));
}

TEST_CASE("recurrent layers under autocast compute in float16, and their gradients are the weights'", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1, 2));
  const at::ScalarType type = GENERATE(at::kHalf, at::kBFloat16);
  const auto run = [&](at::Device device) {
    Tensors weights;
    for (const Tensor& w :
         {fill_with_steps({20, 4}) / 4, fill_with_steps({20, 5}) / 4, fill_with_steps({20}), fill_with_steps({20})})
      weights.push_back(w.to(device).requires_grad_(true));
    const Tensor x = fill_with_steps({3, 2, 4}).to(device), zeros = at::zeros({1, 2, 5}, device);
    at::autocast::set_autocast_enabled(at::kCUDA, device.is_cuda());
    at::autocast::set_autocast_dtype(at::kCUDA, type);
    const Tensor y = std::get<0>(at::lstm(x, {zeros, zeros}, weights, true, 1, 0., true, false, false));
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    at::autocast::clear_cache();
    if (device.is_cuda()) CHECK(y.scalar_type() == at::kHalf);  // LibTorch's, whatever autocast's dtype is
    Tensors results{y};
    for (const Tensor& gradient : torch::autograd::grad({y.to(at::kDouble).square().sum()}, weights)) {
      CHECK(gradient.scalar_type() == at::kFloat);
      results.push_back(gradient);
    }
    for (Tensor& result : results) result = result.detach().cpu().to(at::kDouble);
    return results;
  };
  const Tensors expected = run(at::kCPU), got = run(kGpu);
  for (size_t i = 0; i < expected.size(); ++i) CHECK(at::allclose(expected[i], got[i], 1e-2, 1e-2));
}

TEST_CASE("recurrent layers, cuDNN's and the cells', give the CPU's results", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1, 2));
  const bool cudnn = GENERATE(true, false);
  at::globalContext().setUserEnabledCuDNN(cudnn);
  const Tensor x = fill_with_steps({3, 2, 4}), h = fill_with_steps({2, 2, 5}), c = fill_with_steps({2, 2, 5});
  const auto weights = [](int64_t gates) {
    return Tensors{fill_with_steps({gates * 5, 4}) / 4, fill_with_steps({gates * 5, 5}) / 4,
                   fill_with_steps({gates * 5}),        fill_with_steps({gates * 5}),
                   fill_with_steps({gates * 5, 5}) / 4, fill_with_steps({gates * 5, 5}) / 4,
                   fill_with_steps({gates * 5}),        fill_with_steps({gates * 5})};
  };
  Tensors lstm{x, h, c}, gru{x, h};
  for (const Tensor& w : weights(4)) lstm.push_back(w);
  for (const Tensor& w : weights(3)) gru.push_back(w);
  check_same(lstm, [](const Tensors& in) {
    const Tensors states{in[1], in[2]}, parameters(in.begin() + 3, in.end());
    const auto [y, hy, cy] = at::lstm(in[0], states, parameters, true, 2, 0., true, false, false);
    return Tensors{y, hy, cy};
  });
  check_same(gru, [](const Tensors& in) {
    const auto [y, hy] = at::gru(in[0], in[1], Tensors(in.begin() + 2, in.end()), true, 2, 0., true, false, false);
    return Tensors{y, hy};
  });
  at::globalContext().setUserEnabledCuDNN(true);
}

TEST_CASE("fused attention matches its definition, with a mask and with causality", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1, 2));
  const bool causal = GENERATE(true, false);
  const auto shape = [](const Tensor& value) { return value.reshape({2, 2, 6, 8}); };
  const Tensor q = shape(fill_with_steps({192})), k = shape(fill_with_steps({192}).flip(0)),
               v = shape(fill_with_steps({192}) * 0.5);
  check_same(
      {q, k, v},
      [&](const Tensors& in) { return Tensors{at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0., causal)}; },
      1e-4);
  // Half the bits: another kernel.
  check_same(
      {q.to(at::kBFloat16), k.to(at::kBFloat16), v.to(at::kBFloat16)},
      [&](const Tensors& in) { return Tensors{at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0., causal)}; },
      0.1);
  if (!causal)
    check_same(
        {q, k, v, fill_with_steps({2, 2, 6, 8}).narrow(3, 0, 6).contiguous()},
        [&](const Tensors& in) {
          return Tensors{at::scaled_dot_product_attention(in[0], in[1], in[2], in[3].detach())};
        },
        1e-4);
}

TEST_CASE("the parts of batch norm over several ranks give batch norm over all of them", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1));
  const Tensor x = fill_with_steps({6, 3, 4}), dy = fill_with_steps({6, 3, 4}).flip(0),
               weight = fill_with_steps({3}) + 2, bias = fill_with_steps({3});
  const Tensor leaf = x.clone().requires_grad_(true), w = weight.clone().requires_grad_(true),
               b = bias.clone().requires_grad_(true);
  Tensor mean = at::zeros({3}), variance = at::ones({3});
  const Tensor y = at::batch_norm(leaf, w, b, mean, variance, true, 0.1, 1e-5, false);
  const auto expected = torch::autograd::grad({y}, {leaf, w, b}, {dy});
  const Tensor gpu = x.to(kGpu), gpu_dy = dy.to(kGpu), gw = weight.to(kGpu), gb = bias.to(kGpu);
  Tensor gpu_mean = at::zeros({3}, kGpu), gpu_variance = at::ones({3}, kGpu);
  Tensors means, invstds;
  for (const Tensor& part : {gpu.narrow(0, 0, 2), gpu.narrow(0, 2, 4)}) {
    const auto [m, i] = at::batch_norm_stats(part.contiguous(), 1e-5);
    means.push_back(m);
    invstds.push_back(i);
  }
  const Tensor counts = at::tensor({8.F, 16.F}, kGpu);
  const auto [all_mean, all_invstd] = at::batch_norm_gather_stats_with_counts(
      gpu, at::stack(means), at::stack(invstds), gpu_mean, gpu_variance, 0.1, 1e-5, counts);
  CHECK(at::allclose(at::batch_norm_elemt(gpu, gw, gb, all_mean, all_invstd, 1e-5).cpu(), y.detach(), 1e-4, 1e-5));
  CHECK(at::allclose(gpu_mean.cpu(), mean, 1e-4, 1e-5));
  CHECK(at::allclose(gpu_variance.cpu(), variance, 1e-4, 1e-5));
  const auto [sum, sum_x, dw, db] =
      at::batch_norm_backward_reduce(gpu_dy, gpu, all_mean, all_invstd, gw, true, true, true);
  CHECK(at::allclose(dw.cpu(), expected[1], 1e-4, 1e-4));
  CHECK(at::allclose(db.cpu(), expected[2], 1e-4, 1e-4));
  const Tensor dx = at::batch_norm_backward_elemt(gpu_dy, gpu, all_mean, all_invstd, gw, sum, sum_x,
                                                  at::tensor({8, 16}, at::TensorOptions(kGpu).dtype(at::kInt)));
  CHECK(at::allclose(dx.cpu(), expected[0], 1e-4, 1e-5));
}

TEST_CASE("random numbers follow the generator's state, and fill what they should", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1));
  at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(0);
  generator.set_current_seed(5);
  const auto dropout = [] { return std::get<1>(at::native_dropout(at::ones({200}, kGpu), 0.5, true)).cpu(); };
  const Tensor first = dropout(), state = generator.get_state(), second = dropout();
  generator.set_state(state);
  CHECK_FALSE(at::equal(first, second));
  CHECK(at::equal(dropout(), second));
  const at::TensorOptions doubles = at::TensorOptions(kGpu).dtype(at::kDouble);
  const auto mean = [](const Tensor& value) { return value.to(at::kDouble).mean().item<double>(); };
  const Tensor normal = at::randn({20000}, doubles), uniform = at::rand({20000}, doubles),
               integers = at::randint(3, 10, {20000}, kGpu);
  CHECK(std::abs(mean(normal)) < 0.03);
  CHECK(std::abs(mean(normal.square()) - 1) < 0.05);
  CHECK(std::abs(mean(uniform) - 0.5) < 0.01);
  CHECK(uniform.min().item<double>() >= 0);
  CHECK(uniform.max().item<double>() < 1);
  CHECK(integers.min().item<int64_t>() == 3);
  CHECK(integers.max().item<int64_t>() == 9);
  CHECK(std::abs(mean(at::bernoulli(at::full({20000}, 0.3, kGpu))) - 0.3) < 0.02);
  CHECK(at::equal(std::get<0>(at::randperm(50, kGpu).sort()).cpu(), at::arange(50)));
}

TEST_CASE("a captured graph computes again at each launch, and draws other numbers in each", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1, 2));
  const Tensor input = at::ones({64}, kGpu);
  Tensor output, mask;
  at::cuda::CUDAGraph graph;
  {
    const c10::cuda::CUDAStreamGuard side(c10::cuda::getStreamFromPool());
    c10::cuda::device_synchronize();
    graph.capture_begin();
    output = input * 3 + 1;
    mask = std::get<1>(at::native_dropout(input, 0.5, true));
    graph.capture_end();
  }
  Tensors masks;
  for (const double value : {2., 5., 7.}) {
    input.fill_(value);
    graph.replay();
    CHECK(at::equal(output.cpu(), at::full({64}, 3 * value + 1, at::kFloat)));
    masks.push_back(mask.clone());
  }
  CHECK_FALSE(at::equal(masks[0].cpu(), masks[1].cpu()));
  CHECK_FALSE(at::equal(masks[1].cpu(), masks[2].cpu()));
}

TEST_CASE("a wait, an event or a record_stream that is missing gives wrong numbers when work is late", "[gpu]") {
  const Schedule schedule(1);
  const auto side_sum = [](bool waits, bool records, bool side_first) {
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    const auto side = c10::cuda::getStreamFromPool();
    Tensor source = at::full({1 << 18}, 1.F, kGpu), sum;
    if (waits) {
      at::cuda::CUDAEvent event;
      event.record();
      event.block(side);
    }
    {
      const c10::cuda::CUDAStreamGuard on_side(side);
      sum = source.sum();
    }
    if (records) source.record_stream(side);
    source.reset();
    const Tensor next = at::full({1 << 18}, 2.F, kGpu);  // takes the block, unless it is held
    if (side_first)
      side.synchronize();
    else
      c10::cuda::getCurrentCUDAStream().synchronize();
    c10::cuda::device_synchronize();
    return sum.item<float>() / (1 << 18);
  };
  CHECK(side_sum(true, true, false) == 1);
  CHECK(side_sum(true, true, true) == 1);
  CHECK(side_sum(true, false, false) == 2);
  CHECK(side_sum(false, true, true) != 1);
}

TEST_CASE("an operation waits for work before it that waits for others, in every schedule", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1, 2));
  // Convolutions are computed only by their twin, products together with the kernel's host code.
  Tensor image = at::zeros({1, 2, 4, 4}, kGpu);
  const Tensor weight = at::ones({3, 2, 3, 3}, kGpu), matrix = at::ones({4, 4}, kGpu);
  c10::cuda::device_synchronize();
  simulated_cuda_enqueue(
      c10::cuda::getCurrentCUDAStream().stream(),
      [](void* memory) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        std::fill_n(static_cast<float*>(memory), 32, 2.F);
      },
      image.mutable_data_ptr(), nullptr, "as another rank would", SIMULATED_CUDA_MAY_WAIT);
  const Tensor y = at::conv2d(image, weight), z = at::mm(image.view({8, 4}), matrix);
  CHECK(at::equal(y.cpu(), at::full({1, 3, 2, 2}, 36.F)));
  CHECK(at::equal(z.cpu(), at::full({8, 4}, 8.F)));
}

TEST_CASE("an operation on a list of several devices computes each tensor on the stream of its device", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1, 2, 3));
  const auto several = [](at::ScalarType type) {
    Tensors list;
    for (const int index : {0, 1, 0, 1}) {
      const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(index));
      list.push_back(at::full({64}, 1.5, at::device(device).dtype(type)));
    }
    return list;
  };
  const auto first_of = [](const Tensor& value) { return value[0].item<float>(); };
  const Tensors from = several(at::kBFloat16), to = several(at::kFloat);
  at::_foreach_zero_(to);
  at::_foreach_copy_(to, from);
  at::_foreach_mul_(to, std::vector<at::Scalar>{1, 2, 3, 4});
  at::_foreach_add_(to, 0.5);
  const Tensors products = at::_foreach_mul(to, 2);
  // Later work on each device must not reach what the operations before it read.
  for (const Tensor& value : from) value.fill_(100);
  for (const Tensor& value : to) value.fill_(100);
  for (size_t i = 0; i < products.size(); ++i) {
    CAPTURE(i);
    CHECK(products[i].device() == to[i].device());
    CHECK(first_of(products[i]) == 2 * (1.5F * static_cast<float>(i + 1) + 0.5F));
  }
  // Between two lists that each lie on one device.
  const Tensors left{at::full({64}, 1.F, kGpu), at::full({64}, 2.F, kGpu)}, right{to[1], to[3]};
  at::_foreach_copy_(right, left);
  for (const Tensor& value : left) value.fill_(100);
  CHECK(first_of(right[0]) == 1);
  CHECK(first_of(right[1]) == 2);
}

TEST_CASE("an operation on a list of the host and several devices computes all of it", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1, 2, 3));
  Tensors mixed;
  for (const at::Device device : {at::Device(at::kCPU), kGpu, at::Device(at::kCUDA, 1)})
    mixed.push_back(at::full({64}, 1.F, at::device(device)));
  at::_foreach_add_(mixed, std::vector<at::Scalar>{1, 2, 3});
  Tensors on_host;
  for (size_t i = 0; i < mixed.size(); ++i) on_host.push_back(at::zeros({64}));
  at::_foreach_copy_(on_host, mixed);
  for (size_t i = 0; i < mixed.size(); ++i) {
    CAPTURE(i);
    CHECK(at::equal(on_host[i], at::full({64}, static_cast<float>(i) + 2)));
  }
}

TEST_CASE("operations without a twin are refused, not computed wrongly", "[gpu]") {
  const Tensor a = at::ones({16, 16}, at::TensorOptions(kGpu).dtype(at::kHalf));
  CHECK_THROWS_AS(at::mm(a, a, at::kFloat), c10::NotImplementedError);
}

namespace {

struct Layout {
  const char* name;
  std::function<Tensor(at::Device)> compute;  // a dense result
  bool right;                                 // else refused
};

Tensor coo(at::Device device, bool coalesced = false) {
  const Tensor indices = at::tensor({0, 2, 2, 4, 1, 1, 3, 0}, at::kLong).reshape({2, 4}).to(device);
  const Tensor sparse = at::sparse_coo_tensor(indices, fill_with_steps({4}).to(device), {5, 4});
  return coalesced ? sparse.coalesce() : sparse;
}
Tensor rows(at::Device device) {
  return at::sparse_coo_tensor(at::tensor({1, 3, 1}, at::kLong).reshape({1, 3}).to(device),
                               fill_with_steps({3, 4}).to(device), {5, 4});
}
Tensor dense(at::Device device) { return fill_with_steps({5, 4}).to(device); }
Tensor csr(at::Device device) {
  return at::sparse_csr_tensor(at::tensor({0, 1, 2, 2, 4, 4}, at::kLong).to(device),
                               at::tensor({0, 3, 1, 2}, at::kLong).to(device), fill_with_steps({4}).to(device), {5, 4},
                               at::TensorOptions(device).dtype(at::kFloat));
}
Tensor nested(at::Device device) {
  return at::_nested_tensor_from_tensor_list(
      Tensors{fill_with_steps({2, 4}).to(device), fill_with_steps({3, 4}).to(device)});
}
Tensor numbers(const Tensor& value) {
  Tensors parts;
  for (const Tensor& part : value.unbind()) parts.push_back(part.reshape({-1}));
  return at::cat(parts);
}
Tensor quantized(at::Device device) { return at::quantize_per_tensor(dense(at::kCPU), 0.1, 3, at::kQInt8).to(device); }

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"coo to_dense", [](at::Device d) { return coo(d).to_dense(); }, true},
      {"coo coalesce", [](at::Device d) { return coo(d).coalesce().values(); }, true},
      {"coo coalesced to_dense", [](at::Device d) { return coo(d, true).to_dense(); }, true},
      {"dense add coo", [](at::Device d) { return dense(d).add_(coo(d), -0.5); }, true},
      {"dense add coalesced", [](at::Device d) { return dense(d).add_(coo(d, true), -0.5); }, true},
      {"dense add rows", [](at::Device d) { return dense(d).add_(rows(d), -0.5); }, true},
      {"rows coalesce", [](at::Device d) { return rows(d).coalesce().to_dense(); }, true},
      {"coo add coo", [](at::Device d) { return (coo(d) + coo(d)).to_dense(); }, true},
      {"coo mul number", [](at::Device d) { return (coo(d) * 3).to_dense(); }, true},
      {"coo mul_", [](at::Device d) { return coo(d).mul_(3).to_dense(); }, true},
      {"coo mul coo", [](at::Device d) { return (coo(d, true) * coo(d, true)).to_dense(); }, false},
      {"coo mul dense", [](at::Device d) { return (coo(d, true) * dense(d)).to_dense(); }, true},
      {"coo mm dense", [](at::Device d) { return coo(d).mm(dense(d).t().contiguous()); }, false},
      {"coo sum", [](at::Device d) { return coo(d).sum(); }, true},
      {"coo sum of a dim", [](at::Device d) { return at::_sparse_sum(coo(d), at::IntArrayRef{0}).to_dense(); }, true},
      {"coo norm", [](at::Device d) { return coo(d, true).norm(); }, true},
      {"coo relu", [](at::Device d) { return coo(d, true).relu().to_dense(); }, true},
      {"coo sqrt", [](at::Device d) { return coo(d, true).abs().sqrt().to_dense(); }, true},
      {"coo clone", [](at::Device d) { return coo(d).clone().to_dense(); }, true},
      {"coo to the CPU", [](at::Device d) { return coo(d).cpu().to_dense(); }, true},
      {"coo zero_", [](at::Device d) { return coo(d).zero_().to_dense(); }, true},
      {"coo cat",
       [](at::Device d) {
         return at::cat({coo(d), coo(d)}).to_dense();
       },
       true},
      {"coo index_select",
       [](at::Device d) {
         return coo(d).index_select(0, at::tensor({2, 0}, at::kLong).to(d)).to_dense();
       },
       false},
      {"coo softmax", [](at::Device d) { return at::_sparse_softmax(coo(d, true), 1).to_dense(); }, false},
      {"sparse_mask", [](at::Device d) { return dense(d).sparse_mask(coo(d, true)).to_dense(); }, true},
      {"to_sparse", [](at::Device d) { return dense(d).relu().to_sparse().to_dense(); }, true},
      {"embedding with sparse gradients",
       [](at::Device d) {
         Tensor weight = dense(d).requires_grad_(true);
         at::embedding(weight, at::tensor({1, 3, 1}, at::kLong).to(d), -1, false, true).square().sum().backward();
         return weight.detach().clone().add_(weight.grad(), -0.1);
       },
       true},
      {"csr to_dense", [](at::Device d) { return csr(d).to_dense(); }, true},
      {"csr mm dense", [](at::Device d) { return csr(d).mm(dense(d).t().contiguous()); }, false},
      {"csr mul number", [](at::Device d) { return (csr(d) * 2).to_dense(); }, true},
      {"csr add csr", [](at::Device d) { return (csr(d) + csr(d)).to_dense(); }, false},
      {"dense add csr", [](at::Device d) { return dense(d) + csr(d); }, false},
      {"csr to coo", [](at::Device d) { return csr(d).to_sparse().to_dense(); }, true},
      {"to_sparse_csr", [](at::Device d) { return dense(d).to_sparse_csr().to_dense(); }, true},
      {"nested unbind", [](at::Device d) { return numbers(nested(d)); }, true},
      {"nested to padded", [](at::Device d) { return at::nested_to_padded_tensor(nested(d), 0); }, false},
      {"nested from padded",
       [](at::Device d) {
         return numbers(at::_nested_from_padded(dense(d).reshape({2, 2, 5}).contiguous(),
                                                at::tensor({2, 3, 1, 5}, at::kLong).reshape({2, 2})));
       },
       false},
      {"nested add", [](at::Device d) { return numbers(nested(d) + nested(d)); }, true},
      {"nested relu", [](at::Device d) { return numbers(nested(d).relu()); }, true},
      {"nested mul number", [](at::Device d) { return numbers(nested(d) * 2); }, true},
      {"nested softmax", [](at::Device d) { return numbers(nested(d).softmax(-1)); }, true},
      {"nested matmul", [](at::Device d) { return numbers(nested(d).matmul(nested(d).transpose(1, 2))); }, false},
      {"nested linear",
       [](at::Device d) {
         return numbers(at::linear(nested(d), fill_with_steps({3, 4}).to(d)));
       },
       true},
      {"nested add dense",
       [](at::Device d) {
         return numbers(at::linear(nested(d), fill_with_steps({3, 4}).to(d), fill_with_steps({3}).to(d)));
       },
       true},
      {"nested layer norm",
       [](at::Device d) {
         return numbers(at::layer_norm(nested(d), {4}, fill_with_steps({4}).to(d), fill_with_steps({4}).to(d)));
       },
       false},
      {"quantize", [](at::Device d) { return at::quantize_per_tensor(dense(d), 0.1, 3, at::kQInt8).dequantize(); },
       false},
      {"dequantize", [](at::Device d) { return quantized(d).dequantize(); }, false},
      {"quantized integers", [](at::Device d) { return quantized(d).int_repr(); }, false},
      {"quantized relu", [](at::Device d) { return quantized(d).relu().dequantize(); }, false},
      {"quantize per channel",
       [](at::Device d) {
         return at::quantize_per_channel(dense(d), at::full({4}, 0.1, at::kDouble).to(d),
                                         at::zeros({4}, at::kLong).to(d), 1, at::kQInt8)
             .dequantize();
       },
       false},
      {"fake quantize", [](at::Device d) { return at::fake_quantize_per_tensor_affine(dense(d), 0.1, 3, -128, 127); },
       true},
      {"fake quantize per channel",
       [](at::Device d) {
         return at::fake_quantize_per_channel_affine(dense(d), at::full({4}, 0.1, at::kFloat).to(d),
                                                     at::zeros({4}, at::kInt).to(d), 1, -128, 127);
       },
       true},
  };
  return all;
}

}  // namespace

TEST_CASE("tensors of another layout are computed correctly or refused, never silently wrong", "[gpu]") {
  const Schedule schedule(GENERATE(0, 1, 2));
  for (const Layout& each : layouts()) {
    CAPTURE(each.name);
    const Tensor expected = each.compute(at::kCPU).to(at::kDouble);
    std::string refused;
    Tensor got;
    try {
      got = each.compute(kGpu).cpu().to(at::kDouble);
    } catch (const c10::NotImplementedError& error) {
      refused = error.what_without_backtrace();
    }
    CAPTURE(refused);
    CHECK(got.defined() == each.right);
    if (got.defined())
      CHECK(at::allclose(got, expected, 1e-5, 1e-6));
    else
      CHECK(refused.find("simulated CUDA computes strided dense tensors only; aten::") != refused.npos);
    // What was refused leaves no error to the next operation.
    CHECK(at::full({2}, 3.F, kGpu).sum().item<float>() == 6);
  }
  try {
    coo(kGpu).index_select(0, at::tensor({2, 0}, at::kLong).to(kGpu));
    FAIL("not refused");
  } catch (const c10::NotImplementedError& error) {
    const std::string text = error.what_without_backtrace();
    CAPTURE(text);
    CHECK(text.find("aten::index_select of a tensor with the layout Sparse") != text.npos);
  }
}

TEST_CASE("a kernel outside LibTorch's operations, which computes nothing, is reported once", "[gpu]") {
  SimulatedCudaCounts before{}, after{};
  const int kernel = 0;
  simulated_cuda_counts(&before);
  for (int i = 0; i < 2; ++i)
    CHECK(cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, c10::cuda::getCurrentCUDAStream()) == cudaSuccess);
  simulated_cuda_counts(&after);
  CHECK(after.lints == before.lints + 1);
  CHECK(after.launches == before.launches + 2);
}

TEST_CASE("steps without reads of the host wait for nothing", "[gpu]") {
  const Tensor w = at::ones({8, 4}, kGpu).requires_grad_(true), x = at::ones({16, 8}, kGpu);
  at::mm(x, w).relu().sum().backward();
  c10::cuda::device_synchronize();
  simulated_cuda_reset_counts();
  const Tensor loss = at::mm(x, w).relu().sum();
  loss.backward();
  CHECK(simulated_cuda_host_waits() == 0);
  CHECK(loss.item<float>() == 16 * 4 * 8);
  CHECK(simulated_cuda_host_waits() == 1);
  SimulatedCudaCounts counts{};
  simulated_cuda_counts(&counts);
  CHECK(counts.launches > 4);
  CHECK(counts.library_launches == 2);
}

// By a separate process (CMakeLists.txt): the device is lost with it.
TEST_CASE("a kernel's assertion", "[.setting]") {
  const Tensor rows = at::ones({3, 2}, kGpu);
  CHECK_THROWS(at::index_select(rows, 0, at::full({2}, 7, at::TensorOptions(kGpu).dtype(at::kLong))).cpu());
}

// By SIMULATED_CUDA_OPERATORS=0 (CMakeLists.txt).
TEST_CASE("without operators there are launches and no numbers", "[.setting]") {
  simulated_cuda_reset_counts();
  const Tensor filled = at::full({1000}, 3.F, kGpu);
  SimulatedCudaCounts counts{};
  simulated_cuda_counts(&counts);
  CHECK(counts.launches == 1);
  CHECK(counts.errors == 0);
  CHECK(filled.cpu().isnan().all().item<bool>());  // as cudaMalloc gave it
}

}  // namespace operators_test
