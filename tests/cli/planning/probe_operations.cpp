// A model that computes operations for which LibTorch has no kernel on `meta`, for plans.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace {

using at::Tensor;

using Compute = std::function<Tensor(const Tensor&)>;
struct Operation {
  std::vector<int64_t> sizes;  // of the input
  Compute compute;
};

// Each gets values between 0 and 1.
const std::vector<std::pair<std::string, Operation>>& operations() {
  static const std::vector<std::pair<std::string, Operation>> all{
      {"relu", {{4, 6}, [](const Tensor& x) { return x.relu(); }}},
      {"relu_", {{4, 6}, [](const Tensor& x) { return (x * 2).relu_(); }}},
      {"relu6", {{4, 6}, [](const Tensor& x) { return at::relu6(x); }}},
      {"hardtanh", {{4, 6}, [](const Tensor& x) { return at::hardtanh(x, -1, 0.5); }}},
      {"hardswish", {{4, 6}, [](const Tensor& x) { return at::hardswish(x); }}},
      {"hardsigmoid", {{4, 6}, [](const Tensor& x) { return at::hardsigmoid(x); }}},
      {"leaky_relu", {{4, 6}, [](const Tensor& x) { return at::leaky_relu(x); }}},
      {"elu", {{4, 6}, [](const Tensor& x) { return at::elu(x); }}},
      {"selu", {{4, 6}, [](const Tensor& x) { return at::selu(x); }}},
      {"celu", {{4, 6}, [](const Tensor& x) { return at::celu(x); }}},
      {"softplus", {{4, 6}, [](const Tensor& x) { return at::softplus(x); }}},
      {"softshrink", {{4, 6}, [](const Tensor& x) { return at::softshrink(x); }}},
      {"silu", {{4, 6}, [](const Tensor& x) { return at::silu(x); }}},
      {"mish", {{4, 6}, [](const Tensor& x) { return at::mish(x); }}},
      {"glu", {{4, 6}, [](const Tensor& x) { return at::glu(x); }}},
      {"log_sigmoid", {{4, 6}, [](const Tensor& x) { return at::log_sigmoid(x); }}},
      {"prelu", {{4, 6, 2}, [](const Tensor& x) { return at::prelu(x, x.select(2, 0).select(0, 0)); }}},
      {"rrelu", {{4, 6}, [](const Tensor& x) { return at::rrelu(x, 0.1, 0.3, true); }}},
      {"logit", {{4, 6}, [](const Tensor& x) { return at::logit(x, 0.1); }}},
      {"angle", {{4, 6}, [](const Tensor& x) { return at::angle(x); }}},
      {"abs", {{4, 6}, [](const Tensor& x) { return x.abs(); }}},
      {"abs_", {{4, 6}, [](const Tensor& x) { return (x * 2).abs_(); }}},
      {"polar", {{4, 6}, [](const Tensor& x) { return at::polar(x, x).abs(); }}},
      {"bernoulli", {{4, 6}, [](const Tensor& x) { return x * at::bernoulli(x.detach()); }}},
      {"isnan", {{4, 6}, [](const Tensor& x) { return x.masked_fill(at::isnan(x), 0); }}},
      {"nan_to_num", {{4, 6}, [](const Tensor& x) { return at::nan_to_num(x); }}},
      {"channel_shuffle", {{2, 6, 3, 3}, [](const Tensor& x) { return at::channel_shuffle(x, 3); }}},
      {"pixel_shuffle", {{2, 8, 3, 3}, [](const Tensor& x) { return at::pixel_shuffle(x, 2); }}},
      {"cumsum", {{4, 6}, [](const Tensor& x) { return x.cumsum(1); }}},
      {"cumprod", {{4, 6}, [](const Tensor& x) { return x.cumprod(1); }}},
      {"logcumsumexp", {{4, 6}, [](const Tensor& x) { return x.logcumsumexp(1); }}},
      {"logsumexp", {{4, 6}, [](const Tensor& x) { return x.logsumexp(1); }}},
      {"rsub", {{4, 6}, [](const Tensor& x) { return at::rsub(x, x.select(0, 0)); }}},
      {"rsub of a number", {{4, 6}, [](const Tensor& x) { return 1 - x; }}},
      {"floor_divide", {{4, 6}, [](const Tensor& x) { return x + at::floor_divide(x.detach(), x.detach()); }}},
      {"remainder", {{4, 6}, [](const Tensor& x) { return x * at::remainder(3, x.detach() + 1); }}},
      {"dot", {{6}, [](const Tensor& x) { return at::dot(x, x); }}},
      {"trace", {{4, 6}, [](const Tensor& x) { return at::trace(x); }}},
      {"prod", {{4, 6}, [](const Tensor& x) { return x.prod(); }}},
      {"prod of a dimension", {{4, 6}, [](const Tensor& x) { return x.prod(1); }}},
      {"max", {{4, 6}, [](const Tensor& x) { return x.max(); }}},
      {"max of a dimension", {{4, 6}, [](const Tensor& x) { return std::get<0>(x.max(1)); }}},
      {"max of two", {{4, 6}, [](const Tensor& x) { return at::max(x, x * 2); }}},
      {"amax", {{4, 6}, [](const Tensor& x) { return x.amax(1); }}},
      {"min", {{4, 6}, [](const Tensor& x) { return x.min(); }}},
      {"median", {{4, 6}, [](const Tensor& x) { return x.median(); }}},
      {"median of a dimension", {{4, 6}, [](const Tensor& x) { return std::get<0>(x.median(1)); }}},
      {"mode", {{4, 6}, [](const Tensor& x) { return std::get<0>(x.mode(1)); }}},
      {"kthvalue", {{4, 6}, [](const Tensor& x) { return std::get<0>(x.kthvalue(2, 1, true)); }}},
      {"topk", {{4, 6}, [](const Tensor& x) { return std::get<0>(x.topk(2)); }}},
      {"sort", {{4, 6}, [](const Tensor& x) { return std::get<0>(x.sort(1)); }}},
      {"argmax", {{4, 6}, [](const Tensor& x) { return x + x.argmax(1, true); }}},
      {"nansum", {{4, 6}, [](const Tensor& x) { return x.nansum(1); }}},
      {"count_nonzero", {{4, 6}, [](const Tensor& x) { return x.sum(1) * at::count_nonzero(x, at::IntArrayRef{1}); }}},
      {"var", {{4, 6}, [](const Tensor& x) { return x.var(1); }}},
      {"var of all", {{4, 6}, [](const Tensor& x) { return x.var(); }}},
      {"std", {{4, 6}, [](const Tensor& x) { return x.std(0, true, true); }}},
      {"var_mean", {{4, 6}, [](const Tensor& x) { return std::get<0>(at::var_mean(x, 1)); }}},
      {"std_mean", {{4, 6}, [](const Tensor& x) { return std::get<1>(at::std_mean(x, 1)); }}},
      {"norm", {{4, 6}, [](const Tensor& x) { return x.norm(); }}},
      {"binary_cross_entropy", {{4, 6}, [](const Tensor& x) { return at::binary_cross_entropy(x, x.detach()); }}},
      {"cross_entropy of images",
       {{2, 3, 4, 4},
        [](const Tensor& x) { return at::cross_entropy_loss(x, x.detach().select(1, 0).to(at::kLong)); }}},
      {"cross_entropy",
       {{4, 6}, [](const Tensor& x) { return at::cross_entropy_loss(x, x.detach().select(1, 0).to(at::kLong)); }}},
      {"ctc_loss",
       {{7, 2, 5},
        [](const Tensor& x) {
          return at::ctc_loss(x.log_softmax(-1), at::ones({2, 3}, x.options().dtype(at::kLong)), at::IntArrayRef{7, 6},
                              at::IntArrayRef{3, 2});
        }}},
      {"kl_div", {{4, 6}, [](const Tensor& x) { return at::kl_div(x, x.detach()); }}},
      {"l1_loss", {{4, 6}, [](const Tensor& x) { return at::l1_loss(x, x.detach()); }}},
      {"smooth_l1_loss", {{4, 6}, [](const Tensor& x) { return at::smooth_l1_loss(x, x.detach()); }}},
      {"huber_loss", {{4, 6}, [](const Tensor& x) { return at::huber_loss(x, x.detach()); }}},
      {"cosine_similarity", {{4, 6}, [](const Tensor& x) { return at::cosine_similarity(x, x * 2); }}},
      {"reflection_pad1d",
       {{2, 3, 6},
        [](const Tensor& x) {
          return at::reflection_pad1d(x, {1, 2});
        }}},
      {"reflection_pad2d",
       {{2, 3, 6, 5},
        [](const Tensor& x) {
          return at::reflection_pad2d(x, {1, 2, 0, 3});
        }}},
      {"replication_pad2d",
       {{2, 3, 6, 5},
        [](const Tensor& x) {
          return at::replication_pad2d(x, {1, 2, 0, 3});
        }}},
      {"constant_pad",
       {{2, 3, 6},
        [](const Tensor& x) {
          return at::constant_pad_nd(x, {1, 2});
        }}},
      {"adaptive_avg_pool2d",
       {{2, 3, 6, 6},
        [](const Tensor& x) {
          return at::adaptive_avg_pool2d(x, {2, 3});
        }}},
      {"adaptive_avg_pool3d",
       {{2, 3, 6, 6, 6},
        [](const Tensor& x) {
          return at::adaptive_avg_pool3d(x, {2, 3, 2});
        }}},
      {"adaptive_max_pool2d",
       {{2, 3, 6, 6},
        [](const Tensor& x) {
          return std::get<0>(at::adaptive_max_pool2d(x, {2, 3}));
        }}},
      {"max_pool2d", {{2, 3, 6, 6}, [](const Tensor& x) { return at::max_pool2d(x, 2); }}},
      {"avg_pool2d", {{2, 3, 6, 6}, [](const Tensor& x) { return at::avg_pool2d(x, 2); }}},
      {"max_pool3d",
       {{2, 3, 7, 6, 5},
        [](const Tensor& x) {
          return at::max_pool3d(x, {3, 2, 2}, {2, 2, 1}, 1, 1, true);
        }}},
      {"upsample", {{2, 3, 6, 6}, [](const Tensor& x) { return at::upsample_bilinear2d(x, {12, 9}, false); }}},
      {"unfold", {{2, 9}, [](const Tensor& x) { return x.unfold(1, 3, 2); }}},
      {"im2col", {{2, 3, 6, 6}, [](const Tensor& x) { return at::im2col(x, {2, 3}, {1, 1}, {0, 1}, {2, 1}); }}},
      {"col2im", {{2, 12, 9}, [](const Tensor& x) { return at::col2im(x, {4, 4}, {2, 2}, {1, 1}, {0, 0}, {1, 1}); }}},
      {"grid_sampler",
       {{2, 3, 6, 6},
        [](const Tensor& x) { return at::grid_sampler(x, x.slice(1, 0, 2).permute({0, 2, 3, 1}), 0, 0, false); }}},
      {"cdist", {{2, 5, 3}, [](const Tensor& x) { return at::cdist(x, x.slice(1, 0, 4)); }}},
      {"addbmm",
       {{2, 5, 3},
        [](const Tensor& x) { return at::addbmm(x.select(0, 0).mm(x.select(0, 0).t()), x, x.transpose(1, 2)); }}},
      {"einsum", {{2, 5, 3}, [](const Tensor& x) { return at::einsum("bij,bkj->bik", {x, x}); }}},
      {"fft of real", {{4, 6}, [](const Tensor& x) { return at::fft_rfft(x).abs(); }}},
      {"fft and back", {{4, 6}, [](const Tensor& x) { return at::fft_irfft(at::fft_rfft(x)); }}},
      {"fft", {{4, 6}, [](const Tensor& x) { return at::fft_fft2(x).abs(); }}},
      {"bucketize", {{4, 6}, [](const Tensor& x) { return x + at::bucketize(x.detach(), x.detach().select(0, 0)); }}},
      {"searchsorted", {{4, 6}, [](const Tensor& x) { return x + at::searchsorted(x.detach(), x.detach()); }}},
      {"take", {{4, 6}, [](const Tensor& x) { return x.take(at::ones({3, 2}, x.options().dtype(at::kLong))); }}},
      {"gather",
       {{4, 6}, [](const Tensor& x) { return x.gather(1, at::zeros({4, 2}, x.options().dtype(at::kLong))); }}},
      {"scatter_add",
       {{4, 6}, [](const Tensor& x) { return x.scatter_add(1, at::zeros({4, 6}, x.options().dtype(at::kLong)), x); }}},
      {"multinomial", {{4, 6}, [](const Tensor& x) { return x.slice(1, 0, 2) + at::multinomial(x.detach(), 2); }}},
      {"poisson", {{4, 6}, [](const Tensor& x) { return x + at::poisson(x.detach()); }}},
      {"weight_norm", {{4, 6}, [](const Tensor& x) { return at::_weight_norm(x, x.norm(2, {1}, true), 0); }}},
      {"instance_norm",
       {{2, 3, 6, 6}, [](const Tensor& x) { return at::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false); }}},
      {"group_norm", {{2, 4, 6, 6}, [](const Tensor& x) { return at::group_norm(x, 2); }}},
      {"repeat_interleave", {{4, 6}, [](const Tensor& x) { return x.repeat_interleave(3, 1); }}},
      {"tril", {{6, 6}, [](const Tensor& x) { return x.tril(); }}},
      {"lerp", {{4, 6}, [](const Tensor& x) { return at::lerp(x, x * 2, 0.3); }}},
      {"index", {{4, 6}, [](const Tensor& x) { return x.index({at::zeros({3}, x.options().dtype(at::kLong))}); }}},
      {"stack", {{4, 6}, [](const Tensor& x) {
                   return at::stack({x, x});
                 }}}};
  return all;
}

class ProbeOperations : public fulgur::LightningModule {
 public:
  struct Options {
    std::string only;
    int64_t needs_samples = 1;
    int64_t heads = 1;
    void fields(fulgur::Fields& f) {
      f(only, "only", "The name of an operation; empty: all.");
      f(needs_samples, "needs_samples", "A batch has as many at least.");
      f(heads, "heads", "Equal parts of six numbers, which the constructor makes.");
    }
  };
  explicit ProbeOperations(const Options& options) : options_(options), layer_(2, 1) {
    register_module("layer", layer_);
    static_cast<void>(at::zeros({6}).view({options.heads, 6 / std::max<int64_t>(options.heads, 1)}));
  }

  fulgur::StepOutput training_step(const fulgur::Batch& batch, int64_t) override {
    const Tensor input = std::get<Tensor>(batch.begin()->second);
    if (input.size(0) < options_.needs_samples) throw fulgur::Error("too few samples");
    const Tensor scale = layer_(input.slice(1, 0, 2)).mean();
    Tensor loss = scale;
    for (const auto& [name, operation] : operations()) {
      if (!options_.only.empty() && name != options_.only) continue;
      const auto& [sizes, compute] = operation;
      const Tensor values =
          at::linspace(0.1, 0.9, c10::multiply_integers(sizes), at::TensorOptions(at::kCPU)).reshape(sizes);
      const Tensor expected = compute(values);
      const Tensor found = compute(values.to(scale.device()) * scale);
      if (found.sizes() != expected.sizes() || found.scalar_type() != expected.scalar_type())
        throw fulgur::Error(fulgur::cat("'", name, "' has other sizes or another type on ", scale.device().str()));
      loss = loss + found.sum();
    }
    return {loss};
  }

 private:
  Options options_;
  torch::nn::Linear layer_;
};
FULGUR_REGISTER(fulgur::LightningModule, ProbeOperations, "Many operations.");

}  // namespace
