#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/device/recordable_hooks.h"
#include "fulgur/models/python_model.h"

namespace fulgur {

namespace detail {
class ScriptProgram;
class ExportedPackage;
}  // namespace detail

/// A network that Python exported with `torch.jit.script` or `torch.jit.trace`, trained like any other module: its
/// parameters and buffers are registered here under Python's names and are the tensors of the program. A program runs
/// without the optimizer of TorchScript, so that all calls compute the same bits. With the loss `module`, the file has
/// a method `training_step(inputs…, target)` or `loss(output, target)`, which returns a scalar, or a
/// Dict[str, Tensor] with `loss` and further scalars to be logged; `validation_step` and `test_step` replace
/// `training_step` in their stages.
class FULGUR_API TorchScriptModule : public PythonModel, public RecordableHooks {
 public:
  struct Options {
    std::string path;
    PythonTask task = {};
    void fields(Fields& f);
  };
  /// Reads the file. Throws a ConfigError for one that is missing, damaged or no TorchScript module.
  explicit TorchScriptModule(const Options& options);
  ~TorchScriptModule() override;

  /// Throws a ConfigError in a fit if the network has no parameters, or the loss no method.
  void setup(TrainerFn fn) override;
  /// Copies tensors that the program has assigned to its buffers into the registered ones.
  void on_after_backward() override;
  Outputs forward(const std::vector<Tensor>& inputs) override;
  /// The bytes of a TorchScript file of the program with its present weights, in eval mode.
  std::string torchscript();

 protected:
  Computed compute(const Batch& batch, const std::string& stage) override;
  size_t number_of_inputs() const override;

 private:
  std::string method_for(const std::string& stage) const;
  std::unique_ptr<detail::ScriptProgram> program_;
};

/// A network that Python compiled with `torch.export` and `aoti_compile_and_package` (a `.pt2` package), for
/// validation, test and prediction. It runs on the kind of device for which it was compiled. A package contains native
/// code, which is loaded at the first batch.
class FULGUR_API TorchExportModule : public PythonModel {
 public:
  struct Options {
    std::string path;
    PythonTask task = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError for a file that is missing, damaged, or no package of AOTInductor.
  explicit TorchExportModule(const Options& options);
  ~TorchExportModule() override;

  /// Throws a ConfigError in a fit: a package cannot be trained.
  void setup(TrainerFn fn) override;
  Outputs forward(const std::vector<Tensor>& inputs) override;

 protected:
  size_t number_of_inputs() const override { return 1; }

 private:
  std::string path_;
  std::unique_ptr<detail::ExportedPackage> package_;
};

}  // namespace fulgur
