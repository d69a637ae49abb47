#include "fulgur/capture/capture_guards.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <utility>

#include "fulgur/core/text/text.h"

namespace fulgur {

struct CaptureGuards::Settings {
  bool deterministic = at::globalContext().deterministicAlgorithms();
  bool mkldnn = at::globalContext().userEnabledMkldnn();
  at::Float32MatmulPrecision precision = at::globalContext().float32MatmulPrecision();
  int threads = at::get_num_threads();
  bool operator==(const Settings&) const = default;
};

struct CaptureGuards::GuardedTensor {
  std::string name;
  Tensor tensor;  // the user's
  const void* memory;
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype;
  bool requires_grad;
};

struct CaptureGuards::GuardedModule {
  std::string name;
  torch::nn::Module* module;
  bool is_training;
};

CaptureGuards::CaptureGuards() : settings_(std::make_unique<Settings>()) {}
CaptureGuards::~CaptureGuards() = default;
CaptureGuards::CaptureGuards(CaptureGuards&& other) noexcept = default;
CaptureGuards& CaptureGuards::operator=(CaptureGuards&& other) noexcept = default;

CaptureGuards::CaptureGuards(torch::nn::Module& module) : CaptureGuards() {
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  modules_.push_back({module.name(), &module, module.is_training()});
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    modules_.push_back({item.key(), item.value().get(), item.value()->is_training()});
}

void CaptureGuards::add(const std::string& name, const Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  tensors_.push_back({name, tensor, tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec(),
                      tensor.scalar_type(), tensor.requires_grad()});
}

std::optional<std::string> CaptureGuards::changed() const {
  for (const GuardedModule& one : modules_)
    if (one.module->is_training() != one.is_training) return cat("the training mode of module '", one.name, "'");
  for (const GuardedTensor& one : tensors_) {
    const auto changed = [&one](const char* what) { return cat("the ", what, " of '", one.name, "'"); };
    if (!one.tensor.has_storage() || one.tensor.scalar_type() != one.dtype) return changed("dtype");
    if (one.tensor.sizes() != one.sizes || one.tensor.strides() != one.strides) return changed("shape or the strides");
    if (one.tensor.const_data_ptr() != one.memory) return changed("memory");
    if (one.tensor.requires_grad() != one.requires_grad) return changed("requires_grad");
  }
  if (*settings_ != Settings())
    return "a setting of LibTorch: deterministic algorithms, oneDNN, the precision of products, or threads";
  return std::nullopt;
}

}  // namespace fulgur
