// The rows of benchmarks/kernels.cpp.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace bench {

using Work = std::function<void()>;

/// A kernel at the shape that a model gives it.
struct KernelRow {
  std::string name;
  double bytes =
      0;  ///< that it must read and write, each value once; twice where all must be seen before any is written
  double flops = 0;  ///< a multiply-add is 2, exp is 16, the error function 30
  Work work;
  std::vector<std::pair<std::string, Work>> others;  ///< other kernels that compute the same
};

struct KernelModel {
  std::string name;
  std::function<std::vector<KernelRow>()> rows;
};

std::vector<KernelModel> kernel_models();

Work copy_of(double bytes);                             ///< reads half of the bytes and writes as many
std::vector<std::pair<double, Work>> large_products();  ///< with their FLOPs
Work smallest_call();                                   ///< a kernel on one value

// Rows of one kind: its forward and its backward kernel are called directly, without autograd but in add_norm_pool.

/// m rows by a layer with k inputs and n outputs; `of_data`: its input needs no gradient.
void add_linear(std::vector<KernelRow>& rows, int64_t m, int64_t k, int64_t n, bool bias, bool of_data = false);
/// 3 x 3, padded, channels last; `size`: height and width of the input.
void add_convolution(std::vector<KernelRow>& rows, int64_t batch, int64_t in, int64_t out, int64_t size, int64_t stride,
                     bool of_data = false);
void add_batch_norm(std::vector<KernelRow>& rows, int64_t batch, int64_t channels, int64_t size);
void add_max_pool(std::vector<KernelRow>& rows, int64_t batch, int64_t channels, int64_t size);
/// Batch norm, max pooling and ReLU in one, as BatchNorm2d::forward_max_pool_relu computes them.
void add_norm_pool(std::vector<KernelRow>& rows, int64_t batch, int64_t channels, int64_t size, at::ScalarType type);
void add_mean_pool(std::vector<KernelRow>& rows, int64_t batch, int64_t channels, int64_t size);
void add_relu(std::vector<KernelRow>& rows, const std::vector<int64_t>& shape);
void add_gelu(std::vector<KernelRow>& rows, int64_t m, int64_t n);
void add_sum(std::vector<KernelRow>& rows, int64_t m, int64_t n);
void add_cross_entropy(std::vector<KernelRow>& rows, int64_t m, int64_t classes);
void add_layer_norm(std::vector<KernelRow>& rows, int64_t m, int64_t width, bool bias);
void add_embedding(std::vector<KernelRow>& rows, int64_t m, int64_t vocabulary, int64_t width);
/// Causal, of heads that are columns of one product, as in a block of a GPT.
void add_attention(std::vector<KernelRow>& rows, int64_t samples, int64_t heads, int64_t length, int64_t size);
void add_clipping(std::vector<KernelRow>& rows, const std::vector<std::vector<int64_t>>& shapes);
void add_adamw(std::vector<KernelRow>& rows, const std::vector<std::vector<int64_t>>& shapes);
void add_sgd(std::vector<KernelRow>& rows, const std::vector<std::vector<int64_t>>& shapes);

}  // namespace bench
