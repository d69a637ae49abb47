// Products of float32 matrices on one CPU thread: LibTorch's kernels (MKL) against oneDNN, in turn. For each shape, the
// forward product of a linear layer and the two products of its backward; then batched products, a call that is too
// small for oneDNN, and a step (forward, backward, fused AdamW) of a block of a GPT. Prints the least CPU time of each,
// and writes it as JSON with `--report FILE`, for scripts/measure_matmul.py.
//
//   cmake --build build/release --target cpu_matmul && build/release/bin/cpu_matmul
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "cpp/bench.h"
#include "fulgur/core/device/cpu_matmul_rule.h"

using namespace fulgur;
using at::Tensor;
using fulgur::detail::CpuKind;
using fulgur::detail::MatmulShapes;
using fulgur::detail::OnednnMatmulScope;

namespace {

constexpr MatmulShapes kEveryShape{.least_work = 1, .least_size = 1};
const MatmulShapes& kUsual = fulgur::detail::matmul_rule(fulgur::detail::this_cpu()).shapes;
constexpr int kRounds = 9;

struct Times {
  double libtorch = 1e9, onednn = 1e9;  // seconds a call
};

// In turn, so that both see the same machine.
template <class Work>
Times compare(Work work, const MatmulShapes& shapes = kEveryShape) {
  Times best;
  for (int round = 0; round <= kRounds; ++round) {
    const double libtorch = bench::seconds_of(work);
    const OnednnMatmulScope scope(shapes);
    const double onednn = bench::seconds_of(work);
    if (round == 0) continue;  // kernels are made, memory is mapped
    best.libtorch = std::min(best.libtorch, libtorch);
    best.onednn = std::min(best.onednn, onednn);
  }
  return best;
}

nlohmann::json print(const char* what, std::array<int64_t, 4> shape, Times times) {
  const auto [batch, m, n, k] = shape;
  const double work = 2e-9 * static_cast<double>(batch * m * n * k);
  std::printf("%-10s %3ld x %5ld x %5ld x %5ld  %10.1f µs %5.0f GF  %10.1f µs %5.0f GF  %5.2f x%s\n", what, batch, m, n,
              k, times.libtorch * 1e6, work / times.libtorch, times.onednn * 1e6, work / times.onednn,
              times.libtorch / times.onednn, kUsual.take(batch, m, n, k) ? "  oneDNN's" : "");
  return {{"what", what},
          {"batch", batch},
          {"m", m},
          {"n", n},
          {"k", k},
          {"libtorch_s", times.libtorch},
          {"onednn_s", times.onednn},
          {"taken", kUsual.take(batch, m, n, k)}};
}

// A step of a block of a GPT: layer norm and causal attention, layer norm and feed-forward layers.
struct GptBlock {
  static constexpr int64_t kSequences = 4, kTokens = 128, kHeads = 6, kWidth = 384;
  torch::nn::Linear attention{kWidth, 3 * kWidth}, projection{kWidth, kWidth}, up{kWidth, 4 * kWidth},
      down{4 * kWidth, kWidth};
  Tensor x = at::randn({kSequences, kTokens, kWidth});
  std::vector<Tensor> parameters, first, second, most, steps;

  GptBlock() {
    for (const auto& layer : {attention, projection, up, down})
      for (const Tensor& parameter : layer->parameters()) {
        parameters.push_back(parameter);
        first.push_back(at::zeros_like(parameter));
        second.push_back(at::zeros_like(parameter));
        steps.push_back(at::ones({}));
      }
  }
  Tensor forward() {
    std::vector<Tensor> heads = attention->forward(at::layer_norm(x, {kWidth})).chunk(3, -1);
    for (Tensor& one : heads) one = one.view({kSequences, kTokens, kHeads, kWidth / kHeads}).transpose(1, 2);
    const Tensor mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0, /*is_causal=*/true);
    const Tensor y = x + projection->forward(mixed.transpose(1, 2).reshape(x.sizes()));
    return y + down->forward(at::gelu(up->forward(at::layer_norm(y, {kWidth}))));
  }
  void step() {
    forward().square().mean().backward();
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : parameters) gradients.push_back(parameter.grad());
    const at::NoGradGuard no_grad;
    at::_fused_adamw_(parameters, gradients, first, second, most, steps, 1e-4, 0.9, 0.999, 0.01, 1e-8, false, false);
    for (Tensor& parameter : parameters) parameter.mutable_grad().reset();
  }
};

const char* name_of(CpuKind::Vendor vendor) {
  return vendor == CpuKind::Vendor::amd ? "amd" : vendor == CpuKind::Vendor::intel ? "intel" : "other";
}

void measure(const std::string& report) {
  if (const std::string why = why_no_onednn_matmul(); !why.empty()) throw std::runtime_error(why);
  const CpuKind cpu = fulgur::detail::this_cpu();
  std::printf("%s, family %d, AVX-512: %s; cpu_matmul: auto is %s\n", name_of(cpu.vendor), cpu.family,
              cpu.avx512 ? "yes" : "no", std::string(enum_text(fulgur::detail::matmul_rule(cpu).faster)).c_str());
  std::printf("           batch x     m x     n x     k        LibTorch                oneDNN             gain\n");
  auto rows = nlohmann::json::array();
  // Samples or tokens, inputs and outputs of layers.
  constexpr int64_t kLayers[][3] = {
      {8, 32, 16},      {16, 64, 64},     {64, 64, 64},     {64, 128, 128},   {128, 128, 128},   {64, 256, 256},
      {128, 256, 256},  {64, 784, 128},   {16, 1024, 1024}, {32, 512, 512},   {4, 512, 512},     {16, 4096, 16},
      {4096, 64, 8},    {2048, 64, 16},   {256, 512, 512},  {1024, 384, 384}, {2048, 384, 1536}, {2048, 1536, 384},
      {32, 1024, 1024}, {64, 1024, 1024}, {64, 384, 1536},  {128, 512, 512},  {128, 1024, 1024}, {256, 256, 256},
      {128, 3136, 128}, {768, 128, 128},  {768, 128, 512},  {512, 128, 512},  {128, 256, 1024},  {256, 256, 1024},
      {8, 4096, 4096}};
  {
    const at::NoGradGuard no_grad;
    for (const auto& [m, k, n] : kLayers) {
      const Tensor x = at::randn({m, k}), w = at::randn({n, k}), g = at::randn({m, n});
      Tensor y = at::empty({m, n}), dw = at::empty({n, k}), dx = at::empty({m, k});
      rows.push_back(print("forward", {1, m, n, k}, compare([&] { at::mm_out(y, x, w.t()); })));
      rows.push_back(print("weight", {1, n, k, m}, compare([&] { at::mm_out(dw, g.t(), x); })));
      rows.push_back(print("input", {1, m, k, n}, compare([&] { at::mm_out(dx, g, w); })));
    }
    constexpr int64_t kBatches[][4] = {
        {8, 16, 16, 16}, {32, 64, 32, 64}, {64, 64, 64, 64}, {32, 128, 128, 32}, {32, 256, 256, 64}};
    for (const auto& [batch, m, n, k] : kBatches) {
      const Tensor a = at::randn({batch, m, k}), b = at::randn({batch, n, k});
      Tensor y = at::empty({batch, m, n});
      rows.push_back(print("batched", {batch, m, n, k}, compare([&] { at::bmm_out(y, a, b.transpose(1, 2)); })));
    }
  }
  const Tensor small = at::randn({4, 4});
  Tensor product = at::empty({4, 4});
  const Times call = compare([&] { at::mm_out(product, small, small); }, kUsual);
  std::printf("a product of 4 x 4: %.0f ns, with oneDNN for large ones %.0f ns\n", call.libtorch * 1e9,
              call.onednn * 1e9);
  GptBlock gpt;
  const Times block = compare([&] { gpt.step(); }, kUsual);
  std::printf("step of a block of a GPT, width 384, 4 x 128 tokens: %.1f ms, with oneDNN %.1f ms, %.2f x\n",
              block.libtorch * 1e3, block.onednn * 1e3, block.libtorch / block.onednn);
  if (report.empty()) return;
  std::ofstream(report) << nlohmann::json({{"vendor", name_of(cpu.vendor)},
                                           {"avx512", cpu.avx512},
                                           {"family", cpu.family},
                                           {"least_work", kUsual.least_work},
                                           {"least_size", kUsual.least_size},
                                           {"rows", rows},
                                           {"small_call_s", {call.libtorch, call.onednn}},
                                           {"block_s", {block.libtorch, block.onednn}}})
                               .dump()
                        << '\n';
}

}  // namespace

int main(int count, char** values) {
  try {
    bench::prepare();
    measure(count == 3 && std::string(values[1]) == "--report" ? values[2] : "");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
