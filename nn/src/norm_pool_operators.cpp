#include "norm_pool_operators.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

#include "fulgur/core/state/typed_operator.h"
#include "norm_kernels.h"
#include "norm_pool_loops.h"

namespace fulgur::nn {
namespace {

using OptionalTensor = std::optional<Tensor>;
using fulgur::detail::typed_operator;

// Sums are in float32 over such a part, and in double over all. For statistics, a part is read twice for each vector of
// channels, so it must fit into the first cache.
constexpr int64_t kWindowsOfPart = 2048, kBytesOfPart = 1 << 14;

struct Shape {
  explicit Shape(const Tensor& images)
      : samples(images.size(0)), channels(images.size(1)), height(images.size(2)), width(images.size(3)) {}
  int64_t pixels() const { return samples * height * width; }
  int64_t window_rows() const { return samples * (height / 2); }
  int64_t windows() const { return width / 2; }
  /// Of the pixel where that row of windows begins.
  int64_t pixel_of(int64_t window_row) const {
    return (window_row / (height / 2) * height + 2 * (window_row % (height / 2))) * width;
  }

  int64_t samples, channels, height, width;
};

template <class Value>
WindowRow<Value> windows_of(const Value* images, const Shape& shape, int64_t window_row) {
  return {images + shape.pixel_of(window_row) * shape.channels, shape.width * shape.channels, shape.windows(),
          shape.channels};
}

// Calls `work(begin, end)` on several threads, if each gets as many values as LibTorch's elementwise operations need.
template <class Work>
void in_parallel(int64_t count, int64_t values_of_each, const Work& work) {
  constexpr int64_t kLeastValues = 32768;
  at::parallel_for(0, count, std::max<int64_t>(1, kLeastValues / values_of_each), work);
}

// Splits `count` things into parts of `size`, and calls `work(part, begin, end)` for each, on several threads.
template <class Work>
void for_parts(int64_t count, int64_t size, int64_t values_of_each, const Work& work) {
  in_parallel((count + size - 1) / size, size * values_of_each, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) work(part, part * size, std::min(count, (part + 1) * size));
  });
}

// Calls `work` with a value of the type of the images.
template <class Work>
void with_type(const Tensor& images, const Work& work) {
  if (images.scalar_type() == at::kBFloat16)
    work(c10::BFloat16());
  else
    work(float());
}

template <class Value>
const Value* read(const Tensor& tensor) {
  return tensor.const_data_ptr<Value>();
}
template <class Value>
Value* write(Tensor& tensor) {
  return tensor.mutable_data_ptr<Value>();
}

// (C) in float32.
std::vector<float> values_of(const Tensor& tensor, int64_t channels) {
  TORCH_CHECK(tensor.dim() == 1 && tensor.size(0) == channels,
              "weights and statistics must have one value for each of ", channels, " channels, but the shape is ",
              tensor.sizes());
  const Tensor values = tensor.to(at::kFloat).contiguous();
  return {read<float>(values), read<float>(values) + channels};
}
// The same, or `otherwise` if undefined.
std::vector<float> values_of(const OptionalTensor& tensor, int64_t channels, float otherwise) {
  if (tensor && tensor->defined()) return values_of(*tensor, channels);
  return std::vector<float>(static_cast<size_t>(channels), otherwise);
}

void check_images(const Tensor& images) {
  TORCH_CHECK(images.dim() == 4 && images.size(2) >= 2 && images.size(3) >= 2 &&
                  (images.scalar_type() == at::kFloat || images.scalar_type() == at::kBFloat16),
              "images must be float32 or bfloat16 of (N, C, H, W) with at least 2 x 2 pixels");
  TORCH_CHECK(images.is_contiguous(at::MemoryFormat::ChannelsLast),
              "images must be contiguous with channels innermost");
}
void check_pooled(const Tensor& pooled, const Tensor& images, at::ScalarType type, const char* name) {
  TORCH_CHECK(
      pooled.scalar_type() == type && pooled.is_contiguous(at::MemoryFormat::ChannelsLast) &&
          pooled.sizes() == at::IntArrayRef({images.size(0), images.size(1), images.size(2) / 2, images.size(3) / 2}),
      name, " must have half the height and width of the images, contiguous with channels innermost");
}

void batch_statistics_out(const Tensor& images, double eps, Tensor& mean, Tensor& var, Tensor& invstd) {
  check_images(images);
  const Shape shape(images);
  const int64_t channels = shape.channels,
                size = std::max<int64_t>(16, kBytesOfPart / (channels * images.element_size()));
  const int64_t parts = (shape.pixels() + size - 1) / size;
  std::vector<float> sums(static_cast<size_t>(3 * parts * channels));
  with_type(images, [&]<class Value>(Value) {
    const Value* const values = read<Value>(images);
    for_parts(shape.pixels(), size, channels, [&](int64_t part, int64_t begin, int64_t end) {
      float* const own = sums.data() + 3 * part * channels;
      run_on_this_processor(
          SumPixels<Value>{values + begin * channels, end - begin, channels, own, own + channels, own + 2 * channels});
    });
  });
  // The parts are merged in double (Chan, Golub and LeVeque 1979, equation 2.1).
  std::vector<double> averages(static_cast<size_t>(channels)), spreads(averages);
  for (int64_t part = 0; part < parts; ++part) {
    const auto before = static_cast<double>(part * size),
               pixels = static_cast<double>(std::min(size, shape.pixels() - part * size));
    const double share = pixels / (before + pixels), inverse = 1 / pixels;
    const float *const means = sums.data() + 3 * part * channels, *const own_sums = means + channels,
                       *const squares = own_sums + channels;
    for (int64_t c = 0; c < channels; ++c) {
      const auto at = static_cast<size_t>(c);
      const double sum = own_sums[c], distance = means[c] + sum * inverse - averages[at];
      spreads[at] += squares[c] - sum * sum * inverse + distance * distance * before * share;
      averages[at] += distance * share;
    }
  }
  for (int64_t c = 0; c < channels; ++c) {
    const double average = averages[static_cast<size_t>(c)], spread = spreads[static_cast<size_t>(c)];
    const double variance =
        spread < 0 ? 0 : spread / static_cast<double>(shape.pixels());  // below 0 by rounding; NaN stays
    write<float>(mean)[c] = static_cast<float>(average);
    write<float>(var)[c] = static_cast<float>(variance);
    // As in LibTorch, equal values without eps are normalised to 0.
    write<float>(invstd)[c] = variance == 0 && eps == 0 ? 0 : static_cast<float>(1 / std::sqrt(variance + eps));
  }
}

template <bool kKeepsWinners>
void norm_pool_out(const Tensor& images, const Tensor& mean, const Tensor& invstd, const OptionalTensor& weight,
                   const OptionalTensor& bias, Tensor& pooled, Tensor& winners, Tensor& winning) {
  check_images(images);
  const Shape shape(images);
  std::vector<float> scale = values_of(weight, shape.channels, 1);
  const std::vector<float> offset = values_of(bias, shape.channels, 0), center = values_of(mean, shape.channels),
                           deviation = values_of(invstd, shape.channels);
  for (size_t c = 0; c < scale.size(); ++c) scale[c] *= deviation[c];
  with_type(images, [&]<class Value>(Value) {
    const auto* const values = read<Value>(images);
    auto* const out = write<Value>(pooled);
    auto* const chosen = write<uint8_t>(winners);
    auto* const won = write<Value>(winning);
    const int64_t row = shape.windows() * shape.channels;
    in_parallel(shape.window_rows(), 4 * row, [&](int64_t begin, int64_t end) {
      for (int64_t y = begin; y < end; ++y) {
        const int64_t kept = kKeepsWinners ? y * row : 0;
        run_on_this_processor(PoolRow<Value, kKeepsWinners>{windows_of(values, shape, y), center.data(), scale.data(),
                                                            offset.data(), out + y * row, chosen + kept, won + kept});
      }
    });
  });
}

// Adds up float32 sums of (parts, 2, C) in double: those of gradients, and those of products.
std::array<std::vector<double>, 2> totals_of(const std::vector<float>& sums, size_t channels) {
  std::array<std::vector<double>, 2> totals{std::vector<double>(channels), std::vector<double>(channels)};
  for (size_t i = 0; i < sums.size(); ++i) totals[i / channels % 2][i % channels] += sums[i];
  return totals;
}

void norm_pool_gradients_out(const Tensor& gradient, const Tensor& images, const Tensor& winners, const Tensor& winning,
                             const Tensor& mean, const Tensor& invstd, const OptionalTensor& weight, bool for_images,
                             Tensor& dx, Tensor& dweight, Tensor& dbias) {
  check_images(images);
  check_pooled(gradient, images, images.scalar_type(), "the gradient");
  check_pooled(winners, images, at::kByte, "winners");
  check_pooled(winning, images, images.scalar_type(), "the values of winners");
  const Shape shape(images);
  const int64_t channels = shape.channels, row = shape.windows() * channels;
  const std::vector<float> center = values_of(mean, channels), deviations = values_of(invstd, channels);
  const int64_t rows_of_part = std::max<int64_t>(1, kWindowsOfPart / shape.windows());
  const int64_t parts = (shape.window_rows() + rows_of_part - 1) / rows_of_part;
  with_type(images, [&]<class Value>(Value) {
    const Value *const values = read<Value>(images), *const dy = read<Value>(gradient);
    const auto* const chosen = read<uint8_t>(winners);
    std::vector<float> sums(static_cast<size_t>(2 * parts * channels));
    const Value* const won = read<Value>(winning);
    for_parts(shape.window_rows(), rows_of_part, 2 * row, [&](int64_t part, int64_t begin, int64_t end) {
      float* const own = sums.data() + 2 * part * channels;
      run_on_this_processor(SumGradients<Value>{dy + begin * row, chosen + begin * row, won + begin * row,
                                                (end - begin) * shape.windows(), channels, center.data(), own,
                                                own + channels});
    });
    const auto [sum, product] = totals_of(sums, static_cast<size_t>(channels));
    // With M values: dx = weight invstd (dy - (x - mean) invstd² product / M - sum / M) (Ioffe and Szegedy 2015,
    // section 3).
    std::vector<float> scale = values_of(weight, channels, 1), slope(scale.size()), offset(scale.size());
    const auto count = static_cast<double>(shape.pixels());
    for (size_t c = 0; c < scale.size(); ++c) {
      const double deviation = deviations[c];
      write<float>(dweight)[c] = static_cast<float>(product[c] * deviation);
      write<float>(dbias)[c] = static_cast<float>(sum[c]);
      const double factor = scale[c] * deviation;
      slope[c] = static_cast<float>(factor * product[c] * deviation / count);
      offset[c] = static_cast<float>(factor * sum[c] / count);
      scale[c] = static_cast<float>(factor);
    }
    if (!for_images) return;
    const ChannelGradients of_channels{center.data(), deviations.data(), slope.data(), offset.data(), scale.data()};
    Value* const out = write<Value>(dx);
    const auto rest = [&](int64_t pixel, int64_t pixels) {
      run_on_this_processor(
          SpreadRest<Value>{values + pixel * channels, pixels, channels, of_channels, out + pixel * channels});
    };
    in_parallel(shape.window_rows(), 4 * row, [&](int64_t begin, int64_t end) {
      for (int64_t y = begin; y < end; ++y) {
        const int64_t pixel = shape.pixel_of(y);
        run_on_this_processor(SpreadGradients<Value>{windows_of(values, shape, y), dy + y * row, chosen + y * row,
                                                     of_channels, out + pixel * channels});
        if (shape.width % 2 != 0) {
          rest(pixel + shape.width - 1, 1);
          rest(pixel + 2 * shape.width - 1, 1);
        }
        const bool last = (y + 1) % (shape.height / 2) == 0;
        if (last && shape.height % 2 != 0) rest(pixel + 2 * shape.width, shape.width);
      }
    });
  });
}

Tensor statistic_of(const Tensor& images) { return at::empty({images.size(1)}, images.options().dtype(at::kFloat)); }

using Three = std::tuple<Tensor, Tensor, Tensor>;
using ThreeGiven = std::tuple<Tensor&, Tensor&, Tensor&>;

void check_statistic(const Tensor& statistic, const Tensor& images) {
  TORCH_CHECK(statistic.scalar_type() == at::kFloat && statistic.is_contiguous() &&
                  statistic.sizes() == at::IntArrayRef({images.size(1)}),
              "results must be float32 with a value for each channel");
}
void check_empty(const Tensor& tensor) {
  TORCH_CHECK(tensor.numel() == 0, "a result that is not computed must be empty");
}

ThreeGiven batch_statistics_out_on_cpu(const Tensor& images, double eps, Tensor& mean, Tensor& var, Tensor& invstd) {
  for (const Tensor* const statistic : {&mean, &var, &invstd}) check_statistic(*statistic, images);
  batch_statistics_out(images, eps, mean, var, invstd);
  return {mean, var, invstd};
}
Three batch_statistics_on_cpu(const Tensor& images, double eps) {
  Tensor mean = statistic_of(images), var = statistic_of(images), invstd = statistic_of(images);
  batch_statistics_out(images, eps, mean, var, invstd);
  return {mean, var, invstd};
}

ThreeGiven norm_pool_out_on_cpu(const Tensor& images, const Tensor& mean, const Tensor& invstd,
                                const OptionalTensor& weight, const OptionalTensor& bias, bool for_gradients,
                                Tensor& pooled, Tensor& winners, Tensor& winning) {
  check_pooled(pooled, images, images.scalar_type(), "the result");
  if (for_gradients) {
    check_pooled(winners, images, at::kByte, "winners");
    check_pooled(winning, images, images.scalar_type(), "the values of winners");
    norm_pool_out<true>(images, mean, invstd, weight, bias, pooled, winners, winning);
  } else {
    check_empty(winners);
    check_empty(winning);
    norm_pool_out<false>(images, mean, invstd, weight, bias, pooled, winners, winning);
  }
  return {pooled, winners, winning};
}
Three norm_pool_on_cpu(const Tensor& images, const Tensor& mean, const Tensor& invstd, const OptionalTensor& weight,
                       const OptionalTensor& bias, bool for_gradients) {
  const at::TensorOptions options = images.options().memory_format(at::MemoryFormat::ChannelsLast);
  const std::array<int64_t, 4> sizes{images.size(0), images.size(1), images.size(2) / 2, images.size(3) / 2};
  Tensor pooled = at::empty(sizes, options);
  Tensor winners = for_gradients ? at::empty(sizes, options.dtype(at::kByte))
                                 : at::empty({0}, images.options().dtype(at::kByte)),
         winning = for_gradients ? at::empty(sizes, options) : at::empty({0}, images.options());
  return norm_pool_out_on_cpu(images, mean, invstd, weight, bias, for_gradients, pooled, winners, winning);
}

// `dx` may have the memory of the images.
ThreeGiven norm_pool_gradients_out_on_cpu(const Tensor& gradient, const Tensor& images, const Tensor& winners,
                                          const Tensor& winning, const Tensor& mean, const Tensor& invstd,
                                          const OptionalTensor& weight, bool for_images, Tensor& dx, Tensor& dweight,
                                          Tensor& dbias) {
  if (for_images) {
    TORCH_CHECK(dx.scalar_type() == images.scalar_type() && dx.sizes() == images.sizes() &&
                    dx.is_contiguous(at::MemoryFormat::ChannelsLast),
                "the gradient of the images must be as the images");
  } else {
    check_empty(dx);
  }
  check_statistic(dweight, images);
  check_statistic(dbias, images);
  norm_pool_gradients_out(gradient, images, winners, winning, mean, invstd, weight, for_images, dx, dweight, dbias);
  return {dx, dweight, dbias};
}
Three norm_pool_gradients_on_cpu(const Tensor& gradient, const Tensor& images, const Tensor& winners,
                                 const Tensor& winning, const Tensor& mean, const Tensor& invstd,
                                 const OptionalTensor& weight, bool for_images) {
  Tensor dx = for_images ? at::empty_like(images) : at::empty({0}, images.options());
  Tensor dweight = statistic_of(images), dbias = statistic_of(images);
  norm_pool_gradients_out(gradient, images, winners, winning, mean, invstd, weight, for_images, dx, dweight, dbias);
  return {dx, dweight, dbias};
}

TORCH_LIBRARY(fulgur_nn, library) {
  library.def("batch_statistics(Tensor images, float eps) -> (Tensor mean, Tensor var, Tensor invstd)");
  library.def(
      "batch_statistics.out(Tensor images, float eps, *, Tensor(a!) mean, Tensor(b!) var, Tensor(c!) invstd) -> "
      "(Tensor(a!), Tensor(b!), Tensor(c!))");
  library.def(
      "norm_pool(Tensor images, Tensor mean, Tensor invstd, Tensor? weight, Tensor? bias, bool for_gradients) -> "
      "(Tensor pooled, Tensor winners, Tensor winning)");
  library.def(
      "norm_pool.out(Tensor images, Tensor mean, Tensor invstd, Tensor? weight, Tensor? bias, bool for_gradients, *, "
      "Tensor(a!) pooled, Tensor(b!) winners, Tensor(c!) winning) -> (Tensor(a!), Tensor(b!), Tensor(c!))");
  library.def(
      "norm_pool_gradients(Tensor gradient, Tensor images, Tensor winners, Tensor winning, Tensor mean, Tensor invstd, "
      "Tensor? weight, bool for_images) -> (Tensor dx, Tensor dweight, Tensor dbias)");
  library.def(
      "norm_pool_gradients.out(Tensor gradient, Tensor images, Tensor winners, Tensor winning, Tensor mean, "
      "Tensor invstd, Tensor? weight, bool for_images, *, Tensor(a!) dx, Tensor(b!) dweight, Tensor(c!) dbias) -> "
      "(Tensor(a!), Tensor(b!), Tensor(c!))");
}

// The gradients are those of NormMaxPoolRelu, which calls the operations below autograd. Calls from above would cut the
// graph without a word.
TORCH_LIBRARY_IMPL(fulgur_nn, Autograd, library) {
  for (const char* name : {"batch_statistics", "batch_statistics.out", "norm_pool", "norm_pool.out",
                           "norm_pool_gradients", "norm_pool_gradients.out"})
    library.impl(name, torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(fulgur_nn, CPU, library) {
  library.impl("batch_statistics", &batch_statistics_on_cpu);
  library.impl("batch_statistics.out", &batch_statistics_out_on_cpu);
  library.impl("norm_pool", &norm_pool_on_cpu);
  library.impl("norm_pool.out", &norm_pool_out_on_cpu);
  library.impl("norm_pool_gradients", &norm_pool_gradients_on_cpu);
  library.impl("norm_pool_gradients.out", &norm_pool_gradients_out_on_cpu);
}

}  // namespace

BatchStatistics batch_statistics(const Tensor& images, double eps) {
  static const auto operation = typed_operator<decltype(batch_statistics_on_cpu)>("fulgur_nn::batch_statistics");
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  auto [mean, var, invstd] = operation.call(images, eps);
  return {mean, var, invstd};
}

std::tuple<Tensor, Tensor, Tensor> norm_pool(const Tensor& images, const BatchStatistics& statistics,
                                             const Tensor& weight, const Tensor& bias, bool for_gradients) {
  static const auto operation = typed_operator<decltype(norm_pool_on_cpu)>("fulgur_nn::norm_pool");
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return operation.call(images, statistics.mean, statistics.invstd, given(weight), given(bias), for_gradients);
}

std::array<Tensor, 3> norm_pool_gradients(const Tensor& gradient, const Tensor& images, const Tensor& winners,
                                          const Tensor& winning, const BatchStatistics& statistics,
                                          const Tensor& weight, bool for_images) {
  static const auto operation = typed_operator<decltype(norm_pool_gradients_on_cpu)>("fulgur_nn::norm_pool_gradients");
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  auto [dx, dweight, dbias] =
      operation.call(gradient, images, winners, winning, statistics.mean, statistics.invstd, given(weight), for_images);
  return {for_images ? dx : Tensor(), dweight, dbias};
}

}  // namespace fulgur::nn
