#include "width_operations.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addbmm.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/avg_pool1d.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cdist.h>
#include <ATen/ops/celu.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cosine_similarity.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/glu.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_matrix_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pairwise_distance.h>
#include <ATen/ops/prelu.h>
#include <ATen/ops/relu6.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/selu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/softshrink.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensordot.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fulgur/core/text/text.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace width_sweep {
namespace {

using fulgur::cat;
using fulgur::Tensor;

using Apply = std::function<Tensor(const Tensor&)>;
using ApplyWhole = std::function<Tensor(const Tensor&, const Whole&)>;

class Table {
 public:
  void must(const std::string& name, ApplyWhole apply) { add(name, true, std::move(apply)); }
  void may(const std::string& name, ApplyWhole apply) { add(name, false, std::move(apply)); }
  void must(const std::string& name, const Apply& apply) { add(name, true, ignoring(apply)); }
  void may(const std::string& name, const Apply& apply) { add(name, false, ignoring(apply)); }
  void add(const std::string& name, bool must, const Apply& apply) { add(name, must, ignoring(apply)); }
  void add(const std::string& name, bool must, ApplyWhole apply) { rows_.push_back({name, must, std::move(apply)}); }
  std::vector<Operation> take() { return std::move(rows_); }

 private:
  static ApplyWhole ignoring(const Apply& apply) {
    return [apply](const Tensor& h, const Whole&) { return apply(h); };
  }
  std::vector<Operation> rows_;
};

template <class Result>
Tensor first_of(const Result& result) {
  return std::get<0>(result);
}

void add_single_elements(Table& t) {
  t.must("relu: of each element", [](const Tensor& h) { return h.relu(); });
  t.must("gelu: of each element", [](const Tensor& h) { return at::gelu(h, "tanh"); });
  t.must("silu: of each element", [](const Tensor& h) { return at::silu(h); });
  t.must("sigmoid: of each element", [](const Tensor& h) { return h.sigmoid(); });
  t.must("tanh: of each element", [](const Tensor& h) { return h.tanh(); });
  t.must("exp: of each element", [](const Tensor& h) { return h.exp(); });
  t.must("log: of each element", [](const Tensor& h) { return (h.abs() + 0.1).log(); });
  t.must("sqrt: of each element", [](const Tensor& h) { return (h.abs() + 0.1).sqrt(); });
  t.must("rsqrt: of each element", [](const Tensor& h) { return (h.abs() + 0.1).rsqrt(); });
  t.must("reciprocal: of each element", [](const Tensor& h) { return (h.abs() + 0.5).reciprocal(); });
  t.must("square: of each element", [](const Tensor& h) { return h.square(); });
  t.must("neg: of each element", [](const Tensor& h) { return -h; });
  t.must("sin: of each element", [](const Tensor& h) { return h.sin(); });
  t.must("erf: of each element", [](const Tensor& h) { return h.erf(); });
  t.must("log1p: of each element", [](const Tensor& h) { return h.abs().log1p(); });
  t.must("softplus: of each element", [](const Tensor& h) { return at::softplus(h); });
  t.must("log_sigmoid: of each element", [](const Tensor& h) { return at::log_sigmoid(h); });
  t.must("leaky_relu: of each element", [](const Tensor& h) { return at::leaky_relu(h, 0.1); });
  t.must("elu: of each element", [](const Tensor& h) { return at::elu(h); });
  t.must("selu: of each element", [](const Tensor& h) { return at::selu(h); });
  t.must("celu: of each element", [](const Tensor& h) { return at::celu(h); });
  t.must("relu6: of each element", [](const Tensor& h) { return at::relu6(h); });
  t.must("mish: of each element", [](const Tensor& h) { return at::mish(h); });
  t.must("hardswish: of each element", [](const Tensor& h) { return at::hardswish(h); });
  t.must("hardsigmoid: of each element", [](const Tensor& h) { return at::hardsigmoid(h); });
  t.must("hardtanh: of each element", [](const Tensor& h) { return at::hardtanh(h, -0.3, 0.3); });
  t.must("softshrink: of each element", [](const Tensor& h) { return at::softshrink(h, 0.1); });
  t.must("threshold: of each element", [](const Tensor& h) { return at::threshold(h, 0.1, 0.2); });
  t.must("clamp: of each element", [](const Tensor& h) { return h.clamp(-0.2, 0.4); });
  t.must("pow: of each element", [](const Tensor& h) { return h.pow(3); });
  t.must("round: of each element", [](const Tensor& h) { return h + (h * 8).round() * 0.1; });
  t.must("sign: of each element", [](const Tensor& h) { return h + h.sign(); });
  t.must("nan_to_num: of each element", [](const Tensor& h) { return h.nan_to_num(); });
  t.may("prelu: with one slope", [](const Tensor& h, const Whole& w) { return at::prelu(h, w.one); });
  t.may("softmax: over all elements", [](const Tensor& h) { return h.flatten().softmax(0).view(h.sizes()); });
  t.must("to: float32 and back", [](const Tensor& h) { return h.to(at::kFloat).to(at::kDouble); });
  t.must("to: bfloat16 and back", [](const Tensor& h) { return h.to(at::kBFloat16).to(at::kDouble); });
  t.must("to: int64 and back", [](const Tensor& h) { return h + (h * 8).to(at::kLong).to(at::kDouble); });
  t.must("type_as: of a whole value", [](const Tensor& h, const Whole& w) { return h.type_as(w.one); });
  t.must("clone: a copy", [](const Tensor& h) { return h.clone(); });
  t.must("contiguous: a copy", [](const Tensor& h) { return h.contiguous(); });
  t.must("detach: beside the value", [](const Tensor& h) { return h + h.detach() * 0.5; });
  t.must("zeros_like: beside the value", [](const Tensor& h) { return h + at::zeros_like(h) + at::ones_like(h); });
  t.must("full_like: beside the value", [](const Tensor& h) { return h + at::full_like(h, 0.5); });
  t.may("new_zeros: beside the value", [](const Tensor& h) { return h + h.new_zeros(h.sizes()); });
  t.may("new_ones: of the width", [](const Tensor& h) { return h * h.new_ones({h.size(-1)}); });
  t.may("tril: of the last two dimensions", [](const Tensor& h) { return h.tril(); });
  t.may("triu: of the last two dimensions", [](const Tensor& h) { return h.triu(); });
}

void add_joined(Table& t) {
  t.must("add: a number", [](const Tensor& h) { return h + 0.5; });
  t.must("mul: the value itself", [](const Tensor& h) { return h * h.sigmoid(); });
  t.must("div: parts", [](const Tensor& h) { return h / (h.abs() + 1); });
  t.must("sub: parts", [](const Tensor& h) { return h - h.tanh() * 0.5; });
  t.must("mul: one whole element", [](const Tensor& h, const Whole& w) { return h * w.one; });
  t.must("add: a whole value for each row", [](const Tensor& h, const Whole& w) { return h + w.rows; });
  t.must("mul: a whole value for each row", [](const Tensor& h, const Whole& w) { return h * w.rows; });
  t.must("div: by a whole value for each row", [](const Tensor& h, const Whole& w) { return h / (w.rows + 3); });
  t.must("mul: an expanded whole value", [](const Tensor& h, const Whole& w) { return h * w.rows.expand_as(h); });
  t.must("mul: a whole value before the parts", [](const Tensor& h, const Whole& w) { return w.rows * h; });
  t.may("add: a whole value of all the width", [](const Tensor& h, const Whole& w) { return h + w.width; });
  t.may("mul: a whole value of all the width", [](const Tensor& h, const Whole& w) { return h * w.width; });
  t.must("maximum: parts", [](const Tensor& h) { return at::maximum(h, h * 0.5 + 0.1); });
  t.must("minimum: a whole value for each row", [](const Tensor& h, const Whole& w) { return at::minimum(h, w.rows); });
  t.must("pow: parts", [](const Tensor& h) { return (h.abs() + 0.5).pow(h); });
  t.must("atan2: parts", [](const Tensor& h) { return h.atan2(h.abs() + 1); });
  t.must("hypot: a whole value for each row",
         [](const Tensor& h, const Whole& w) { return (h.abs() + 0.1).hypot(w.rows); });
  t.must("copysign: a whole value for each row", [](const Tensor& h, const Whole& w) { return h.copysign(w.rows); });
  t.must("fmod: a number", [](const Tensor& h) { return h.fmod(0.5); });
  t.must("remainder: a number", [](const Tensor& h) { return h.remainder(0.5); });
  t.must("addcmul: parts and a whole value",
         [](const Tensor& h, const Whole& w) { return at::addcmul(h, h.sigmoid(), w.rows, 0.5); });
  t.must("addcdiv: parts and a whole value",
         [](const Tensor& h, const Whole& w) { return at::addcdiv(h, h.sigmoid(), w.rows + 3, 0.5); });
  t.must("lerp: parts", [](const Tensor& h) { return at::lerp(h, h.tanh(), 0.3); });
  t.must("lerp: with whole weights", [](const Tensor& h, const Whole& w) { return at::lerp(h, h.tanh(), w.rows); });
  t.must("where: by parts", [](const Tensor& h) { return at::where(h > 0, h, h * 0.1); });
  t.must("where: by a whole value for each row",
         [](const Tensor& h, const Whole& w) { return at::where(w.rows > 0, h, h * 0.1); });
  t.may("where: by all the width", [](const Tensor& h, const Whole& w) { return at::where(w.width > 0, h, h * 0.1); });
  t.must("masked_fill: where parts are above a number", [](const Tensor& h) { return h.masked_fill(h > 0.2, 0.7); });
  t.must("masked_fill: by a whole value for each row",
         [](const Tensor& h, const Whole& w) { return h.masked_fill(w.rows > 0, 0.7); });
  t.may("masked_fill: by all the width",
        [](const Tensor& h, const Whole& w) { return h.masked_fill(w.width > 0, 0.7); });
  t.may("masked_select: chosen elements", [](const Tensor& h) { return h + h.masked_select(h > 0).sum(); });
  t.may("masked_scatter: chosen elements",
        [](const Tensor& h) { return h.masked_scatter(h > 0, h.detach().contiguous()); });
  t.must("gt: a number", [](const Tensor& h) { return h * (h > 0.1).to(at::kDouble); });
  t.must("le: a number", [](const Tensor& h) { return h * (h <= 0.1).to(at::kDouble); });
  t.must("eq: a number", [](const Tensor& h) { return h * (h.relu() == 0).to(at::kDouble); });
  t.must("lt: a whole value for each row",
         [](const Tensor& h, const Whole& w) { return h * (h < w.rows).to(at::kDouble); });
  t.must("ge: parts", [](const Tensor& h) { return h * (h >= h.tanh()).to(at::kDouble); });
  t.may("gt: all the width", [](const Tensor& h, const Whole& w) { return h * (h > w.width).to(at::kDouble); });
  t.must("logical_and: parts", [](const Tensor& h) { return h * (h > 0).logical_and(h < 0.5).to(at::kDouble); });
  t.must("logical_not: parts", [](const Tensor& h) { return h * (h > 0).logical_not().to(at::kDouble); });
  t.must("isnan: parts", [](const Tensor& h) { return h + h.isnan().to(at::kDouble); });
  t.may("isclose: parts", [](const Tensor& h) { return h + h.isclose(h.relu()).to(at::kDouble); });
}

void add_in_place(Table& t, int64_t divided) {
  t.must("add_: a number", [](const Tensor& h) { return h.clone().add_(0.5); });
  t.must("add_: to what the layer returned", [](const Tensor& h) { return h.contiguous().add_(0.5); });
  t.must("add_: parts", [](const Tensor& h) { return h.clone().add_(h.tanh(), 0.5); });
  t.must("mul_: a whole value for each row", [](const Tensor& h, const Whole& w) { return h.clone().mul_(w.rows); });
  t.may("mul_: all the width", [](const Tensor& h, const Whole& w) { return h.clone().mul_(w.width); });
  t.must("sub_: parts", [](const Tensor& h) { return h.clone().sub_(h.sigmoid()); });
  t.must("div_: a number", [](const Tensor& h) { return h.clone().div_(1.5); });
  t.must("relu_: of each element", [](const Tensor& h) { return h.clone().relu_(); });
  t.must("clamp_: of each element", [](const Tensor& h) { return h.clone().clamp_(-0.1, 0.3); });
  t.must("sigmoid_: of each element", [](const Tensor& h) { return h.clone().sigmoid_(); });
  t.must("masked_fill_: where parts are above a number",
         [](const Tensor& h) { return h.clone().masked_fill_(h > 0.2, 0.7); });
  t.must("copy_: parts", [](const Tensor& h) { return at::zeros_like(h).copy_(h * 2); });
  t.may("copy_: a whole value for each row",
        [](const Tensor& h, const Whole& w) { return h + h.clone().copy_(w.rows); });
  t.must("zero_: of a copy", [](const Tensor& h) { return h + h.clone().zero_(); });
  t.must("fill_: of a copy", [](const Tensor& h) { return h * h.clone().fill_(0.5); });
  t.must("mul_: a row of a copy", [](const Tensor& h) {
    const Tensor y = h.clone();
    y.select(0, 1).mul_(2);
    return y;
  });
  t.must("mul_: a slice of other rows", [](const Tensor& h) {
    const Tensor y = h.clone();
    y.narrow(0, 0, 1).mul_(h.narrow(0, 1, 1));
    return y;
  });
  t.must("add_: a transposed view", [](const Tensor& h) {
    const Tensor y = h.clone();
    y.transpose(0, -1).add_(0.5);
    return y;
  });
  t.may("mul_: a slice of the width", [divided](const Tensor& h) {
    const Tensor y = h.clone();
    y.narrow(divided, 0, 1).mul_(2);
    return y;
  });
  t.may("fill_: an element of the width", [divided](const Tensor& h) {
    const Tensor y = h.clone();
    y.select(divided, 0).fill_(0.5);
    return y;
  });
  t.may("copy_: parts into a whole value", [](const Tensor& h, const Whole& w) {
    const Tensor y = (w.rows + w.width).detach();
    y.copy_(h);
    return h + y.sum() * 0.01;
  });
  t.may("add_: parts to a whole value", [divided](const Tensor& h, const Whole& w) {
    const Tensor y = w.rows.detach().clone();
    y.add_(h.sum(divided, true));
    return h + y;
  });
  t.may("add_: parts to rows of a new whole value", [](const Tensor& h) {
    const Tensor y = at::zeros(h.sizes(), h.options());
    y.select(0, 0).add_(h.select(0, 0));
    return h + y;
  });
  t.may("transpose_: and back",
        [](const Tensor& h) { return h.clone().transpose_(0, -1).mul(2).transpose(0, -1).contiguous(); });
  t.may("unsqueeze_: and back", [](const Tensor& h) { return h.clone().unsqueeze_(0).mul(2).squeeze(0); });
  t.may("squeeze_: of a new dimension", [](const Tensor& h) { return h.clone().unsqueeze(0).squeeze_(0); });
  t.may("resize_: to the same size", [](const Tensor& h) { return h + h.detach().clone().resize_(h.sizes()); });
  t.may("set_: to the memory of the value", [](const Tensor& h) {
    Tensor y = at::zeros({1}, h.options());
    y.set_(h.detach());
    return h + y;
  });
  t.may("set_data: to the memory of the value", [](const Tensor& h) {
    Tensor y = at::zeros({1}, h.options());
    y.set_data(h.detach());
    return h + y.softmax(-1);
  });
  t.may("as_strided: the same view", [](const Tensor& h) {
    const Tensor y = h.contiguous();
    return y.as_strided(y.sizes(), y.strides());
  });
  t.may("as_strided: another order", [](const Tensor& h) {
    const Tensor y = h.contiguous();
    return y.flatten().as_strided({y.numel()}, {1}).view(y.sizes()) + h.flatten().cumsum(0).view(h.sizes());
  });
}

// `k` is the dimension along which they work.
void add_along(Table& t, int64_t k, int64_t divided) {
  const bool must = k != divided;
  const std::string along = cat(": over dimension ", k, must ? "" : ", which is divided");
  const auto add = [&](const char* name, bool is_known, const Apply& apply) {
    t.add(cat(name, along), must && is_known, apply);
  };
  add("sum", true, [k](const Tensor& h) { return h + h.sum(k, true); });
  add("mean", true, [k](const Tensor& h) { return h + h.mean(k, true); });
  add("amax", true, [k](const Tensor& h) { return h + h.amax(k, true); });
  add("amin", true, [k](const Tensor& h) { return h + h.amin(k, true); });
  add("max", true, [k](const Tensor& h) { return h + first_of(h.max(k, true)); });
  add("min", true, [k](const Tensor& h) { return h + first_of(h.min(k, true)); });
  add("median", true, [k](const Tensor& h) { return h + first_of(h.median(k, true)); });
  add("argmax", true, [k](const Tensor& h) { return h + h.argmax(k, true) * 0.1; });
  add("argmin", true, [k](const Tensor& h) { return h + h.argmin(k, true) * 0.1; });
  add("prod", true, [k](const Tensor& h) { return h + h.prod(k, true); });
  add("norm", true, [k](const Tensor& h) { return h / h.norm(2, {k}, true); });
  add("linalg_vector_norm", true,
      [k](const Tensor& h) { return h / at::linalg_vector_norm(h, 3, at::IntArrayRef{k}, true); });
  add("var", true, [k](const Tensor& h) { return h + h.var(at::IntArrayRef{k}, true, true); });
  add("std", true, [k](const Tensor& h) { return h + h.std(at::IntArrayRef{k}, true, true); });
  add("logsumexp", true, [k](const Tensor& h) { return h - h.logsumexp({k}, true); });
  add("softmax", true, [k](const Tensor& h) { return h.softmax(k); });
  add("log_softmax", true, [k](const Tensor& h) { return h.log_softmax(k); });
  add("cumsum", true, [k](const Tensor& h) { return h.cumsum(k); });
  add("cumprod", true, [k](const Tensor& h) { return h.cumprod(k); });
  add("cummax", false, [k](const Tensor& h) { return first_of(h.cummax(k)); });
  add("logcumsumexp", false, [k](const Tensor& h) { return h.logcumsumexp(k); });
  add("sort", true, [k](const Tensor& h) { return first_of(h.sort(k)); });
  add("argsort", true, [k](const Tensor& h) { return h * h.argsort(k).to(at::kDouble); });
  add("topk", true, [k](const Tensor& h) { return h + first_of(h.topk(2, k)).sum(k, true); });
  add("kthvalue", false, [k](const Tensor& h) { return h + first_of(h.kthvalue(2, k, true)); });
  add("flip", true, [k](const Tensor& h) { return h.flip({k}); });
  add("roll", true, [k](const Tensor& h) { return h.roll({1}, {k}); });
  add("repeat_interleave", true, [k](const Tensor& h) { return h.repeat_interleave(2, k).narrow(k, 0, h.size(k)); });
  add("index_select", true, [k](const Tensor& h) {
    return h.index_select(k, at::arange(h.size(k) - 1, -1, -1, at::TensorOptions(at::kLong)));
  });
  add("narrow", true, [k](const Tensor& h) {
    return at::cat({h.narrow(k, 1, 1), h.narrow(k, 0, 1), h.narrow(k, 2, h.size(k) - 2)}, k);
  });
  add("slice", true, [k](const Tensor& h) { return at::cat({h.slice(k, 1), h.slice(k, 0, 1)}, k); });
  t.add(cat("slice: each second of dimension ", k), false,
        Apply([k](const Tensor& h) { return h + h.slice(k, 0, h.size(k), 2).sum(k, true); }));
  add("select", true, [k](const Tensor& h) { return h + h.select(k, 1).unsqueeze(k); });
  add("chunk", true, [k](const Tensor& h) {
    const auto pieces = h.chunk(2, k);
    return at::cat({pieces[1], pieces[0]}, k);
  });
  add("split", true, [k](const Tensor& h) {
    const auto pieces = h.split(1, k);
    return h + pieces[1];
  });
  add("split_with_sizes", true, [k](const Tensor& h) {
    const auto pieces = h.split_with_sizes({1, h.size(k) - 1}, k);
    return at::cat({pieces[1], pieces[0]}, k);
  });
  add("tensor_split", true, [k](const Tensor& h) {
    const auto pieces = h.tensor_split(2, k);
    return at::cat({pieces[1], pieces[0]}, k);
  });
  add("unbind", true, [k](const Tensor& h) {
    const auto pieces = h.unbind(k);
    return h + pieces[1].unsqueeze(k);
  });
  add("cat", true, [k](const Tensor& h) { return at::cat({h * 2, h}, k).narrow(k, 0, h.size(k)); });
  add("stack", true, [k](const Tensor& h) { return at::stack({h, h * 2}, k).sum(k); });
  add("gather", false, [k](const Tensor& h) { return h.gather(k, h.argsort(k)); });
  add("take_along_dim", false, [k](const Tensor& h) { return h.take_along_dim(h.argsort(k), k); });
  add("scatter", false, [k](const Tensor& h) { return h.scatter(k, h.argsort(k), h * 2); });
  add("scatter_add", false, [k](const Tensor& h) { return h.scatter_add(k, h.argsort(k), h * 2); });
  add("index_add", false,
      [k](const Tensor& h) { return h.index_add(k, at::zeros({1}, at::TensorOptions(at::kLong)), h.narrow(k, 1, 1)); });
  add("index_copy", false, [k](const Tensor& h) {
    return h.index_copy(k, at::zeros({1}, at::TensorOptions(at::kLong)), h.narrow(k, 1, 1) * 2);
  });
  add("index_fill", false,
      [k](const Tensor& h) { return h.index_fill(k, at::zeros({1}, at::TensorOptions(at::kLong)), 0.5); });
  add("unfold", false, [k](const Tensor& h) { return h + h.unfold(k, 2, 1).sum() * 0.01; });
  add("diff", false, [k](const Tensor& h) { return h + h.diff(1, k).sum(k, true); });
  add("nansum", false, [k](const Tensor& h) { return h + h.nansum(at::IntArrayRef{k}, true); });
  add("nanmean", false, [k](const Tensor& h) { return h + h.nanmean(at::IntArrayRef{k}, true); });
  add("count_nonzero", false,
      [k](const Tensor& h) { return h + h.relu().count_nonzero(at::IntArrayRef{k}).unsqueeze(k); });
  add("all", false, [k](const Tensor& h) { return h + (h > -0.5).all(k, true).to(at::kDouble); });
  add("any", false, [k](const Tensor& h) { return h + (h > 0.5).any(k, true).to(at::kDouble); });
  add("quantile", false, [k](const Tensor& h) { return h + h.quantile(0.3, k, true); });
  add("mode", false, [k](const Tensor& h) { return h + first_of((h * 4).round().mode(k, true)); });
  add("aminmax", false, [k](const Tensor& h) { return h + first_of(h.detach().aminmax(k, true)); });
  add("renorm", false, [k](const Tensor& h) { return h.renorm(2, k, 0.5); });
  add("movedim", false, [k](const Tensor& h) { return h.movedim(k, 0).contiguous().movedim(0, k); });
  add("cosine_similarity", false,
      [k](const Tensor& h) { return h + at::cosine_similarity(h, h.sigmoid(), k).unsqueeze(k); });
  add("select_scatter", false, [k](const Tensor& h) { return h.select_scatter(h.select(k, 1) * 2, k, 0); });
  add("slice_scatter", false, [k](const Tensor& h) { return h.slice_scatter(h.slice(k, 1, 2) * 2, k, 0, 1); });
  // Without the dimension.
  t.add(cat("sum: without dimension ", k), must, Apply([k](const Tensor& h) { return h * h.sum(k).unsqueeze(k); }));
  t.add(cat("mean: without dimension ", k), must, Apply([k](const Tensor& h) { return h * h.mean(k).unsqueeze(k); }));
  t.add(cat("max: without dimension ", k), must,
        Apply([k](const Tensor& h) { return h * first_of(h.max(k)).unsqueeze(k); }));
  t.add(cat("sum: without dimension ", k, ", counted from the last"), must,
        Apply([k](const Tensor& h) { return h * h.sum(k - h.dim()).unsqueeze(k); }));
  t.add(cat("unsqueeze: before dimension ", k), true,
        Apply([k](const Tensor& h) { return (h.unsqueeze(k) * 2).squeeze(k); }));
  t.add(cat("expand: before dimension ", k), true, Apply([k](const Tensor& h) {
          std::vector<int64_t> sizes(static_cast<size_t>(h.dim()) + 1, -1);
          sizes[static_cast<size_t>(k)] = 2;
          return h.unsqueeze(k).expand(sizes).sum(k);
        }));
}

// Over all elements, which are of all ranks.
void add_reductions(Table& t) {
  t.may("sum: all elements", [](const Tensor& h) { return h + h.sum(); });
  t.may("mean: all elements", [](const Tensor& h) { return h + h.mean(); });
  t.may("max: all elements", [](const Tensor& h) { return h + h.max(); });
  t.may("min: all elements", [](const Tensor& h) { return h + h.min(); });
  t.may("amax: all elements", [](const Tensor& h) { return h + h.amax(); });
  t.may("prod: all elements", [](const Tensor& h) { return h + h.prod(); });
  t.may("std: all elements", [](const Tensor& h) { return h + h.std(); });
  t.may("var: all elements", [](const Tensor& h) { return h + h.var(); });
  t.may("norm: all elements", [](const Tensor& h) { return h / h.norm(); });
  t.may("linalg_vector_norm: all elements", [](const Tensor& h) { return h / at::linalg_vector_norm(h); });
  t.may("median: all elements", [](const Tensor& h) { return h + h.median(); });
  t.may("argmax: all elements", [](const Tensor& h) { return h + h.argmax() * 0.1; });
  t.may("any: all elements", [](const Tensor& h) { return h + (h > 0.5).any().to(at::kDouble); });
  t.may("all: all elements", [](const Tensor& h) { return h + (h > -0.5).all().to(at::kDouble); });
  t.may("count_nonzero: all elements", [](const Tensor& h) { return h + h.relu().count_nonzero() * 0.1; });
  t.may("item: of a sum", [](const Tensor& h) { return h + h.detach().flatten().select(0, 0).item<double>(); });
  t.may("equal: of two values", [](const Tensor& h) { return h * (h.equal(h.relu()) ? 2 : 3); });
  t.may("allclose: of two values", [](const Tensor& h) { return h * (h.allclose(h.relu()) ? 2 : 3); });
  t.may("nonzero: places", [](const Tensor& h) { return h + h.relu().nonzero().size(0) * 0.1; });
  t.may("histc: all elements", [](const Tensor& h) { return h + h.detach().histc(4, -1, 1).max() * 0.1; });
  t.may("bucketize: by boundaries that all ranks have", [](const Tensor& h) {
    return h + at::bucketize(h.detach().contiguous(), at::arange(-1, 1, 0.25, h.options())).to(at::kDouble);
  });
  t.may("mse_loss: of parts", [](const Tensor& h) { return h + at::mse_loss(h, h.relu()); });
  t.may("l1_loss: of parts", [](const Tensor& h) { return h + at::l1_loss(h, h.relu()); });
  t.may("huber_loss: of parts", [](const Tensor& h) { return h + at::huber_loss(h, h.relu()); });
  t.may("mse_loss: of each element",
        [](const Tensor& h) { return h + at::mse_loss(h, h.relu(), at::Reduction::None); });
  t.may("sort: all elements", [](const Tensor& h) { return first_of(h.flatten().sort()).view(h.sizes()); });
  t.may("cumsum: all elements", [](const Tensor& h) { return h.flatten().cumsum(0).view(h.sizes()); });
  t.may("flip: all elements", [](const Tensor& h) { return h.flatten().flip({0}).view(h.sizes()); });
  t.may("roll: all elements", [](const Tensor& h) { return h.roll({1}); });
  t.may("take: all elements",
        [](const Tensor& h) { return h + h.take(at::arange(2, at::TensorOptions(at::kLong))).sum(); });
  t.may("dot: all elements", [](const Tensor& h) { return h + h.flatten().dot(h.flatten()); });
  t.may("trace: of rows", [](const Tensor& h) { return h + h.flatten(0, -2).trace(); });
  t.may("diagonal: of the last dimensions", [](const Tensor& h) { return h + h.diagonal(0, -2, -1).sum() * 0.1; });
  t.may("cdist: of rows", [](const Tensor& h) { return h + at::cdist(h, h).sum() * 0.01; });
  t.may("pairwise_distance: of rows",
        [](const Tensor& h) { return h + at::pairwise_distance(h, h.relu()).sum() * 0.01; });
  t.may("constant_pad_nd: of the last dimension", [](const Tensor& h) {
    return at::constant_pad_nd(h, {1, 0}).narrow(-1, 0, h.size(-1));
  });
  t.may("layer_norm: over the last dimension", [](const Tensor& h) { return at::layer_norm(h, {h.size(-1)}); });
  t.may("rms_norm: over the last dimension", [](const Tensor& h) { return at::rms_norm(h, {h.size(-1)}); });
  t.may("index: by a whole list",
        [](const Tensor& h) { return h + h.index({at::zeros({1}, at::TensorOptions(at::kLong))}); });
  t.may("index: by parts", [](const Tensor& h) { return h + h.index({h > 0}).sum(); });
  t.may("index_put: by a whole list", [](const Tensor& h) {
    return h.index_put({at::zeros({1}, at::TensorOptions(at::kLong))}, h.narrow(0, 1, 1) * 2);
  });
}

void add_layout(Table& t, int64_t dims, int64_t divided) {
  for (int64_t a = 0; a < dims; ++a)
    for (int64_t b = a + 1; b < dims; ++b) {
      const std::string both = cat(": of dimensions ", a, " and ", b);
      t.must("transpose" + both, [a, b](const Tensor& h) { return (h.transpose(a, b) * 2).transpose(a, b); });
      t.must("swapaxes" + both, [a, b](const Tensor& h) { return h.swapaxes(a, b).contiguous().swapaxes(a, b); });
      t.must("permute" + both, [a, b](const Tensor& h) {
        std::vector<int64_t> order(static_cast<size_t>(h.dim()));
        std::iota(order.begin(), order.end(), 0);
        std::swap(order[static_cast<size_t>(a)], order[static_cast<size_t>(b)]);
        return h.permute(order).contiguous().permute(order);
      });
      t.add("softmax" + both, b != divided,
            Apply([a, b](const Tensor& h) { return h.transpose(a, b).softmax(a).transpose(a, b); }));
      t.may("flatten" + both, [a, b](const Tensor& h) { return (h.flatten(a, b) * 2).view(h.sizes()); });
      t.may("softmax: over joined" + both.substr(1),
            [a, b](const Tensor& h) { return h.flatten(a, b).softmax(a).view(h.sizes()); });
      t.add("sum" + both, a != divided && b != divided, Apply([a, b](const Tensor& h) {
              return h + h.sum({a, b}, true);
            }));
      t.add("mean" + both, a != divided && b != divided, Apply([a, b](const Tensor& h) {
              return h + h.mean({a, b}, true);
            }));
      t.add("flip" + both, a != divided && b != divided, Apply([a, b](const Tensor& h) { return h.flip({a, b}); }));
      t.add("roll" + both, a != divided && b != divided, Apply([a, b](const Tensor& h) {
              return h.roll({1, -1}, {a, b});
            }));
      t.may("linalg_matrix_norm" + both, [a, b](const Tensor& h) {
        return h + at::linalg_matrix_norm(h, "fro", {a, b}, true);
      });
    }
  t.must("view: in the same sizes", [](const Tensor& h) { return h.contiguous().view(h.sizes()); });
  t.must("reshape: with a size left open", [](const Tensor& h) {
    std::vector<int64_t> sizes = h.sizes().vec();
    sizes[0] = -1;
    return h.reshape(sizes);
  });
  t.must("view_as: parts", [](const Tensor& h) { return h.contiguous().view_as(h.relu().contiguous()); });
  t.must("reshape_as: parts", [](const Tensor& h) { return h.reshape_as(h.relu()); });
  t.must("expand_as: parts", [](const Tensor& h) { return h.expand_as(h.relu()); });
  t.must("unflatten: the first dimension", [](const Tensor& h) { return (h.unflatten(0, {2, -1}) * 2).flatten(0, 1); });
  t.may("view: all elements", [](const Tensor& h) { return h.contiguous().view(-1).mul(2).view(h.sizes()); });
  t.may("flatten: all elements", [](const Tensor& h) { return h.flatten().tanh().view(h.sizes()); });
  t.may("view: pairs of the last dimension", [](const Tensor& h) {
    const int64_t size = h.size(-1);
    return size % 2 == 0 ? h.contiguous().view({h.numel() / size, size / 2, 2}).softmax(-1).view(h.sizes())
                         : h.softmax(-2);
  });
  t.may("view: halves of the last dimension", [](const Tensor& h) {
    const int64_t size = h.size(-1);
    return size % 2 == 0 ? h.contiguous().view({h.numel() / size, 2, size / 2}).softmax(-1).view(h.sizes())
                         : h.softmax(-2);
  });
  t.may("unsqueeze: and softmax of the new dimension",
        [](const Tensor& h) { return h.unsqueeze(-1).softmax(-1).squeeze(-1) * h; });
  t.may("squeeze: all dimensions of size 1", [](const Tensor& h) { return h.unsqueeze(0).squeeze().view(h.sizes()); });
  t.may("broadcast_to: one dimension more", [](const Tensor& h) {
    std::vector<int64_t> sizes = h.sizes().vec();
    sizes.insert(sizes.begin(), 2);
    return h.broadcast_to(sizes).sum(0);
  });
  std::vector<int64_t> times(static_cast<size_t>(dims), 1);
  times[0] = 2;
  t.may("tile: twice", [times](const Tensor& h) { return h.tile(times).narrow(0, 0, h.size(0)); });
  t.may("repeat: twice", [times](const Tensor& h) { return h.repeat(times).narrow(0, 0, h.size(0)); });
  times[0] = 1, times[static_cast<size_t>(divided)] = 2;
  t.may("repeat: the width", [times, divided](const Tensor& h) {
    return h.repeat(times).narrow(divided, h.size(divided) / 2, h.size(divided));
  });
  t.may("cat: with a whole value", [](const Tensor& h, const Whole& w) {
    return at::cat({h, w.rows.expand_as(h)}, 0).narrow(0, 0, h.size(0)).contiguous() * 2;
  });
  t.may("cat: parts of two dimensions", [](const Tensor& h) {
    return h + at::cat({h.flatten(), h.transpose(0, -1).flatten()}).view({2, -1}).sum(0).view(h.sizes());
  });
  t.may("add: parts of two dimensions", [](const Tensor& h) {
    return h.dim() == 2 && h.size(0) == h.size(1) ? h + h.t() : h + h.flatten().view(h.sizes()).sum(-1, true);
  });
}

}  // namespace

std::vector<Operation> operations(int64_t dims, int64_t divided) {
  Table table;
  add_single_elements(table);
  add_joined(table);
  add_in_place(table, divided);
  for (int64_t k = 0; k < dims; ++k) add_along(table, k, divided);
  add_reductions(table);
  add_layout(table, dims, divided);
  if (divided == dims - 1) {
    const auto whole_rows = [](const Tensor& h, double step) {
      const int64_t rows = h.size(-2);
      return (at::arange(rows * rows, h.options()) * step).sin().view({rows, rows});
    };
    table.must("matmul: whole weights before the parts",
               [=](const Tensor& h) { return at::matmul(whole_rows(h, 0.3), h); });
    table.may("mul: a beginning of a whole width, as long as the part",
              [](const Tensor& h, const Whole& w) { return h * w.width.flatten().narrow(0, 0, h.size(-1)); });
    table.may("add_out: into a new value", [](const Tensor& h) {
      Tensor y = at::empty({0}, h.options());
      at::add_out(y, h.detach(), h.detach());
      return h + y.softmax(-1);
    });
    table.may("add_out: into a row of a whole value", [](const Tensor& h) {
      Tensor y = at::zeros({2, h.size(-1)}, h.options());
      Tensor row = y.select(0, 0);
      const Tensor first = h.detach().flatten(0, -2).select(0, 0);
      at::add_out(row, first, first);
      return h + y.sum(0);
    });
    table.may("max: of two values", [](const Tensor& h) { return h.max(h.tanh()); });
    table.must("clamp: by parts", [](const Tensor& h) { return h.clamp({}, h.tanh() + 0.1); });
    table.may("clamp: by all the width", [](const Tensor& h, const Whole& w) { return h.clamp({}, w.width); });
    table.may("isin: of a whole value",
              [](const Tensor& h) { return h + at::isin(h.detach(), h.detach()).to(at::kDouble); });
    table.must("view: rows before the width", [](const Tensor& h) {
      return h.contiguous().view({-1, h.size(-1)}).softmax(0).view(h.sizes());
    });
    table.must("mul: without autograd", [](const Tensor& h, const Whole& w) {
      const at::NoGradGuard no_grad;
      return h * w.rows.detach();
    });
    table.must("amax: without autograd", [](const Tensor& h) {
      at::NoGradGuard no_grad;
      return h / (h.abs().amax(0, true) + 1);
    });
    table.must("sum: of what one row has, in a vector", [](const Tensor& h) {
      const Tensor row = h.flatten(0, -2).select(0, 0);
      return h * row.unsqueeze(0).expand({3, -1}).sum(0);
    });
    table.may("add: an outer sum", [](const Tensor& h) {
      const Tensor row = h.flatten(0, -2).select(0, 0);
      return h + (row.unsqueeze(0) + row.unsqueeze(1)).sum(0);
    });
    table.may("searchsorted: in sorted rows", [](const Tensor& h) {
      const Tensor rows = h.detach().flatten(0, -2);
      return h + at::searchsorted(std::get<0>(rows.sort(0)).t().contiguous(), rows.t().contiguous())
                     .to(at::kDouble)
                     .t()
                     .reshape(h.sizes());
    });
    table.may("glu: halves of the last dimension", [](const Tensor& h) {
      return h + at::cat({at::glu(h), at::glu(h)}, -1);
    });
    table.may("matmul: over the width", [](const Tensor& h) { return h.matmul(h.transpose(-1, -2)).matmul(h); });
    table.must("matmul: over the rows, parts first",
               [=](const Tensor& h) { return h.transpose(-1, -2).matmul(whole_rows(h, 0.3)).transpose(-1, -2); });
    table.must("linear: over the rows",
               [=](const Tensor& h) { return at::linear(h.transpose(-1, -2), whole_rows(h, 0.4)).transpose(-1, -2); });
    table.may("matmul: parts by all the width",
              [](const Tensor& h, const Whole& w) { return h + h.matmul(w.width.flatten()).unsqueeze(-1); });
    table.may("tensordot: over the width",
              [](const Tensor& h) { return h + at::tensordot(h, h, {-1}, {-1}).sum() * 0.01; });
    table.may("tensordot: over the rows",
              [](const Tensor& h) { return h + at::tensordot(h, h, {0}, {0}).sum() * 0.01; });
    table.may("scaled_dot_product_attention: over the width", [](const Tensor& h) {
      return at::scaled_dot_product_attention(h.unsqueeze(0), h.unsqueeze(0), h.unsqueeze(0)).squeeze(0);
    });
    table.may("group_norm: of the last dimension as channels", [](const Tensor& h) {
      const Tensor rows = h.flatten(0, -2);
      return at::group_norm(rows, 2).view(h.sizes());
    });
    table.may("avg_pool1d: along the width",
              [](const Tensor& h) { return h + at::avg_pool1d(h.flatten(0, -2).unsqueeze(0), {2}).sum() * 0.01; });
  }
  if (dims == 2) {
    const auto rows = [](const Tensor& h) { return (at::arange(36, h.options()) * 0.3).sin().view({6, 6}); };
    table.must("mm: whole weights before the parts", [=](const Tensor& h) { return at::mm(rows(h), h); });
    table.must("t: and back", [](const Tensor& h) { return (h.t() * 2).t(); });
    table.must("addmm: whole weights before the parts",
               [=](const Tensor& h) { return at::addmm(h.tanh(), rows(h), h, 0.5, 2); });
    table.must("addmm: a whole value for each row",
               [=](const Tensor& h, const Whole& w) { return at::addmm(w.rows, rows(h), h); });
    table.must("addmm: parts before whole weights",
               [=](const Tensor& h) { return at::addmm(h.t(), h.t(), rows(h)).t(); });
    table.may("addmm: all the width", [=](const Tensor& h, const Whole& w) { return at::addmm(w.width, rows(h), h); });
    table.may("addmm: over the width",
              [](const Tensor& h) { return h + at::addmm(h.t().matmul(h), h.t(), h).sum() * 0.01; });
    table.may("addmm: a sum over the width", [=](const Tensor& h) { return at::mm(at::addmm(rows(h), h, h.t()), h); });
    table.must("einsum: rows by whole weights", [=](const Tensor& h) { return at::einsum("ij,jk->ik", {rows(h), h}); });
    table.must("einsum: parts by parts", [](const Tensor& h) { return at::einsum("nk,nk->nk", {h, h.sigmoid()}); });
    table.must("einsum: without an output", [=](const Tensor& h) { return at::einsum("ij,jk", {rows(h), h}); });
    table.may("einsum: over the width", [](const Tensor& h) {
      return at::einsum("ij,ik,kj->ij", {h, at::einsum("ik,jk->ij", {h, h}), h});
    });
    table.may("einsum: all elements", [](const Tensor& h) { return h + at::einsum("ij,ij->", {h, h}); });
    table.may("einsum: over the width of one",
              [](const Tensor& h) { return h * at::einsum("ij->i", {h}).unsqueeze(1); });
    table.must("einsum: over the rows", [](const Tensor& h) { return h * at::einsum("ij->j", {h}); });
    table.must("einsum: transposed", [](const Tensor& h) { return at::einsum("ij->ji", {h}).t(); });
    table.may("einsum: a diagonal", [](const Tensor& h) { return h + at::einsum("ii->i", {h.narrow(1, 0, 6)}).sum(); });
    table.may("einsum: parts by all the width", [](const Tensor& h, const Whole& w) {
      return at::einsum("ij,j->ij", {h, w.width.flatten()});
    });
    table.may("einsum: an outer product of two widths", [](const Tensor& h) {
      return h + at::einsum("ij,ik->jk", {h, h}).sum(0);
    });
    table.may("mv: over the width",
              [](const Tensor& h, const Whole& w) { return h + h.mv(w.width.flatten()).unsqueeze(1); });
    table.may("outer: of a column", [](const Tensor& h) { return h + h.select(1, 0).outer(h.select(0, 0)); });
  }
  if (dims == 3) {
    const auto rows = [](const Tensor& h) { return (at::arange(18, h.options()) * 0.3).sin().view({2, 3, 3}); };
    table.must("bmm: whole weights before the parts", [=](const Tensor& h) { return at::bmm(rows(h), h); });
    table.must("baddbmm: whole weights before the parts",
               [=](const Tensor& h) { return at::baddbmm(h.tanh(), rows(h), h, 0.5, 2); });
    table.must("baddbmm: a whole value for each row",
               [=](const Tensor& h, const Whole& w) { return at::baddbmm(w.rows, rows(h), h); });
    table.may("baddbmm: all the width",
              [=](const Tensor& h, const Whole& w) { return at::baddbmm(w.width, rows(h), h); });
    table.may("baddbmm: over the width",
              [=](const Tensor& h) { return at::bmm(at::baddbmm(rows(h), h, h.transpose(1, 2)), h); });
    table.may("addbmm: over the samples", [=](const Tensor& h) { return h + at::addbmm(h.select(0, 0), rows(h), h); });
    table.must("einsum: rows by whole weights", [=](const Tensor& h) {
      return at::einsum("bij,bjk->bik", {rows(h), h});
    });
    table.must("einsum: with dots", [=](const Tensor& h) { return at::einsum("...ij,...jk->...ik", {rows(h), h}); });
    table.may("einsum: over the width, with dots", [](const Tensor& h) {
      return h * at::einsum("...i,...i->...", {h, h}).unsqueeze(-1);
    });
    table.may("layer_norm: over the last two dimensions", [](const Tensor& h) {
      return at::layer_norm(h, {3, h.size(-1)});
    });
  }
  return table.take();
}

std::vector<Operation> operations_on_heads() {
  Table table;
  const auto attention = [](const Tensor& q, const Tensor& k, const std::optional<Tensor>& mask, bool causal) {
    return at::scaled_dot_product_attention(q, k, k.tanh(), mask, 0, causal);
  };
  table.must("scaled_dot_product_attention: by heads",
             [=](const Tensor& h) { return attention(h, h.sin(), {}, false); });
  table.must("scaled_dot_product_attention: causal", [=](const Tensor& h) { return attention(h, h.sin(), {}, true); });
  table.must("scaled_dot_product_attention: with a whole mask", [=](const Tensor& h) {
    return attention(h, h.sin(), at::ones({3, 3}, at::kBool).tril(), false);
  });
  table.must("scaled_dot_product_attention: with a mask of parts",
             [=](const Tensor& h) { return attention(h, h.sin(), h.matmul(h.transpose(-1, -2)), false); });
  table.may("scaled_dot_product_attention: keys that all ranks have", [=](const Tensor& h, const Whole& w) {
    return attention(h, w.rows.expand(h.sizes()).contiguous(), {}, false);
  });
  table.may("scaled_dot_product_attention: heads as tokens", [=](const Tensor& h) {
    return attention(h.transpose(1, 2), h.transpose(1, 2), {}, false).transpose(1, 2);
  });
  table.must("matmul: in each head",
             [](const Tensor& h) { return h.matmul(h.transpose(-1, -2)).softmax(-1).matmul(h); });
  table.must("matmul: whole weights in each head", [](const Tensor& h) {
    const int64_t size = h.size(-1);
    return h.matmul((at::arange(size * size, h.options()) * 0.3).sin().view({size, size}));
  });
  table.must("linear: in each head", [](const Tensor& h) {
    const int64_t size = h.size(-1);
    return at::linear(h, (at::arange(size * size, h.options()) * 0.3).sin().view({size, size}));
  });
  table.must("layer_norm: in each head", [](const Tensor& h) { return at::layer_norm(h, {h.size(-1)}); });
  table.must("rms_norm: in each head", [](const Tensor& h) { return at::rms_norm(h, {h.size(-1)}); });
  table.must("einsum: scores of each head", [](const Tensor& h) {
    return at::einsum("bhqk,bhkd->bhqd", {at::einsum("bhqd,bhkd->bhqk", {h, h.sin()}), h});
  });
  table.must("einsum: by whole weights", [](const Tensor& h) {
    const int64_t size = h.size(-1);
    return at::einsum("bhtd,de->bhte", {h, (at::arange(size * size, h.options()) * 0.3).sin().view({size, size})});
  });
  table.may("einsum: over the heads", [](const Tensor& h) { return h + at::einsum("bhtd->btd", {h}).unsqueeze(1); });
  table.may("einsum: heads by heads", [](const Tensor& h) {
    return h + at::einsum("bhtd,bgtd->bhg", {h, h}).sum(-1).unsqueeze(-1).unsqueeze(-1);
  });
  table.may("view: heads and their size", [](const Tensor& h) {
    return h.transpose(1, 2)
        .contiguous()
        .view({h.size(0), h.size(2), -1})
        .softmax(-1)
        .view({h.size(0), h.size(2), h.size(1), h.size(3)})
        .transpose(1, 2);
  });
  table.may("bmm: heads as samples", [](const Tensor& h) {
    const Tensor y = h.flatten(0, 1);
    return y.bmm(y.transpose(1, 2)).bmm(y).view(h.sizes());
  });
  table.must("cat: halves of each head", [](const Tensor& h) {
    const auto halves = h.split({1, h.size(-1) - 1}, -1);
    return at::cat({-halves[1], halves[0]}, -1);
  });
  table.must("mul: positions that all ranks have", [](const Tensor& h) {
    return h * (at::arange(h.size(2) * h.size(3), h.options()) * 0.2).cos().view({h.size(2), h.size(3)});
  });
  return table.take();
}

std::vector<Operation> operations_on_fused() {
  Table table;
  const auto joined = [](const Tensor& a, const Tensor& b, const Tensor& c) { return a * b.sigmoid() + c.tanh(); };
  table.must("chunk: into its parts", [=](const Tensor& h) {
    const auto parts = h.chunk(3, -1);
    return joined(parts[0], parts[1], parts[2]);
  });
  table.must("split: into its parts", [=](const Tensor& h) {
    const auto parts = h.split(h.size(-1) / 3, -1);
    return joined(parts[0], parts[1], parts[2]);
  });
  table.must("slice: its parts", [=](const Tensor& h) {
    const int64_t size = h.size(-1) / 3;
    return joined(h.slice(-1, 0, size), h.slice(-1, size, 2 * size), h.slice(-1, 2 * size));
  });
  table.must("narrow: its parts", [=](const Tensor& h) {
    const int64_t size = h.size(-1) / 3;
    return joined(h.narrow(-1, 0, size), h.narrow(-1, size, size), h.narrow(-1, 2 * size, size));
  });
  table.must("view: its parts as a dimension", [=](const Tensor& h) {
    const Tensor parts = h.view({h.size(0), h.size(1), 3, -1});
    return joined(parts.select(2, 0), parts.select(2, 1), parts.select(2, 2));
  });
  table.must("unflatten: its parts and heads", [=](const Tensor& h) {
    const Tensor parts = h.unflatten(-1, {3, -1, 3});
    return joined(parts.select(2, 0), parts.select(2, 1), parts.select(2, 2)).flatten(2);
  });
  table.must("mul: before its parts are chunks", [=](const Tensor& h) {
    const auto parts = (h * 2).tanh().chunk(3, -1);
    return joined(parts[0], parts[1], parts[2]);
  });
  table.may("slice: each second of two parts", [](const Tensor& h) { return h.slice(-1, 0, h.size(-1) / 3 * 2, 2); });
  table.may("slice: each second of the last two parts",
            [](const Tensor& h) { return h.slice(-1, h.size(-1) / 3, h.size(-1), 2); });
  table.may("view: parts of a number", [](const Tensor& h) {
    const Tensor y = h.view({h.size(0), h.size(1), -1, 6}).softmax(2);
    return y.select(2, 0).repeat_interleave(4, 2).narrow(2, 0, h.size(-1) / 3);
  });
  table.may("split: into other parts", [](const Tensor& h) {
    return h.split({h.size(-1) / 6, h.size(-1) / 3, h.size(-1) / 2}, -1)[1];
  });
  table.may("chunk: into two parts", [](const Tensor& h) { return h.chunk(2, -1)[0].slice(-1, 0, h.size(-1) / 3); });
  table.may("slice: across two parts", [](const Tensor& h) { return h.slice(-1, h.size(-1) / 6, h.size(-1) / 2); });
  table.may("view: parts of each head", [](const Tensor& h) {
    return h.view({h.size(0), h.size(1), -1, 3}).select(-1, 0);
  });
  table.may("softmax: over all parts", [](const Tensor& h) { return h.softmax(-1).chunk(3, -1)[0]; });
  table.may("unbind: of parts in another order", [](const Tensor& h) {
    return h.view({h.size(0), h.size(1), -1, 3}).unbind(-1)[1];
  });
  table.may("cat: of parts", [](const Tensor& h) {
    const auto parts = h.chunk(3, -1);
    return at::cat({parts[0], parts[1]}, -1).chunk(2, -1)[1];
  });
  table.may("flip: of the parts as a dimension", [](const Tensor& h) {
    return h.view({h.size(0), h.size(1), 3, -1}).flip({2}).select(2, 0);
  });
  return table.take();
}

}  // namespace width_sweep
