#include "operator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <optional>
#include <sstream>

#include "cpu_views.h"
#include "fulgur/simulated_cuda/simulated_cuda.h"
#include "philox.h"

namespace simulated_cuda {
namespace {

using torch::jit::Stack;

// During its lifetime, sets what the kernels that this thread launches compute.
struct Kernels {
  explicit Kernels(int kernels) : before(simulated_cuda_set_kernels(kernels)) {}
  ~Kernels() { simulated_cuda_set_kernels(before); }
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  int before;
};

// The arguments of the kernel whose host code runs in this thread; nullptr outside one.
thread_local const std::vector<c10::IValue>* kernel_arguments = nullptr;

struct InKernel {
  explicit InKernel(const std::vector<c10::IValue>& arguments) { kernel_arguments = &arguments; }
  ~InKernel() { kernel_arguments = nullptr; }
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
  Kernels kernels{SIMULATED_CUDA_KERNELS_WITH_NUMBERS};
};

bool inside_a_kernel() { return kernel_arguments != nullptr; }

// True if the tensor is an argument of the kernel whose host code runs: then its values have been computed.
bool is_argument_of_kernel(const at::Tensor& tensor) {
  bool found = false;
  for (const c10::IValue& argument : *kernel_arguments)
    for_each_tensor(argument, [&](const at::Tensor& each) {
      found |= each.has_storage() && tensor.has_storage() && each.storage().is_alias_of(tensor.storage());
    });
  return found;
}

// Thrown if the host code of a kernel reads a value that another kernel inside it computes. Then the host waits, and
// the twin computes all results.
struct ReadsResultInside : std::exception {
  const char* what() const noexcept override {
    return "a kernel's host code reads a value that no kernel has computed";
  }
};

// Makes CPU kernels run below autograd and autocast.
struct PlainDispatch {
  c10::impl::ExcludeDispatchKeyGuard excluded{c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                              c10::autocast_dispatch_keyset |
                                              c10::DispatchKeySet(c10::DispatchKey::Functionalize)};
};

void put(const std::string& name, const at::Tensor& target, const at::Tensor& value) {
  if (!target.defined() || !value.defined()) return;
  if (target.const_data_ptr() == value.const_data_ptr() && target.sizes() == value.sizes() &&
      target.strides() == value.strides())
    return;
  TORCH_CHECK(target.numel() == value.numel(), name, ": a result of the CUDA kernel has the sizes ", target.sizes(),
              ", but that of its CPU twin has ", value.sizes());
  if (target.numel() > 0) target.copy_(value.reshape(target.sizes()));
}

void put(const std::string& name, const c10::IValue& target, const c10::IValue& value) {
  if (target.isTensor() && value.isTensor()) return put(name, target.toTensor(), value.toTensor());
  if (!target.isTensorList() || !value.isTensorList()) return;
  const auto targets = target.toTensorVector(), values = value.toTensorVector();
  for (size_t i = 0; i < std::min(targets.size(), values.size()); ++i) put(name, targets[i], values[i]);
}

// Throws the message of an error in one line that names the operation, without LibTorch's stack trace.
[[noreturn]] void fail_in_one_line(const std::string& name, const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  const std::string line = text.substr(0, text.find('\n'));
  throw std::runtime_error(line.rfind(name, 0) == 0 ? line : name + ": " + line);
}

// Enqueues work on the current stream, like a kernel. An error means that a capture is invalid, which LibTorch's next
// call reports.
void enqueue(std::function<void()> work, const std::string& name, unsigned flags) {
  auto* const argument = new std::function<void()>([work = std::move(work), name] {
    try {
      work();
    } catch (const std::exception& error) {
      fail_in_one_line(name, error);
    }
  });
  simulated_cuda_enqueue(
      c10::cuda::getCurrentCUDAStream().stream(), [](void* f) { (*static_cast<std::function<void()>*>(f))(); },
      argument, [](void* f) { delete static_cast<std::function<void()>*>(f); }, name.c_str(), flags);
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_quantized() && !tensor.is_nested();
}

// The layout of the first argument that is not dense.
std::string layout_of(const std::vector<c10::IValue>& arguments) {
  std::ostringstream text;
  for (const c10::IValue& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (is_dense(tensor) || text.tellp() > 0) return;
      if (tensor.is_nested())
        text << "nested";
      else if (tensor.is_quantized())
        text << "quantized";
      else
        text << tensor.layout();
    });
  return text.str();
}

// Calls a kernel that has no twin. The results are correct if it launches no kernel itself.
void call_without_twin(const c10::SafeKernelFunction& kernel, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const std::string layout = layout_of({stack->end() - static_cast<std::ptrdiff_t>(count), stack->end()});
  const uint64_t refused = simulated_cuda_refused_kernels();
  const Kernels kernels(SIMULATED_CUDA_KERNELS_REFUSED);
  try {
    kernel.callBoxed(op, keys, stack);
  } catch (const c10::NotImplementedError&) {
    throw;
  } catch (const std::exception&) {
    if (simulated_cuda_refused_kernels() == refused) throw;
  }
  if (simulated_cuda_refused_kernels() != refused)
    cudaGetLastError();  // otherwise the next launch would report the error
  TORCH_CHECK_NOT_IMPLEMENTED(simulated_cuda_refused_kernels() == refused,
                              "simulated CUDA computes strided dense tensors only; ", op.operator_name(),
                              layout.empty() ? "" : " of a tensor with the layout ", layout,
                              " has its own kernels (docs/simulated_gpu.md lists what is not simulated)");
}

void put_now(const std::string& name, const at::Tensor& target, const at::Tensor& value) {
  const PlainDispatch plain;
  put(name, CpuViews().of(target), value);
}

// A twin's result on the device: the argument that it is, or a new tensor, which has no numbers yet if they come later.
struct ResultOnDevice {
  const std::string& name;
  const std::vector<c10::IValue>& arguments;
  const Stack& cpu_arguments;  // as the twin got them
  c10::Device device;
  bool later;

  at::Tensor operator()(const at::Tensor& value) const {
    if (!value.defined()) return value;
    for (size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].isTensor() && cpu_arguments[i].isTensor() && value.is_same(cpu_arguments[i].toTensor())) {
        at::Tensor mine = arguments[i].toTensor();
        if (mine.sizes() != value.sizes()) {
          mine.resize_(value.sizes());
          put_now(name, mine, value);
        }
        return mine;
      }
    const at::Tensor made = at::empty_strided(value.sizes(), value.strides(), value.options().device(device));
    if (!later) put_now(name, made, value);
    return made;
  }
};

// Whether the lists of tensors among the arguments lie on more than one device.
bool lists_span_devices(const std::vector<c10::IValue>& arguments) {
  std::optional<c10::Device> first;
  bool several = false;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensorList()) continue;
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!first) first = tensor.device();
      several |= tensor.device() != *first;
    });
  }
  return several;
}

bool runs_later() { return simulated_cuda_runs_later(c10::cuda::getCurrentCUDAStream().stream()) != 0; }

}  // namespace

RandomState Operator::random_state(const std::vector<c10::IValue>& arguments, c10::Device device,
                                   uint64_t advance) const {
  RandomState state;
  if (!description_.random) return state;
  at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device.index());
  for (const c10::IValue& argument : arguments)
    if (argument.isGenerator()) generator = argument.toGenerator();
  const std::lock_guard lock(generator.mutex());
  try {
    state.philox = generator.get<at::CUDAGeneratorImpl>()->philox_cuda_state(advance);
    state.used = true;
  } catch (const c10::Error&) {
    // If the kernel draws numbers, its own host code reports the reason.
  }
  return state;
}

void Operator::run_twin(const c10::OperatorHandle& op, Stack& arguments, const Stack& outputs,
                        const RandomState& random) const {
  const PlainDispatch plain;
  if (description_.twin) return description_.twin({arguments, outputs, random});
  if (random.used) {
    // Other operations that draw numbers use the CPU kernel with a separate generator, seeded from the same state.
    const auto [seed, offset] = random.seed_and_offset();
    const at::Generator generator = at::detail::createCPUGenerator(Draws(seed, offset).bits(0, 0));
    const auto& schema = op.schema().arguments();
    for (size_t i = 0; i < schema.size(); ++i)
      if (const auto* type = schema[i].type()->cast<c10::OptionalType>().get();
          type && type->getElementType()->kind() == c10::TypeKind::GeneratorType)
        arguments[i] = generator;
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments);
}

void Operator::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  // The stream belongs to the device of the first CUDA tensor; for a copy this is the target.
  c10::Device device(c10::kCUDA, c10::cuda::current_device());
  bool strided = true, on_cuda = false;
  const at::Tensor *first = nullptr, *second = nullptr;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (tensor.is_cuda() && !on_cuda) device = tensor.device();
      on_cuda |= tensor.is_cuda();
      if (!is_dense(tensor)) strided = false;
    });
    if (argument.isDevice() && argument.toDevice().is_cuda()) {
      if (!on_cuda && argument.toDevice().has_index()) device = argument.toDevice();
      on_cuda = true;
    }
  }
  if (on_cuda && !strided && !inside_a_kernel()) return call_without_twin(cuda_kernel_, op, keys, stack);
  if (description_.mode == Mode::copy) {
    first = &arguments[0].toTensor();
    second = &arguments[1].toTensor();
    if (!first->is_cuda() || !second->is_cuda() || first->device() != second->device()) strided = false;
    if (inside_a_kernel() && first->is_cpu() && second->is_cuda() && !is_argument_of_kernel(*second))
      throw ReadsResultInside();
  }
  if (on_cuda && strided && inside_a_kernel() && description_.mode == Mode::synchronizing) {
    // An example is the `nonzero` of a mask inside `index`: sizes inside the kernel depend on its result.
    for (const c10::IValue& argument : arguments)
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (!is_argument_of_kernel(tensor)) throw ReadsResultInside();
      });
    const c10::cuda::CUDAGuard guard(device);
    return instead(op, stack, arguments, Mode::synchronizing);
  }
  if (!strided || !on_cuda || inside_a_kernel()) return cuda_kernel_.callBoxed(op, keys, stack);
  // LibTorch computes such a list tensor by tensor, each on the current stream of its device. The CPU's kernel
  // calls the same operations.
  if (op.operator_name().name.rfind("aten::_foreach_", 0) == 0 && lists_span_devices(arguments))
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  if (description_.mode == Mode::instead || description_.mode == Mode::synchronizing) {
    const c10::cuda::CUDAGuard guard(device);
    return instead(op, stack, arguments, description_.mode);
  }
  const size_t below = stack->size() - count;
  try {
    beside(op, keys, stack, arguments, device);
  } catch (const ReadsResultInside&) {
    stack->resize(below);
    stack->insert(stack->end(), arguments.begin(), arguments.end());
    const c10::cuda::CUDAGuard guard(device);
    instead(op, stack, arguments, Mode::synchronizing);
  }
}

void Operator::beside(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
                      const std::vector<c10::IValue>& arguments, c10::Device device) {
  struct Call {
    Stack arguments, outputs;
    RandomState random;
    c10::OperatorHandle op;
  };
  auto call = std::make_shared<Call>(Call{{}, {}, random_state(arguments, device, 0), op});
  {
    const InKernel in_kernel(arguments);
    cuda_kernel_.callBoxed(op, keys, stack);
  }
  const c10::cuda::CUDAGuard guard(device);
  CpuViews views;  // created after the kernel, which may have resized its arguments
  for (const c10::IValue& argument : arguments) call->arguments.push_back(views.of(argument));
  const size_t returns = op.schema().returns().size();
  for (auto value = stack->end() - static_cast<std::ptrdiff_t>(returns); value != stack->end(); ++value)
    call->outputs.push_back(value->isTensor() || value->isTensorList() ? views.of(*value) : *value);
  enqueue(
      [this, call] {
        Stack results = call->arguments;
        run_twin(call->op, results, call->outputs, call->random);
        const PlainDispatch plain;
        for (size_t i = 0; i < std::min(call->outputs.size(), results.size()); ++i)
          put(description_.name, call->outputs[i], results[i]);
      },
      description_.name, SIMULATED_CUDA_NOT_COUNTED);
}

void Operator::instead(const c10::OperatorHandle& op, Stack* stack, const std::vector<c10::IValue>& arguments,
                       Mode mode) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  if (mode == Mode::synchronizing) stream.synchronize();
  // If the host code of a kernel was abandoned, it has not drawn numbers yet.
  const RandomState random = random_state(arguments, stream.device(), description_.mode == Mode::beside ? 4 : 0);
  const bool later = mode == Mode::instead && runs_later();
  CpuViews views;
  Stack cpu_arguments;
  for (const c10::IValue& argument : arguments) cpu_arguments.push_back(views.of(argument));
  Stack results = cpu_arguments;
  // A first run determines only the sizes of the results, and must change nothing.
  if (later)
    for (c10::IValue& value : results)
      if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().clone();
  const Stack first = results;
  {
    RandomState sizes_only = random;
    if (later) sizes_only.philox = at::PhiloxCudaState(0, 0);
    run_twin(op, results, {}, sizes_only);
  }
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(arguments.size()), stack->end());
  auto targets = std::make_shared<Stack>();
  const ResultOnDevice on_device{description_.name, arguments, first, stream.device(), later};
  const size_t returns = op.schema().returns().size();
  for (size_t i = 0; i < returns; ++i) {
    if (results[i].isTensor()) {
      stack->emplace_back(on_device(results[i].toTensor()));
    } else if (results[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& value : results[i].toTensorList()) list.push_back(on_device(value));
      stack->emplace_back(list);
    } else {
      stack->push_back(results[i]);
    }
    targets->push_back(stack->back().isTensor() || stack->back().isTensorList() ? CpuViews().of(stack->back())
                                                                                : stack->back());
  }
  if (!later) return enqueue([] {}, description_.name, 0);  // counted as one kernel
  auto kept = std::make_shared<Stack>(std::move(cpu_arguments));
  enqueue(
      [this, kept, targets, random, op] {
        Stack again = *kept;
        run_twin(op, again, {}, random);
        const PlainDispatch plain;
        for (size_t i = 0; i < targets->size(); ++i) put(description_.name, (*targets)[i], again[i]);
      },
      description_.name, 0);
}

void LayoutOperator::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (inside_a_kernel()) return cuda_kernel_.callBoxed(op, keys, stack);
  if (twin_ && twin_(*stack)) return;
  call_without_twin(cuda_kernel_, op, keys, stack);
}

void HostRead::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const at::Tensor& tensor = stack->back().toTensor();
  if (inside_a_kernel() && !is_argument_of_kernel(tensor)) throw ReadsResultInside();
  cuda_kernel_.callBoxed(op, keys, stack);
}

void RefusedOperator::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(inside_a_kernel(), op.operator_name(),
                              " has no CPU kernel, so simulated CUDA cannot compute its results (docs/simulated_gpu.md "
                              "lists what is not simulated)");
  cuda_kernel_.callBoxed(op, keys, stack);
}

}  // namespace simulated_cuda
