#pragma once

#include <ATen/Context.h>

#include <cstdint>
#include <optional>

#include "fulgur/trainer/trainer_options.h"

namespace fulgur::detail {

/// The number of threads as configured, or (`auto`) OMP_NUM_THREADS; nullopt if neither is set.
std::optional<int64_t> given_threads(const Auto<int64_t>& num_threads);

/// The given number, or the number of CPUs this process may use: for work of which nothing is known.
int64_t decide_threads(const Auto<int64_t>& num_threads);

/// `auto`: the number for forward passes of that many multiply-adds. Threads that share little work wait for each other
/// longer than they compute, most of all if other processes use their CPUs.
int64_t threads_for_work(double multiply_adds, int64_t cpus);

/// Sets LibTorch's thread count, and returns it: less than `count`, with a warning, if OpenMP does not give so many.
int64_t set_threads(int64_t count);

/// `deterministic`, `benchmark`, `float32_matmul_precision`, `detect_anomaly` and `debug` of the options: process-wide
/// settings, restored on destruction.
class ProcessSettings {
 public:
  explicit ProcessSettings(const TrainerOptions& options);
  ~ProcessSettings();
  ProcessSettings(const ProcessSettings&) = delete;
  ProcessSettings& operator=(const ProcessSettings&) = delete;

 private:
  /// Precision of float32 matrix products: PyTorch's name, if it has one, and its meaning for each library.
  struct MatmulPrecision {
    std::optional<at::Float32MatmulPrecision> word;
    at::Float32Precision cuda, cpu;
  };
  static MatmulPrecision matmul_precision();
  static void restore(const MatmulPrecision& precision);
  bool algorithms_, warn_only_, cudnn_deterministic_, cudnn_benchmark_, anomaly_, anomaly_nan_;
  std::optional<MatmulPrecision> matmul_;
};

}  // namespace fulgur::detail
