// What a batch costs; not run by default: build/release/bin/test_data '[speed]'. Compare figures of one run on a quiet
// machine.
#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randperm.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdio>
#include <vector>

#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/tensor_dataset.h"

namespace loader_speed_test {

using namespace fulgur;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kSamples = 60000, kBatch = 64;

double us_since(Clock::time_point start, int64_t batches) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / static_cast<double>(batches);
}

/// The best of some epochs, in µs a batch.
template <class Epoch>
double best_us(Epoch epoch) {
  double best = 1e9;
  for (int64_t e = 0; e < 5; ++e) {
    const auto start = Clock::now();
    best = std::min(best, us_since(start, epoch(e)));
  }
  return best;
}

}  // namespace

TEST_CASE("time of a batch of 64 x 784 float, shuffled", "[.][speed]") {
  const auto dataset = std::make_shared<TensorDataset>(Batch(
      {Batch::Entry{"image", at::rand({kSamples, 784})}, Batch::Entry{"label", at::arange(kSamples, at::kLong)}}));
  std::string row = cat("index_select ",
                        format_fixed(best_us([&](int64_t) {
                                       const Tensor order = at::randperm(kSamples);
                                       int64_t batches = 0;
                                       for (int64_t begin = 0; begin + kBatch <= kSamples; begin += kBatch, ++batches) {
                                         const Tensor index = order.narrow(0, begin, kBatch);
                                         const Tensor image = dataset->samples()[0].index_select(0, index),
                                                      label = dataset->samples()[1].index_select(0, index);
                                       }
                                       return batches;
                                     }),
                                     1));
  for (const int64_t workers : {0, 1, 2}) {
    DataLoader loader(dataset, {.batch_size = kBatch, .shuffle = true, .num_workers = workers});
    row += cat(" | workers ", workers, ": ",
               format_fixed(best_us([&](int64_t epoch) {
                              loader.start_epoch(epoch);
                              Batch batch;
                              int64_t batches = 0;
                              while (loader.next(batch)) ++batches;
                              return batches;
                            }),
                            1));
  }
  std::printf("us/batch: %s\n", row.c_str());
}

}  // namespace loader_speed_test
