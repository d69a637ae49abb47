#pragma once

#include <ATen/Context.h>

#include <cstdint>
#include <optional>

#include "fulgur/trainer/trainer_options.h"

namespace fulgur::detail {

/// The number of threads of a run: as configured, or (`auto`) OMP_NUM_THREADS, or the number of CPUs this process may
/// use.
int64_t decide_threads(const Auto<int64_t>& num_threads);

/// Sets LibTorch's thread count.
void set_threads(int64_t count);

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
