#include "setup/process_settings.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <cstdlib>

#include "fulgur/core/system/granted_threads.h"
#include "fulgur/core/system/usable_cpus.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

std::optional<int64_t> given_threads(const Auto<int64_t>& num_threads) {
  if (num_threads.value) return num_threads.value;
  if (const char* text = std::getenv("OMP_NUM_THREADS"); text && std::atoll(text) > 0) return std::atoll(text);
  return std::nullopt;
}

int64_t decide_threads(const Auto<int64_t>& num_threads) { return given_threads(num_threads).value_or(usable_cpus()); }

int64_t threads_for_work(double multiply_adds, int64_t cpus) {
  // Some half a millisecond of one thread: a hundred times what it takes to start and join the threads of an operation.
  constexpr double kWorkOfThread = 32e6;
  return static_cast<int64_t>(std::clamp(multiply_adds / kWorkOfThread, 1.0, static_cast<double>(cpus)));
}

int64_t set_threads(int64_t count) {
  const int granted = granted_threads(static_cast<int>(count));
  if (granted < count)
    log::warn("trainer.few_threads",
              cat("num_threads is ", count, ", but OpenMP gives ", granted, granted == 1 ? " thread" : " threads",
                  ": OMP_THREAD_LIMIT is smaller. The run computes with ", granted));
  if (at::get_num_threads() != granted) at::set_num_threads(granted);
  return granted;
}

namespace {

using at::Float32Backend;
using at::Float32MatmulPrecision;
using at::Float32Op;

const char* word_of(Float32MatmulPrecision precision) {
  return precision == Float32MatmulPrecision::HIGHEST ? "highest"
         : precision == Float32MatmulPrecision::HIGH  ? "high"
                                                      : "medium";
}

}  // namespace

ProcessSettings::MatmulPrecision ProcessSettings::matmul_precision() {
  const auto& context = at::globalContext();
  MatmulPrecision now{.word = {},
                      .cuda = context.float32Precision(Float32Backend::CUDA, Float32Op::MATMUL),
                      .cpu = context.float32Precision(Float32Backend::MKLDNN, Float32Op::MATMUL)};
  try {
    now.word = context.float32MatmulPrecision();
  } catch (const c10::Error&) {
    // The program has set the libraries individually, so no single name describes the setting.
  }
  return now;
}

void ProcessSettings::restore(const MatmulPrecision& precision) {
  auto& context = at::globalContext();
  if (precision.word) context.setFloat32MatmulPrecision(word_of(*precision.word));
  context.setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL, precision.cuda);
  context.setFloat32Precision(Float32Backend::MKLDNN, Float32Op::MATMUL, precision.cpu);
}

ProcessSettings::ProcessSettings(const TrainerOptions& options) {
  auto& context = at::globalContext();
  algorithms_ = context.deterministicAlgorithms();
  warn_only_ = context.deterministicAlgorithmsWarnOnly();
  cudnn_deterministic_ = context.deterministicCuDNN();
  cudnn_benchmark_ = context.benchmarkCuDNN();
  anomaly_ = torch::autograd::AnomalyMode::is_enabled();
  anomaly_nan_ = torch::autograd::AnomalyMode::should_check_nan();
  if (options.benchmark) context.setBenchmarkCuDNN(*options.benchmark);
  if (options.deterministic.enabled) {
    // cuBLAS is deterministic only with a workspace of fixed size, which it reads from here.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    context.setDeterministicAlgorithms(true, options.deterministic.warn_only);
    context.setDeterministicCuDNN(true);
    context.setBenchmarkCuDNN(false);
  }
  if (options.float32_matmul_precision) {
    matmul_ = matmul_precision();
    context.setFloat32MatmulPrecision(*options.float32_matmul_precision);
  }
  if ((options.detect_anomaly || options.debug) && !options.barebones)
    torch::autograd::AnomalyMode::set_enabled(true, /*check_nan=*/true);
}

ProcessSettings::~ProcessSettings() {
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(algorithms_, warn_only_);
  context.setDeterministicCuDNN(cudnn_deterministic_);
  context.setBenchmarkCuDNN(cudnn_benchmark_);
  if (matmul_) restore(*matmul_);
  torch::autograd::AnomalyMode::set_enabled(anomaly_, anomaly_nan_);
}

}  // namespace fulgur::detail
