#include "rows.h"

namespace bench {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;
using Rows = std::vector<KernelRow>;

// configs/fashion_mnist_mlp.yaml
Rows mlp() {
  constexpr int64_t kBatch = 64;
  Rows rows;
  add_linear(rows, kBatch, 784, 128, true, /*of_data=*/true);
  add_relu(rows, {kBatch, 128});
  add_linear(rows, kBatch, 128, 10, true);
  add_cross_entropy(rows, kBatch, 10);
  add_adamw(rows, {{128, 784}, {128}, {10, 128}, {10}});
  return rows;
}

// configs/fashion_mnist_cnn.yaml
Rows cnn() {
  constexpr int64_t kBatch = 128;
  Rows rows;
  add_convolution(rows, kBatch, 1, 32, 28, 1, /*of_data=*/true);
  add_batch_norm(rows, kBatch, 32, 28);
  add_max_pool(rows, kBatch, 32, 28);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) add_norm_pool(rows, kBatch, 32, 28, type);
  add_relu(rows, {kBatch, 32, 14, 14});
  add_convolution(rows, kBatch, 32, 64, 14, 1);
  add_batch_norm(rows, kBatch, 64, 14);
  add_max_pool(rows, kBatch, 64, 14);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) add_norm_pool(rows, kBatch, 64, 14, type);
  add_linear(rows, kBatch, 3136, 128, true);
  add_linear(rows, kBatch, 128, 10, true);
  add_cross_entropy(rows, kBatch, 10);
  add_adamw(rows, {{32, 1, 3, 3}, {32}, {32}, {64, 32, 3, 3}, {64}, {64}, {128, 3136}, {128}, {10, 128}, {10}});
  return rows;
}

// configs/cifar10_resnet.yaml: three stages of 16, 32 and 64 channels.
Rows resnet20() {
  constexpr int64_t kBatch = 128;
  Rows rows;
  Shapes shapes{{16, 3, 3, 3}, {16}, {16}};
  add_convolution(rows, kBatch, 3, 16, 32, 1, /*of_data=*/true);
  int64_t width = 16, size = 32;
  for (int stage = 0; stage < 3; ++stage) {
    if (stage > 0) {
      add_convolution(rows, kBatch, width / 2, width, 2 * size, 2);
      shapes.insert(shapes.end(), {{width, width / 2, 3, 3}, {width}, {width}});
    }
    add_convolution(rows, kBatch, width, width, size, 1);
    add_batch_norm(rows, kBatch, width, size);
    add_relu(rows, {kBatch, width, size, size});
    add_sum(rows, kBatch * width, size * size);
    for (int i = stage > 0 ? 1 : 0; i < 6; ++i) shapes.insert(shapes.end(), {{width, width, 3, 3}, {width}, {width}});
    width *= 2;
    size /= 2;
  }
  add_mean_pool(rows, kBatch, 64, 8);
  add_linear(rows, kBatch, 64, 10, true);
  add_cross_entropy(rows, kBatch, 10);
  shapes.insert(shapes.end(), {{10, 64}, {10}});
  add_sgd(rows, shapes);
  return rows;
}

struct GptShape {
  int64_t samples, length, vocabulary, layers, heads, width;
  bool bias;
};

Rows gpt(const GptShape& shape) {
  const int64_t m = shape.samples * shape.length, width = shape.width;
  Rows rows;
  add_embedding(rows, m, shape.vocabulary, width);
  add_layer_norm(rows, m, width, shape.bias);
  add_linear(rows, m, width, 3 * width, shape.bias);
  add_attention(rows, shape.samples, shape.heads, shape.length, width / shape.heads);
  add_linear(rows, m, width, width, shape.bias);
  add_sum(rows, m, width);
  add_linear(rows, m, width, 4 * width, shape.bias);
  add_gelu(rows, m, 4 * width);
  add_linear(rows, m, 4 * width, width, shape.bias);
  add_linear(rows, m, width, shape.vocabulary, false);
  add_cross_entropy(rows, m, shape.vocabulary);
  Shapes shapes{{shape.vocabulary, width}, {shape.length, width}, {width}};
  for (int64_t i = 0; i < shape.layers; ++i)
    for (const auto& of_block :
         Shapes{{width}, {3 * width, width}, {width, width}, {width}, {4 * width, width}, {width, 4 * width}})
      shapes.push_back(of_block);
  add_clipping(rows, shapes);
  add_adamw(rows, shapes);
  return rows;
}

}  // namespace

std::vector<KernelModel> kernel_models() {
  return {
      {"MLP 784-128-10, batch 64", mlp},
      {"CNN of 32 and 64 channels, 28 x 28, batch 128", cnn},
      {"ResNet-20, 32 x 32, batch 128", resnet20},
      {"GPT of shakespeare_char, 12 x 64 tokens",
       [] {
         return gpt(
             {.samples = 12, .length = 64, .vocabulary = 65, .layers = 4, .heads = 4, .width = 128, .bias = false});
       }},
      {"GPT of C9, 8 x 256 tokens",
       [] {
         return gpt(
             {.samples = 8, .length = 256, .vocabulary = 256, .layers = 6, .heads = 6, .width = 384, .bias = true});
       }},
  };
}

}  // namespace bench
