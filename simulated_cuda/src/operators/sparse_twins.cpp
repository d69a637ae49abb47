// The operations that sparse gradients need, composed of dense operations, which have twins: summing duplicates, and
// adding to a dense tensor.
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "twin.h"

namespace simulated_cuda {
namespace {

using torch::jit::Stack;

// The index of each value if the sparse dimensions are flattened.
at::Tensor flat_places(const at::Tensor& sparse) {
  const at::Tensor indices = sparse._indices();
  at::Tensor places = at::zeros({sparse._nnz()}, indices.options());
  for (int64_t dim = 0; dim < sparse.sparse_dim(); ++dim) places = places * sparse.size(dim) + indices.select(0, dim);
  return places;
}

bool coalesce(Stack& stack) {
  const at::Tensor sparse = stack.back().toTensor();
  if (sparse.is_coalesced()) return false;
  // Waits for the number of indices, as the kernel does.
  auto [places, of_each, counts] = at::_unique2(flat_places(sparse), /*sorted=*/true, /*return_inverse=*/true);
  std::vector<int64_t> sizes = sparse._values().sizes().vec();
  sizes[0] = places.numel();
  const at::Tensor values = at::zeros(sizes, sparse._values().options()).index_add_(0, of_each, sparse._values());
  std::vector<at::Tensor> indices;
  for (int64_t dim = sparse.sparse_dim(); dim-- > 0;) {
    indices.push_back(places.remainder(sparse.size(dim)));
    places = places.floor_divide(sparse.size(dim));
  }
  std::reverse(indices.begin(), indices.end());
  stack.back() = at::_sparse_coo_tensor_unsafe(at::stack(indices), values, sparse.sizes(), values.scalar_type(),
                                               at::kSparse, values.device(), {}, /*is_coalesced=*/true);
  return true;
}

// out = dense + alpha * sparse
bool add_to_dense(Stack& stack) {
  const auto arguments = stack.end() - 4;
  const at::Tensor self = arguments[0].toTensor(), other = arguments[1].toTensor(), out = arguments[3].toTensor();
  if (self.layout() != at::kStrided || out.layout() != at::kStrided || other.layout() != at::kSparse ||
      other.sparse_dim() == 0 || !self.sizes().equals(other.sizes()))
    return false;
  if (!out.is_same(self)) out.resize_(self.sizes()).copy_(self);
  const at::Tensor sum = out.contiguous();
  std::vector<int64_t> sizes = other._values().sizes().vec();
  sizes[0] = -1;
  if (sum.numel() > 0)
    sum.view(sizes).index_add_(0, flat_places(other), other._values().to(sum.scalar_type()), arguments[2].toScalar());
  if (!sum.is_same(out)) out.copy_(sum);
  stack.erase(arguments, stack.end());
  stack.emplace_back(out);
  return true;
}

}  // namespace

const std::map<std::string, SparseTwin>& sparse_twins() {
  static const std::map<std::string, SparseTwin> all = {{"_coalesce", coalesce}, {"add.out", add_to_dense}};
  return all;
}

}  // namespace simulated_cuda
