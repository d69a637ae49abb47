// C4: images in memory, and how a loader of them is measured; peers/images.py is the same in Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/scalar_tensor.h>

#include <array>

#include "bench.h"
#include "fulgur/checkpoint/safetensors.h"

namespace bench {

using at::Tensor;

constexpr double kScale = 1 / (255 * 0.3530), kShift = -0.2860 / 0.3530;
constexpr int64_t kPixels = 28 * 28;
constexpr double kWork = 50e-6, kConsumer = 1e-3;
constexpr int kConsumed = 200;

/// (N, 28, 28) uint8 to float32 with mean 0 and deviation 1, in one pass.
inline Tensor normalise(const Tensor& x) {
  static const Tensor shift = at::scalar_tensor(kShift);
  return at::add(shift, x, kScale);
}

/// The transform of a costly sample: reads the image until it has taken 50 µs of this thread's CPU time.
inline void work_on(const uint8_t* image) {
  const double end = read_clock(CLOCK_THREAD_CPUTIME_ID) + kWork;
  volatile uint64_t sum = 0;
  while (read_clock(CLOCK_THREAD_CPUTIME_ID) < end)
    for (int64_t i = 0; i < kPixels; ++i) sum = sum + image[i];
}

/// Images, labels, and their order in each epoch.
struct Images {
  Tensor x, y, order;
  explicit Images(const Arguments& arguments) {
    for (const auto& [name, value] : fulgur::read_safetensors(arguments.text("inputs") + "/images.safetensors").tensors)
      (name == "x" ? x : name == "y" ? y : order) = value;
    const int64_t samples = arguments.number("samples");
    if (samples < x.size(0)) {
      x = x.narrow(0, 0, samples).contiguous();
      y = y.narrow(0, 0, samples).contiguous();
      order = order.masked_select(order.lt(samples)).view({-1, samples});
    }
  }
};

/// A loader as it is measured: `start` begins an epoch, `next` gives normalised images (N, 28, 28) and labels.
struct Source {
  virtual ~Source() = default;
  virtual void start(int64_t epoch) = 0;
  virtual bool next(Tensor& x, Tensor& y) = 0;
};

/// Epoch 0 is a warm-up in which the contents are summed up, the last one has a consumer that computes for 1 ms.
inline void measure(const Arguments& arguments, Source& source) {
  const std::string name = arguments.text("case");
  const int64_t epochs = arguments.number("epochs");
  Tensor x, y;
  double images = 0, labels = 0, first_image = 0;
  source.start(0);
  for (int64_t i = 0; source.next(x, y); ++i) {
    images += x.mean(at::kDouble).item<double>();
    labels += y.sum().item<double>() * static_cast<double>(i % 7 + 1);
    if (i == 0) first_image = x[0].mean().item<double>();
  }
  auto samples = nlohmann::json::array();
  for (int64_t epoch = 1; epoch <= epochs; ++epoch) {
    const double cpu = cpu_seconds(), wall = wall_seconds();
    source.start(epoch);
    source.next(x, y);
    const double first = wall_seconds() - wall;
    while (source.next(x, y)) {
    }
    samples.push_back({{"cpu_s", cpu_seconds() - cpu}, {"wall_s", wall_seconds() - wall}, {"first_s", first}});
  }
  double waited = 0;
  source.start(epochs + 1);
  source.next(x, y);
  int batches = 0;
  for (; batches < kConsumed; ++batches) {
    const double until = wall_seconds() + kConsumer;
    while (wall_seconds() < until) {
    }
    const double before = wall_seconds();
    if (!source.next(x, y)) break;
    waited += wall_seconds() - before;
  }
  samples.push_back({{"gap_s", waited / std::max(batches, 1)}});
  write_report(arguments, {{"cases", {{name, samples}}}, {"contents", {{name, {images, labels, first_image}}}}});
}

}  // namespace bench
