// What the files of gpu_bench share: a case of the plan, the device, the random data that peers/work.py makes too.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fulgur/core/device/accelerator.h"
#include "fulgur/core/state/batch.h"

namespace gpu_bench {

using nlohmann::json;

/// One case of the plan, as benchmarks/gpu/cases.py writes it.
struct Case {
  json values;
  std::string scratch;  ///< folder for a run's files
  const fulgur::Accelerator* accelerator;

  at::Device device() const { return accelerator->device(0); }
  int64_t number(const char* name) const { return values.at(name).get<int64_t>(); }
  int64_t number_or(const char* name, int64_t otherwise) const { return values.value(name, otherwise); }
  std::string text(const char* name, const std::string& otherwise) const { return values.value(name, otherwise); }
  bool is(const char* name) const { return values.value(name, false); }
};

/// A case that cannot run here, and why.
struct NotMeasured : std::runtime_error {
  using std::runtime_error::runtime_error;
};

double wall_seconds();
/// Times that the host has waited for the device, where libhost_waits.so is preloaded; else -1.
int64_t host_waits();

/// Stamps a run: work up to the first stamp is warm-up; each following one ends a stretch. Waits for the device at
/// stamps only.
class Stretches {
 public:
  explicit Stretches(const Case& work) : work_(work) {}
  void stamp();
  /// Seconds and waits by step.
  json samples(int64_t steps) const;

 private:
  struct Mark {
    double at;
    int64_t waits_before, waits_after;  // of the stamp's own wait
  };
  const Case& work_;
  std::vector<Mark> marks_;
};

/// The weights that peers have: matrices normal with `gain` / sqrt(inputs) (or 0.02 where gain is 0), biases of 0, the
/// rest as it is.
void fill_weights(const torch::nn::Module& module, double gain);
int64_t count_parameters(const torch::nn::Module& module);

/// Batches that are on the device. `image` is classes of images, `rows` of rows, else tokens.
std::vector<fulgur::Batch> make_batches(const Case& work);

json run_training(const Case& work);
json run_optimizer(const Case& work);
json run_input(const Case& work);
json run_counts(const Case& work);

}  // namespace gpu_bench
