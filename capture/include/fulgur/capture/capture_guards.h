#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// What a recording depends on besides the values of tensors: the training mode of modules; the memory, shape, strides,
/// dtype and requires_grad of tensors. It also keeps the settings of LibTorch by which kernels are chosen.
class FULGUR_API CaptureGuards {
 public:
  CaptureGuards();
  /// The module's parameters and buffers, and all its modules. `module` must outlive this.
  explicit CaptureGuards(torch::nn::Module& module);
  ~CaptureGuards();
  CaptureGuards(CaptureGuards&& other) noexcept;
  CaptureGuards& operator=(CaptureGuards&& other) noexcept;
  CaptureGuards(const CaptureGuards&) = delete;
  CaptureGuards& operator=(const CaptureGuards&) = delete;
  void add(const std::string& name, const Tensor& tensor);
  /// What has changed, for display; nullopt if a recording is still valid. Takes some nanoseconds per tensor.
  std::optional<std::string> changed() const;

 private:
  struct Settings;
  struct GuardedTensor;
  struct GuardedModule;
  std::unique_ptr<Settings> settings_;
  std::vector<GuardedTensor> tensors_;
  std::vector<GuardedModule> modules_;
};

}  // namespace fulgur
