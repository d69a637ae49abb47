#pragma once

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fulgur::detail {

/// A package of AOTInductor, loaded for one device.
class ExportedPackage {
 public:
  /// Extracts the libraries of the package to a temporary folder and loads them. Throws a ConfigError.
  ExportedPackage(const std::string& path, const at::Device& device);
  const at::Device& device() const { return device_; }
  /// Throws an Error that names the shapes.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);

 private:
  std::string path_;
  at::Device device_;
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
};

}  // namespace fulgur::detail
