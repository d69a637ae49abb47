#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/models/torch_modules.h"
#include "parts/images.h"
#include "python/archive_check.h"
#include "python/exported_package.h"

namespace fulgur {
namespace {

constexpr const char* kExportModule = "TorchExportModule";
constexpr const char* kModelName = "model";  // the default of aoti_compile_and_package
constexpr const char* kDeviceKey = "AOTI_DEVICE_KEY";

/// A compiled package is linked against libtorch.so but does not say in which folder it is. The linker drops that
/// library from programs in C++, for it has no symbols. Its place is found here as that of libtorch_cpu.so was.
void load_libraries_of_packages() {
  [[maybe_unused]] static void* const torch = ::dlopen("libtorch.so", RTLD_NOW | RTLD_GLOBAL);
}

std::string_view first_of_trace(const std::exception& error) {
  const std::string_view message = error.what();
  return message.substr(0, std::min(message.find("\nException raised from "), message.find("\nframe #0: ")));
}

std::string shapes_of_inputs(const std::vector<Tensor>& inputs) {
  std::vector<std::string> shapes;
  for (const Tensor& input : inputs)
    shapes.push_back(cat(c10::toString(input.scalar_type()), " ", shape_text(input.sizes())));
  return join(shapes);
}

}  // namespace

namespace detail {

ExportedPackage::ExportedPackage(const std::string& path, const at::Device& device)
    : path_(escape_controls(path)), device_(device) {
  using Loader = torch::inductor::AOTIModelPackageLoader;
  try {
    const auto metadata = Loader::load_metadata_from_package(path, kModelName);
    const auto kind = metadata.find(kDeviceKey);
    const std::string wanted = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
    if (kind != metadata.end() && kind->second != wanted)
      throw ConfigError(cat("[models.TorchExportModule] ", path_, " is compiled for the device ",
                            escape_controls(kind->second), "; the run computes on ", wanted,
                            ". Set trainer.accelerator, or compile the model on that device."));
    load_libraries_of_packages();
    // One run at a time, on the run's thread and stream.
    loader_ = std::make_unique<Loader>(path, kModelName, /*run_single_threaded=*/true, /*num_runners=*/1,
                                       device.has_index() ? device.index() : c10::DeviceIndex(-1));
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw ConfigError(
        cat("[models.TorchExportModule] LibTorch cannot load the package ", path_,
            ". Compile it on this machine with the same version of PyTorch. LibTorch says: ", first_of_trace(error)));
  }
}

std::vector<at::Tensor> ExportedPackage::run(const std::vector<at::Tensor>& inputs) {
  try {
    return loader_->run(inputs);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string hint = hint_for_integer_images(inputs, first_of_trace(error));
    if (!hint.empty())
      throw ConfigError(
          cat("[models.TorchExportModule] ", path_, " fails: ", hint, " LibTorch says: ", first_of_trace(error)));
    throw Error(
        cat("[models.TorchExportModule] ", path_, " fails for inputs ", shapes_of_inputs(inputs),
            ". A package computes with the dtypes and shapes of its export; a size that varies, such as that of "
            "the batch, needs dynamic_shapes there. LibTorch says: ",
            first_of_trace(error)));
  }
}

}  // namespace detail

void TorchExportModule::Options::fields(Fields& f) {
  f(path, "path", "Package (.pt2) of torch._inductor.aoti_compile_and_package.").required();
  task.fields(f);
}

TorchExportModule::TorchExportModule(const Options& options)
    : PythonModel(detail::checked_options(options, "models.TorchExportModule").task, kExportModule),
      path_(options.path) {
  // A package reads memory by the shapes of its export, and compares those of its inputs only if this is set when it
  // runs for the first time.
  ::setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", /*overwrite=*/0);
  const detail::ArchiveKind kind = detail::check_archive(options.path, kExportModule);
  if (kind != detail::ArchiveKind::compiled_package)
    throw ConfigError(
        cat("[models.TorchExportModule] model.init_args.path must be a package of "
            "torch._inductor.aoti_compile_and_package; got ",
            escape_controls(options.path), detail::describe_archive(kind, options.path)));
}

TorchExportModule::~TorchExportModule() = default;

void TorchExportModule::setup(TrainerFn fn) {
  if (fn == TrainerFn::fit)
    throw ConfigError(
        "[models.TorchExportModule] a package of AOTInductor has no backward and cannot be trained. Export the model "
        "with torch.jit.script(model).save(\"net.pt\"), and train it with the model TorchScriptModule.");
  if (task().loss == NamedLoss::module && fn != TrainerFn::predict)
    throw ConfigError(
        "[models.TorchExportModule] a package has no loss. Choose one with model.init_args.loss, such as "
        "cross_entropy.");
}

Outputs TorchExportModule::forward(const std::vector<Tensor>& inputs) {
  if (inputs.empty()) throw DataError("[models.TorchExportModule] the batch has no tensor.");
  const at::Device device = inputs.front().device();
  if (!package_ || package_->device() != device) package_ = std::make_unique<detail::ExportedPackage>(path_, device);
  const std::vector<Tensor> values = package_->run(inputs);
  Outputs outputs;
  for (size_t i = 0; i < values.size(); ++i) outputs.add(values.size() == 1 ? "output" : cat("output", i), values[i]);
  return outputs;
}

[[maybe_unused]] static const bool registered_torch_export_module = Registry<LightningModule>::add<TorchExportModule>(
    "TorchExportModule", "A network compiled by torch.export in Python, to validate, test and predict.");

}  // namespace fulgur
