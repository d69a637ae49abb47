// Products of float32 matrices by oneDNN: the values, what keeps LibTorch's kernels, and where the choice applies.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <memory>
#include <random>
#include <thread>

#include "fulgur/core/device/autocast.h"
#include "fulgur/core/device/cpu_matmul.h"
#include "fulgur/core/device/cpu_matmul_rule.h"
#include "fulgur/core/text/errors.h"

namespace cpu_matmul_test {

using namespace fulgur;
using at::Tensor;
using fulgur::detail::CpuKind;
using fulgur::detail::matmul_rule;
using fulgur::detail::MatmulShapes;
using fulgur::detail::OnednnMatmulScope;
using fulgur::detail::this_cpu;

namespace {

constexpr MatmulShapes kEveryShape{.least_work = 1, .least_size = 1};

void need_onednn() {
  if (const std::string why = why_no_onednn_matmul(); !why.empty()) SKIP(why);
}

// A product whose sums are long enough that the two libraries round them differently.
struct LongSums {
  Tensor a = at::randn({128, 4099}), b = at::randn({4099, 128});
  Tensor by_libtorch = at::cpu::mm(a, b);
  bool is_by_libtorch() const { return at::mm(a, b).equal(by_libtorch); }
};

// Relative to the largest value: single sums may cancel.
bool is_close(const Tensor& value, const Tensor& expected) {
  if (value.sizes() != expected.sizes() || value.scalar_type() != expected.scalar_type()) return false;
  if (expected.numel() == 0) return true;
  return (value - expected).abs().max().item().toDouble() <= 1e-5 * (1 + expected.abs().max().item().toDouble());
}

class RandomMatrices {
 public:
  explicit RandomMatrices(unsigned seed) : random_(seed) { at::manual_seed(seed); }
  int64_t below(int64_t limit) { return std::uniform_int_distribution<int64_t>(0, limit - 1)(random_); }
  int64_t size() { return below(4) == 0 ? 1 + below(8) : 1 + below(150); }

  // Of these sizes, in one of the layouts that operands have.
  Tensor matrix(std::vector<int64_t> sizes) {
    const size_t rows = sizes.size() - 2;
    const int64_t layout = below(5);
    if (layout == 0 || layout == 1) return at::randn(sizes);
    if (layout == 2) {
      std::swap(sizes[rows], sizes[rows + 1]);
      return at::randn(sizes).transpose(-1, -2);
    }
    if (layout == 3) {  // columns of a wider matrix
      sizes[rows + 1] += 3;
      return at::randn(sizes).narrow(-1, 1, sizes[rows + 1] - 3);
    }
    sizes[rows] *= 2;  // every other row
    return at::randn(sizes).slice(-2, 0, sizes[rows], 2);
  }

  // What can be added to a product of m × n.
  Tensor summand(std::vector<int64_t> sizes) {
    switch (below(4)) {
      case 0:
        return at::randn({sizes.back()});
      case 1:
        return at::randn({});
      case 2:
        return at::randn({sizes[sizes.size() - 2], 1});
      default:
        return matrix(sizes);
    }
  }

 private:
  std::mt19937 random_;
};

}  // namespace

TEST_CASE("cpu_matmul: products of random shapes, layouts and factors have the values of LibTorch's kernels") {
  need_onednn();
  const at::NoGradGuard no_grad;
  const OnednnMatmulScope scope(kEveryShape);
  RandomMatrices random(7);
  for (int i = 0; i < 150; ++i) {
    const int64_t m = random.size(), n = random.size(), k = random.size(), batch = 1 + random.below(5);
    CAPTURE(i, m, n, k, batch);
    const double beta = random.below(3) == 0 ? 0.25 : static_cast<double>(random.below(2));
    const double alpha = random.below(3) == 0 ? -1.5 : static_cast<double>(random.below(4) != 0);
    CAPTURE(alpha, beta);
    {
      const Tensor a = random.matrix({m, k}), b = random.matrix({k, n}), c = random.summand({m, n});
      CHECK(is_close(at::mm(a, b), at::cpu::mm(a, b)));
      CHECK(is_close(at::addmm(c, a, b, beta, alpha), at::cpu::addmm(c, a, b, beta, alpha)));
      Tensor out = random.matrix({m, n});
      at::mm_out(out, a, b);
      CHECK(is_close(out, at::cpu::mm(a, b)));
      at::addmm_out(out, c, a, b, beta, alpha);
      const Tensor expected = at::cpu::addmm(c, a, b, beta, alpha);
      CHECK(is_close(out, expected));
      Tensor sum = c.expand({m, n}).clone();
      sum.addmm_(a, b, beta, alpha);
      CHECK(is_close(sum, expected));
      at::addmm_out(sum, sum.copy_(c), a, b, beta, alpha);
      CHECK(is_close(sum, expected));
    }
    const Tensor a = random.matrix({batch, m, k}), b = random.matrix({batch, k, n}), c = random.summand({batch, m, n});
    CHECK(is_close(at::bmm(a, b), at::cpu::bmm(a, b)));
    Tensor out = at::empty({batch, m, n});
    at::bmm_out(out, a, b);
    CHECK(is_close(out, at::cpu::bmm(a, b)));
    CHECK(is_close(at::baddbmm(c, a, b, beta, alpha), at::cpu::baddbmm(c, a, b, beta, alpha)));
  }
}

TEST_CASE("cpu_matmul: an output of another size is resized, and operands that do not fit are LibTorch's errors") {
  need_onednn();
  const OnednnMatmulScope scope(kEveryShape);
  const Tensor a = at::randn({20, 20}), b = at::randn({20, 20});
  Tensor out = at::empty({0});
  at::mm_out(out, a, b);
  CHECK(is_close(out, at::cpu::mm(a, b)));
  Tensor part = at::zeros({20, 50}).narrow(1, 5, 20);
  at::mm_out(part, a, b);
  CHECK(is_close(part, at::cpu::mm(a, b)));
  CHECK_THROWS_AS(at::mm(a, at::randn({21, 20})), c10::Error);
  CHECK_THROWS_AS(at::addmm(at::randn({3}), a, b), c10::Error);
  CHECK_THROWS_AS(at::mm(a, b.to(at::kDouble)), c10::Error);
  // With a factor of 0, what is in the summand does not matter.
  const Tensor nan = at::full({20, 20}, NAN);
  CHECK(is_close(at::addmm(nan, a, b, 0), at::cpu::mm(a, b)));
}

TEST_CASE("cpu_matmul: empty matrices, vectors and other types have LibTorch's results to the bit") {
  need_onednn();
  const auto results = [] {
    at::manual_seed(3);
    std::vector<Tensor> all;
    all.push_back(at::mm(at::randn({0, 4}), at::randn({4, 5})));
    all.push_back(at::mm(at::randn({3, 0}), at::randn({0, 5})));
    all.push_back(at::bmm(at::randn({0, 3, 4}), at::randn({0, 4, 5})));
    all.push_back(at::addmm(at::randn({5}), at::randn({3, 0}), at::randn({0, 5})));
    all.push_back(at::matmul(at::randn({300}), at::randn({300})));
    all.push_back(at::matmul(at::randn({30, 300}), at::randn({300})));
    for (const auto type : {at::kDouble, at::kComplexFloat, at::kBFloat16}) {
      const Tensor a = at::randn({64, 1000}).to(type), b = at::randn({1000, 64}).to(type);
      all.push_back(at::mm(a, b));
      all.push_back(at::addmm(at::ones({64}, a.options()), a, b));
    }
    all.push_back(at::mm(at::ones({4, 5}, at::kLong), at::ones({5, 6}, at::kLong)));
    return all;
  };
  const std::vector<Tensor> expected = results();
  const OnednnMatmulScope scope(kEveryShape);
  const std::vector<Tensor> inside = results();
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(inside[i].equal(expected[i]));
  }
  // LibTorch resolves the negative bit of a float32 tensor before.
  const Tensor imaginary = at::imag(at::randn({64, 64}, at::kComplexFloat).conj()), other = at::randn({64, 64});
  REQUIRE(imaginary.is_neg());
  CHECK(is_close(at::mm(imaginary, other), at::cpu::mm(imaginary.resolve_neg(), other)));
  const Tensor meta = at::mm(at::empty({3, 4}, at::kMeta), at::empty({4, 5}, at::kMeta));
  CHECK(meta.is_meta());
  CHECK(meta.sizes() == at::IntArrayRef({3, 5}));
}

TEST_CASE("cpu_matmul: a scope decides for all threads while it lives; the newest one decides") {
  need_onednn();
  const LongSums product;
  CHECK(product.is_by_libtorch());
  const auto in_other_thread = [&] {
    bool result = false;
    std::thread([&] { result = product.is_by_libtorch(); }).join();
    return result;
  };
  {
    const CpuMatmulScope outer(CpuMatmul::onednn);
    CHECK_FALSE(product.is_by_libtorch());
    CHECK_FALSE(in_other_thread());
    {
      const CpuMatmulScope inner(CpuMatmul::mkl);
      CHECK(product.is_by_libtorch());
      CHECK(in_other_thread());
      const CpuMatmulScope innermost(CpuMatmul::onednn);
      CHECK_FALSE(product.is_by_libtorch());
    }
    CHECK_FALSE(product.is_by_libtorch());
  }
  CHECK(product.is_by_libtorch());
  // Runs in several threads end in any order.
  auto first = std::make_unique<CpuMatmulScope>(CpuMatmul::onednn);
  auto second = std::make_unique<CpuMatmulScope>(CpuMatmul::mkl);
  first.reset();
  CHECK(product.is_by_libtorch());
  second.reset();
  CHECK(product.is_by_libtorch());
  first = std::make_unique<CpuMatmulScope>(CpuMatmul::mkl);
  second = std::make_unique<CpuMatmulScope>(CpuMatmul::onednn);
  first.reset();
  CHECK_FALSE(product.is_by_libtorch());
  second.reset();
  CHECK(product.is_by_libtorch());
}

TEST_CASE("cpu_matmul: small products keep LibTorch's kernels") {
  need_onednn();
  const CpuMatmulScope scope(CpuMatmul::onednn);
  const auto is_by_libtorch = [](int64_t m, int64_t k, int64_t n) {
    const Tensor a = at::randn({m, k}), b = at::randn({k, n});
    return at::mm(a, b).equal(at::cpu::mm(a, b));
  };
  CHECK(is_by_libtorch(16, 4000, 16));   // little work
  CHECK(is_by_libtorch(8, 4000, 1000));  // few rows
  CHECK_FALSE(is_by_libtorch(64, 4099, 64));
  CHECK(MatmulShapes().take(1, 64, 256, 256));
  CHECK(MatmulShapes().take(64, 64, 64, 32));
  CHECK_FALSE(MatmulShapes().take(1, 64, 64, 64));
  CHECK_FALSE(MatmulShapes().take(1, 4096, 4096, 8));
}

TEST_CASE("cpu_matmul: linear layers and batched products, with their gradients, are computed by oneDNN") {
  need_onednn();
  struct Result {
    Tensor y;
    std::vector<Tensor> gradients;
  };
  at::manual_seed(5);
  const Tensor x = at::randn({4, 100, 600}), w = at::randn({200, 600}) * 0.04, b = at::randn({200});
  const auto compute = [&] {
    const auto leaf = [](const Tensor& t) { return t.detach().clone().set_requires_grad(true); };
    const std::vector<Tensor> leaves{leaf(x), leaf(w), leaf(b)};
    const Tensor hidden = at::linear(leaves[0], leaves[1], leaves[2]);
    const Tensor y = at::matmul(hidden, hidden.transpose(1, 2));
    y.square().mean().backward();
    Result result{.y = y.detach(), .gradients = {}};
    for (const Tensor& one : leaves) result.gradients.push_back(one.grad());
    return result;
  };
  const at::Tensor product = at::cpu::mm(x.view({400, 600}), w.t());
  const Result expected = compute();
  const CpuMatmulScope scope(CpuMatmul::onednn);
  const Result inside = compute(), repeated = compute();
  CHECK(is_close(at::mm(x.view({400, 600}), w.t()), product));
  CHECK(is_close(inside.y, expected.y));
  CHECK_FALSE(inside.y.equal(expected.y));
  CHECK(repeated.y.equal(inside.y));
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    CAPTURE(i);
    CHECK((inside.gradients[i] - expected.gradients[i]).norm().item().toDouble() <=
          1e-5 * expected.gradients[i].norm().item().toDouble());
    CHECK_FALSE(inside.gradients[i].equal(expected.gradients[i]));
    CHECK(repeated.gradients[i].equal(inside.gradients[i]));
  }
}

TEST_CASE("cpu_matmul: repeated products have the same bits beside threads that multiply too") {
  need_onednn();
  const CpuMatmulScope scope(CpuMatmul::onednn);
  const Tensor a = at::randn({200, 500}), b = at::randn({500, 300}), c = at::randn({300});
  const Tensor first = at::addmm(c, a, b);
  std::atomic<bool> over = false;
  std::atomic<int> different = 0;
  const auto multiply = [&](int64_t rows) {
    const Tensor x = at::randn({rows, 400}), y = at::randn({400, 260});
    const Tensor expected = at::mm(x, y);
    while (!over)
      if (!at::mm(x, y).equal(expected)) ++different;
  };
  std::thread one([&] { multiply(64); }), two([&] { multiply(96); });
  for (int i = 0; i < 50; ++i) CHECK(at::addmm(c, a, b).equal(first));
  over = true;
  one.join();
  two.join();
  CHECK(different == 0);
}

TEST_CASE("cpu_matmul: inference mode, autocast and forward-mode gradients work as without it") {
  need_onednn();
  const CpuMatmulScope scope(CpuMatmul::onednn);
  const Tensor x = at::randn({256, 300}), w = at::randn({200, 300}).set_requires_grad(true);
  {
    const c10::InferenceMode inference;
    const Tensor y = at::linear(x, w);
    CHECK(y.is_inference());
    CHECK_FALSE(y.requires_grad());
    CHECK(is_close(y, at::cpu::mm(x, w.detach().t())));
  }
  {
    const Autocast half(at::kCPU, at::kBFloat16);
    CHECK(at::linear(x, w).scalar_type() == at::kBFloat16);
  }
  const Tensor y = at::linear(x, w);
  CHECK(y.requires_grad());
  CHECK_FALSE(y.is_inference());
  // In-place accumulation into a part of the graph.
  Tensor sum = at::zeros({256, 200});
  sum.addmm_(x, w.t());
  sum.sum().backward();
  CHECK(is_close(w.grad(), x.sum(0).expand({200, 300})));
}

TEST_CASE("cpu_matmul: auto follows the table of processors, and keeps MKL on those that it does not know") {
  using Vendor = CpuKind::Vendor;
  const auto rule_of = [](Vendor vendor, bool avx512, int family) {
    return matmul_rule({.vendor = vendor, .avx512 = avx512, .family = family});
  };
  CHECK(rule_of(Vendor::amd, true, 26).faster == CpuMatmul::onednn);
  CHECK(rule_of(Vendor::amd, true, 26).shapes.take(1, 64, 256, 256));
  CHECK(rule_of(Vendor::amd, true, 25).faster == CpuMatmul::onednn);
  CHECK_FALSE(rule_of(Vendor::amd, true, 25).shapes.take(1, 64, 256, 256));  // slower on Zen 4
  CHECK(rule_of(Vendor::amd, true, 25).shapes.take(1, 128, 512, 512));
  CHECK(rule_of(Vendor::amd, false, 23).faster == CpuMatmul::mkl);
  CHECK(rule_of(Vendor::intel, true, 6).faster == CpuMatmul::mkl);
  CHECK(rule_of(Vendor::other, true, 6).faster == CpuMatmul::mkl);
  CHECK(decide_cpu_matmul(CpuMatmul::mkl) == CpuMatmul::mkl);
  if (why_no_onednn_matmul().empty()) {
    CHECK(decide_cpu_matmul(CpuMatmul::automatic) == matmul_rule(this_cpu()).faster);
    CHECK(decide_cpu_matmul(CpuMatmul::onednn) == CpuMatmul::onednn);
  } else {
    CHECK(decide_cpu_matmul(CpuMatmul::automatic) == CpuMatmul::mkl);
  }
  at::globalContext().setUserEnabledMkldnn(false);
  CHECK(decide_cpu_matmul(CpuMatmul::automatic) == CpuMatmul::mkl);
  CHECK_THROWS_WITH(decide_cpu_matmul(CpuMatmul::onednn),
                    Catch::Matchers::ContainsSubstring("[trainer.cpu_matmul] onednn cannot multiply matrices here: ") &&
                        Catch::Matchers::ContainsSubstring("Set trainer.cpu_matmul: mkl or auto."));
  CHECK_THROWS_AS(CpuMatmulScope(CpuMatmul::onednn), ConfigError);
  at::globalContext().setUserEnabledMkldnn(true);
}

}  // namespace cpu_matmul_test
