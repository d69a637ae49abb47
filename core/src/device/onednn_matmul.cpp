#include "onednn_matmul.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <torch/library.h>

// LibTorch exports this function, but does not install its header. It computes result = alpha · mat1 · mat2 + beta ·
// result by oneDNN's matmul primitive, in place.
namespace at::native {
TORCH_API void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta, float alpha);
}

namespace fulgur::detail {

std::atomic<const MatmulShapes*> onednn_shapes = nullptr;

namespace {

using at::Scalar;
using at::Tensor;

bool is_plain_float(const Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         !tensor.is_neg() && !tensor.has_names();
}

// Rows or columns lie one after another; LibTorch would copy anything else before it calls oneDNN.
bool is_packed(const Tensor& tensor) {
  if (tensor.is_contiguous()) return true;
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const size_t rows = sizes.size() - 2, columns = rows + 1;
  return strides[rows] == 1 && strides[columns] == sizes[rows] &&
         (rows == 0 || strides[0] == sizes[rows] * sizes[columns]);
}

// Whether oneDNN multiplies the two matrices, or batches of `dims` = 3 dimensions.
bool takes(const MatmulShapes& shapes, int64_t dims, const Tensor& a, const Tensor& b) {
  if (a.dim() != dims || b.dim() != dims || !is_plain_float(a) || !is_plain_float(b)) return false;
  const int64_t k = a.size(-1), batch = dims == 3 ? a.size(0) : 1;
  if (b.size(-2) != k || (dims == 3 && b.size(0) != batch)) return false;
  return shapes.take(batch, a.size(-2), b.size(-1), k) && is_packed(a) && is_packed(b);
}

const MatmulShapes* onednn_for(int64_t dims, const Tensor& a, const Tensor& b) {
  const MatmulShapes* const shapes = onednn_shapes.load(std::memory_order_relaxed);
  return shapes != nullptr && takes(*shapes, dims, a, b) ? shapes : nullptr;
}

c10::SmallVector<int64_t, 3> product_sizes(const Tensor& a, const Tensor& b) {
  c10::SmallVector<int64_t, 3> sizes(a.sizes().begin(), a.sizes().end());
  sizes.back() = b.size(-1);
  return sizes;
}

Tensor new_product(const Tensor& a, const Tensor& b) {
  return at::detail::empty_cpu(product_sizes(a, b), at::kFloat, at::kStrided, at::kCPU, false, std::nullopt);
}

// A tensor that can be written without a look at how it lies.
bool can_hold_product(const Tensor& out, const Tensor& a, const Tensor& b) {
  return is_plain_float(out) && out.is_contiguous() && out.sizes() == product_sizes(a, b) && !out.is_alias_of(a) &&
         !out.is_alias_of(b);
}

bool can_be_added(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  // oneDNN would leave the result as it is if alpha were 0.
  return is_plain_float(self) && !beta.isComplex() && !alpha.isComplex() && alpha.toFloat() != 0 &&
         at::is_expandable_to(self.sizes(), product_sizes(a, b));
}

void sum_into(const Tensor& out, const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
              const Scalar& alpha) {
  const float factor = beta.toFloat();
  // With a factor of 0, NaN in `self` is ignored.
  if (factor != 0 && !self.is_same(out)) out.copy_(self);
  at::native::mkldnn_matmul(a, b, out, factor, alpha.toFloat());
}

template <int64_t dims, auto libtorch>
Tensor product(const Tensor& a, const Tensor& b) {
  if (!onednn_for(dims, a, b)) return libtorch(a, b);
  Tensor out = new_product(a, b);
  at::native::mkldnn_matmul(a, b, out, 0, 1);
  return out;
}

template <int64_t dims, auto libtorch>
Tensor& product_out(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!onednn_for(dims, a, b) || !can_hold_product(out, a, b)) return libtorch(a, b, out);
  at::native::mkldnn_matmul(a, b, out, 0, 1);
  return out;
}

template <int64_t dims, auto libtorch>
Tensor sum(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (!onednn_for(dims, a, b) || !can_be_added(self, a, b, beta, alpha)) return libtorch(self, a, b, beta, alpha);
  Tensor out = new_product(a, b);
  sum_into(out, self, a, b, beta, alpha);
  return out;
}

template <int64_t dims, auto libtorch>
Tensor& sum_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                Tensor& out) {
  if (!onednn_for(dims, a, b) || !can_be_added(self, a, b, beta, alpha) || !can_hold_product(out, a, b) ||
      (out.is_alias_of(self) && !out.is_same(self)))
    return libtorch(self, a, b, beta, alpha, out);
  sum_into(out, self, a, b, beta, alpha);
  return out;
}

template <int64_t dims, auto libtorch>
Tensor& sum_in_place(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (!onednn_for(dims, a, b) || !can_be_added(self, a, b, beta, alpha) || !can_hold_product(self, a, b))
    return libtorch(self, a, b, beta, alpha);
  sum_into(self, self, a, b, beta, alpha);
  return self;
}

// LibTorch warns once of a kernel that replaces one of LibTorch's.
struct SilentHandler : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void register_onednn_matmul() {
  [[maybe_unused]] static const bool registered = [] {
    SilentHandler silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    // Kept until the process ends, since other threads may be about to call these kernels.
    auto& aten = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    aten.impl("mm", &product<2, &at::cpu::mm>);
    aten.impl("mm.out", &product_out<2, &at::cpu::mm_outf>);
    aten.impl("bmm", &product<3, &at::cpu::bmm>);
    aten.impl("bmm.out", &product_out<3, &at::cpu::bmm_outf>);
    aten.impl("addmm", &sum<2, &at::cpu::addmm>);
    aten.impl("addmm.out", &sum_out<2, &at::cpu::addmm_outf>);
    aten.impl("addmm_", &sum_in_place<2, &at::cpu::addmm_>);
    aten.impl("baddbmm", &sum<3, &at::cpu::baddbmm>);
    aten.impl("baddbmm.out", &sum_out<3, &at::cpu::baddbmm_outf>);
    aten.impl("baddbmm_", &sum_in_place<3, &at::cpu::baddbmm_>);
    return true;
  }();
}

}  // namespace fulgur::detail
