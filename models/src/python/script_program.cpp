#include "python/script_program.h"

#include <c10/util/Exception.h>
#include <c10/util/Flags.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <new>
#include <sstream>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "parts/images.h"
#include "python/archive_check.h"

// Of LibTorch: exceptions of an operation leave the interpreter with their own type, which `auto_micro_batch` needs.
C10_DECLARE_bool(torch_jit_enable_rethrow_caught_exception);

namespace fulgur::detail {
namespace fs = std::filesystem;
namespace {

/// A layer of the program: it holds tensors and a mode, and computes nothing.
class ScriptLayer : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
};

std::string_view without_trace(const std::exception& error) {
  const std::string_view message = error.what();
  const size_t end = std::min(message.find("\nException raised from "), message.find("\nframe #0: "));
  return message.substr(0, end);
}

torch::jit::Module read_script(const fs::path& path, const char* component) {
  const std::string shown = escape_controls(path.string());
  const ArchiveKind kind = check_archive(path, component);
  if (kind != ArchiveKind::script)
    throw ConfigError(cat("[models.", component, "] model.init_args.path must be a TorchScript file; got ", shown,
                          describe_archive(kind, path)));
  try {
    // Weights that were on a GPU in Python begin on the CPU, as those of all modules.
    return torch::jit::load(path.string(), at::Device(at::kCPU));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw ConfigError(cat("[models.", component, "] LibTorch cannot read the TorchScript file ", shown,
                          ". Export it with a version of PyTorch that is not newer; for operators of another library, "
                          "load that library with --plugin. LibTorch says: ",
                          without_trace(error)));
  }
}

bool is_same_memory(const Tensor& a, const Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() && a.numel() > 0 &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type();
}

std::string shapes_of(const std::vector<c10::IValue>& arguments) {
  std::vector<std::string> shapes;
  for (const c10::IValue& argument : arguments)
    shapes.push_back(argument.isTensor() && argument.toTensor().defined() ? shape_text(argument.toTensor().sizes())
                                                                          : std::string(argument.tagKind()));
  return join(shapes);
}

}  // namespace

ScriptProgram::ScriptProgram(const fs::path& path, torch::nn::Module& root, const char* component)
    : path_(escape_controls(path.string())), component_(component), script_(read_script(path, component)) {
  FLAGS_torch_jit_enable_rethrow_caught_exception = true;
  if (!has("forward"))
    throw ConfigError(cat("[models.", component, "] the module in ", path_,
                          " has no method forward. Export a module that defines it."));
  // The first argument is the module, whatever its name is.
  const auto& arguments = script_.get_method("forward").function().getSchema().arguments();
  for (const c10::Argument& argument : c10::ArrayRef<c10::Argument>(arguments).slice(1))
    if (!argument.default_value() && !argument.type()->isSubtypeOf(*c10::TensorType::get()))
      throw ConfigError(cat("[models.", component, "] forward of the module in ", path_,
                            " must take tensors; its argument ", escape_controls(argument.name()), " is ",
                            argument.type()->str(), ". Export a module that wraps it and takes tensors."));
  register_all(script_._ivalue(), root);
}

void ScriptProgram::register_all(const torch::jit::ObjectPtr& object, torch::nn::Module& layer) {
  const c10::ClassTypePtr type = object->type();
  for (size_t i = 0; i < type->numAttributes(); ++i) {
    const std::string& name = type->getAttributeName(i);
    const c10::IValue value = object->getSlot(i);
    if (name == "training" && value.isBool()) {
      modes_.push_back({&layer, object, i});
    } else if (value.isTensor() && value.toTensor().defined()) {
      register_tensor(object, i, layer);
    } else if (type->getAttribute(i)->is_module() && value.isObject()) {
      const torch::jit::ObjectPtr child = value.toObject();
      Layer& made = layers_[child.get()];
      const bool is_new = !made;
      if (is_new) made = std::make_shared<ScriptLayer>(child->type()->name()->name());
      layer.register_module(name, made);
      if (is_new) register_all(child, *made);
    }
  }
}

void ScriptProgram::register_tensor(const torch::jit::ObjectPtr& object, size_t index, torch::nn::Module& layer) {
  const c10::ClassTypePtr type = object->type();
  const std::string& name = type->getAttributeName(index);
  Tensor tensor = object->getSlot(index).toTensor();
  const bool is_parameter = type->is_parameter(index);
  if (!is_parameter && !type->is_buffer(index)) {
    constants_.push_back({object, index, tensor});
    return;
  }
  // Weights that Python tied share memory in the file; here they must be one tensor, which is stepped once.
  for (const Slot& other : slots_) {
    if (!is_parameter || !is_same_memory(other.tensor, tensor)) continue;
    tensor = other.tensor;
    object->setSlot(index, tensor);
  }
  if (is_parameter)
    layer.register_parameter(name, tensor, tensor.requires_grad());
  else
    layer.register_buffer(name, tensor);
  slots_.push_back({object, index, tensor});
}

size_t ScriptProgram::required_arguments(const std::string& method) const {
  const auto& arguments = script_.get_method(method).function().getSchema().arguments();
  return static_cast<size_t>(std::count_if(arguments.begin() + 1, arguments.end(), [](const c10::Argument& argument) {
    return !argument.default_value().has_value();
  }));
}

size_t ScriptProgram::most_arguments(const std::string& method) const {
  return script_.get_method(method).function().getSchema().arguments().size() - 1;
}

void ScriptProgram::set_modes() const {
  for (const Mode& mode : modes_)
    if (mode.object->getSlot(mode.index).toBool() != mode.layer->is_training())
      mode.object->setSlot(mode.index, mode.layer->is_training());
}

// They are no part of the module, so that nothing else moves them.
void ScriptProgram::move_constants(const std::vector<c10::IValue>& arguments) {
  if (constants_.empty() || arguments.empty() || !arguments.front().isTensor()) return;
  const at::Device device = arguments.front().toTensor().device();
  for (const Slot& slot : constants_) {
    const c10::IValue value = slot.object->getSlot(slot.index);
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device() != device)
      slot.object->setSlot(slot.index, value.toTensor().to(device));
  }
}

// An assigned tensor is out of date if another has written the registered one: a checkpoint, or the module of which
// this one is a copy.
void ScriptProgram::follow_registered() {
  for (Slot& slot : slots_) {
    const c10::IValue& value = slot.object->getSlot(slot.index);
    const bool is_own = value.isTensor() && value.toTensor().unsafeGetTensorImpl() == slot.tensor.unsafeGetTensorImpl();
    const int64_t version = slot.tensor._version();
    if (!is_own && version != slot.version) slot.object->setSlot(slot.index, slot.tensor);
    if (is_own || version != slot.version) slot.version = version;
  }
}

// `self.count = self.count + 1` puts another tensor into the program: its value goes into the registered one.
void ScriptProgram::take_back_assigned() {
  for (const Slot& slot : slots_) {
    const c10::IValue& value = slot.object->getSlot(slot.index);
    if (!value.isTensor() || value.toTensor().unsafeGetTensorImpl() == slot.tensor.unsafeGetTensorImpl()) continue;
    const at::NoGradGuard no_grad;
    const Tensor assigned = value.toTensor().detach();
    Tensor own = slot.tensor;
    if (assigned.sizes() == own.sizes())
      own.copy_(assigned);
    else
      own.set_data(assigned.to(own.device(), own.scalar_type()));
    slot.object->setSlot(slot.index, own);
  }
}

c10::IValue ScriptProgram::call(const std::string& method, std::vector<c10::IValue> arguments) {
  set_modes();
  follow_registered();
  move_constants(arguments);
  // TorchScript's optimizer measures the first calls and then rewrites the program, which changes bits.
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  const std::string shapes = shapes_of(arguments);
  std::vector<Tensor> tensors;
  for (const c10::IValue& argument : arguments)
    if (argument.isTensor()) tensors.push_back(argument.toTensor());
  try {
    c10::IValue result = script_.get_method(method)(std::move(arguments));
    if (!at::GradMode::is_enabled()) take_back_assigned();
    return result;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    const std::string hint = hint_for_integer_images(tensors, without_trace(error));
    if (!hint.empty())
      throw ConfigError(cat("[models.", component_, "] ", method, " of ", path_, " fails: ", hint,
                            " LibTorch says: ", without_trace(error)));
    throw Error(cat("[models.", component_, "] ", method, " of ", path_, " fails for arguments of shapes ", shapes,
                    ". Do the entries of the batch fit the module? LibTorch says: ", without_trace(error)));
  }
}

std::string ScriptProgram::bytes() {
  // The next call sets the modes again.
  for (const Mode& mode : modes_) mode.object->setSlot(mode.index, false);
  std::ostringstream out;
  try {
    script_.save(out);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(cat("[models.", component_, "] the module of ", path_,
                    " cannot be written. LibTorch says: ", without_trace(error)));
  }
  return std::move(out).str();
}

}  // namespace fulgur::detail
