// Registers a twin for every CUDA kernel of LibTorch, when this library is loaded.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "operator.h"

namespace simulated_cuda {
namespace {

// These need no twin: only the host or the allocator does work.
const std::set<std::string> kUntouched = {"aten::empty.memory_format",
                                          "aten::empty_strided",
                                          "aten::record_stream",
                                          "aten::resize_",
                                          "aten::_resize_output_",
                                          "aten::_pin_memory",
                                          "aten::is_pinned",
                                          "aten::_efficientzerotensor",
                                          "aten::is_set_to",
                                          "aten::_copy_from",
                                          "aten::_copy_from_and_resize",
                                          "aten::_has_same_storage_numel",
                                          "aten::_fused_sdp_choice",
                                          "aten::_cudnn_rnn_flatten_weight",
                                          "aten::_use_cudnn_ctc_loss",
                                          "aten::_use_cudnn_ctc_loss.Tensor",
                                          "aten::_use_miopen_ctc_loss",
                                          "aten::_use_miopen_ctc_loss.Tensor"};

// In these, the host waits for the size of the result, or for the status of a solver.
const std::set<std::string> kSynchronizing = {"aten::nonzero",
                                              "aten::nonzero.out",
                                              "aten::masked_select",
                                              "aten::masked_select.out",
                                              "aten::_unique2",
                                              "aten::_unique",
                                              "aten::unique_dim",
                                              "aten::unique_consecutive",
                                              "aten::unique_dim_consecutive",
                                              "aten::bincount",
                                              "aten::repeat_interleave.Tensor",
                                              "aten::equal",
                                              "aten::fake_quantize_per_channel_affine_cachemask",
                                              "aten::nonzero_static",
                                              "aten::mode"};
const char* const kSolvers[] = {"aten::linalg_", "aten::_linalg_",         "aten::_cholesky", "aten::cholesky",
                                "aten::lu_",     "aten::triangular_solve", "aten::geqrf",     "aten::ormqr"};
// Despite their names, these are not solvers.
const char* const kNoSolvers[] = {"aten::linalg_vector_norm", "aten::linalg_cross"};
// The host code of these needs functions of libraries that the stand-ins do not have.
const char* const kLibraries[] = {"aten::convolution_backward", "aten::_fft_", "aten::slow_conv", "aten::_slow_conv"};

// A tensor with one of these layouts consists of several tensors or other data.
constexpr c10::DispatchKey kLayouts[] = {c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCsrCUDA,
                                         c10::DispatchKey::NestedTensorCUDA, c10::DispatchKey::QuantizedCUDA};

template <size_t N>
bool begins(const std::string& name, const char* const (&prefixes)[N]) {
  return std::any_of(std::begin(prefixes), std::end(prefixes),
                     [&](const char* prefix) { return name.rfind(prefix, 0) == 0; });
}

bool contains_any(const std::string& name, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(), [&](const char* word) { return name.find(word) != name.npos; });
}

HandWrittenTwins hand_written() {
  HandWrittenTwins twins;
  add_random_twins(twins);
  add_recurrent_twins(twins);
  add_layer_twins(twins);
  add_norm_twins(twins);
  add_convolution_twins(twins);
  add_attention_twins(twins);
  add_optimizer_twins(twins);
  return twins;
}

// Moves the weights into one buffer and makes them views of it, as cuDNN's operation does. The layout of cuDNN's buffer
// is not reproduced.
at::Tensor flatten_weights(at::TensorList weights, int64_t, c10::SymInt, int64_t, c10::SymInt, c10::SymInt, int64_t,
                           bool, bool) {
  const at::NoGradGuard no_grad;
  int64_t count = 0;
  for (const at::Tensor& weight : weights) count += weight.numel();
  const at::Tensor buffer = at::empty({count}, weights.front().options());
  int64_t place = 0;
  for (const at::Tensor& weight : weights) {
    const at::Tensor share = buffer.narrow(0, place, weight.numel()).view(weight.sizes());
    share.copy_(weight);
    weight.set_(buffer.storage(), place, weight.sizes(), share.strides());
    place += weight.numel();
  }
  return buffer;
}

// Under autocast, LibTorch casts to float16, even if autocast uses bfloat16, and arranges the weights in cuDNN's
// buffer, whose size the stand-in does not know. Here the weights are passed one by one.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> rnn_under_autocast(
    const at::Tensor& input, at::TensorList weights, int64_t stride, const std::optional<at::Tensor>& buffer,
    const at::Tensor& hx, const std::optional<at::Tensor>& cx, int64_t mode, c10::SymInt hidden, c10::SymInt projection,
    int64_t layers, bool batch_first, double dropout, bool train, bool bidirectional, c10::SymIntArrayRef batch_sizes,
    const std::optional<at::Tensor>& dropout_state) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastCUDA);
  const auto cast = [](const at::Tensor& value) { return at::autocast::cached_cast(at::kHalf, value, c10::kCUDA); };
  std::vector<at::Tensor> cast_weights;
  for (const at::Tensor& weight : weights) cast_weights.push_back(cast(weight));
  const bool is_short = weights.front().scalar_type() == at::kHalf;
  return at::_cudnn_rnn_symint(cast(input), cast_weights, stride, is_short ? buffer : std::nullopt, cast(hx),
                               cx && cx->defined() ? std::optional(cast(*cx)) : std::nullopt, mode, std::move(hidden),
                               std::move(projection), layers, batch_first, dropout, train, bidirectional, batch_sizes,
                               dropout_state);
}

// A negative control: no use on another stream is recorded. The operation, c10's device interface and NCCL's process
// group all call the allocator, so its table of virtual functions gets a function that does nothing.
void break_record_stream() {
  using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  void (Allocator::*const method)(const c10::DataPtr&, c10::cuda::CUDAStream) = &Allocator::recordStream;
  uintptr_t place =
      0;  // offset in bytes, plus one: the representation of a pointer to a virtual function in the ABI of Linux
  static_assert(sizeof method >= sizeof place);
  std::memcpy(&place, &method, sizeof place);
  auto* const table = *reinterpret_cast<char**>(c10::cuda::CUDACachingAllocator::get());
  void (*const nothing)(Allocator*, const c10::DataPtr&, c10::cuda::CUDAStream) = [](Allocator*, const c10::DataPtr&,
                                                                                     c10::cuda::CUDAStream) {};
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  char* const slot = table + (place - 1);
  auto* const page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot) / page_bytes * page_bytes);
  TORCH_CHECK(mprotect(page, page_bytes, PROT_READ | PROT_WRITE) == 0, "SIMULATED_CUDA_BREAK=record_stream: no access");
  std::memcpy(slot, &nothing, sizeof nothing);
  mprotect(page, page_bytes, PROT_READ);
}

// Suppresses LibTorch's warning that a kernel is replaced.
struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

class Registration {
 public:
  Registration()
      : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__),
        autocast_(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastCUDA, __FILE__, __LINE__) {
    Silent silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    const HandWrittenTwins twins = hand_written();
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findOp(name);
      if (name.name.rfind("aten::", 0) != 0 || !op || !op->hasSchema()) continue;
      add(*op, name, twins);
    }
    for (const c10::DispatchKey key : kLayouts)
      for (const auto& name : dispatcher.getAllOpNames())
        if (const auto op = dispatcher.findOp(name); op && op->hasSchema() && op->hasKernelForDispatchKey(key))
          add_of_layout(*op, name, key);
    library_.impl("_cudnn_rnn_flatten_weight", flatten_weights);
    autocast_.impl("_cudnn_rnn", rnn_under_autocast);
    const char* const broken = std::getenv("SIMULATED_CUDA_BREAK");
    if (broken != nullptr && std::string(broken) == "record_stream") break_record_stream();
  }

 private:
  void add(const c10::OperatorHandle& op, const c10::OperatorName& operator_name, const HandWrittenTwins& twins) {
    const std::string& base = operator_name.name;
    const std::string name = operator_name.overload_name.empty() ? base : base + "." + operator_name.overload_name;
    const auto by_hand = twins.find(name);
    // `copy_` and `convolution_backward` have one kernel for all devices.
    const bool for_all_devices =
        name == "aten::copy_" || name == "aten::convolution_backward" || by_hand != twins.end();
    if (!op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) && !for_all_devices) return;
    if (kUntouched.count(name) || base == "aten::set_") return;
    if (contains_any(base, {"sparse", "nested", "quantize"}) && !contains_any(base, {"fake_quantize"}))
      return add_of_layout(op, operator_name, c10::DispatchKey::CUDA);
    const auto& returns = op.schema().returns();
    if (std::any_of(returns.begin(), returns.end(),
                    [](const c10::Argument& r) { return r.alias_info() && !r.alias_info()->isWrite(); }))
      return;  // a view
    const std::string unqualified = name.substr(6);
    Operator::Description description{.name = name, .mode = Mode::beside, .twin = {}, .random = false};
    if (name == "aten::_local_scalar_dense") {
      library_.impl(unqualified.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostRead>(
                                             op.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA))));
      return;
    }
    if (by_hand != twins.end()) {
      description.mode = by_hand->second.mode;
      description.twin = by_hand->second.twin;
    } else if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
      library_.impl(unqualified.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RefusedOperator>(
                                             op.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA))));
      return;
    } else if (name == "aten::copy_") {
      description.mode = Mode::copy;
    } else if (kSynchronizing.count(name) || (begins(base, kSolvers) && !begins(base, kNoSolvers))) {
      description.mode = Mode::synchronizing;
    } else if (begins(base, kLibraries)) {
      description.mode = Mode::instead;
    }
    const auto tags = op.getTags();
    description.random = std::find(tags.begin(), tags.end(), at::Tag::nondeterministic_seeded) != tags.end();
    auto cuda_kernel = op.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA);
    library_.impl(unqualified.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                           std::make_unique<Operator>(std::move(cuda_kernel), std::move(description))));
  }

  void add_of_layout(const c10::OperatorHandle& op, const c10::OperatorName& operator_name, c10::DispatchKey key) {
    const size_t colons = operator_name.name.find("::");
    const std::string space = operator_name.name.substr(0, colons);
    auto& library = libraries_[{space, key}];
    if (!library) library = std::make_unique<torch::Library>(torch::Library::IMPL, space, key, __FILE__, __LINE__);
    std::string name = operator_name.name.substr(colons + 2);
    if (!operator_name.overload_name.empty()) name += "." + operator_name.overload_name;
    SparseTwin twin;
    if (const auto found = sparse_twins().find(name);
        space == "aten" && key == c10::DispatchKey::SparseCUDA && found != sparse_twins().end())
      twin = found->second;
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<LayoutOperator>(
                                    op.getComputedKernelForDispatchKey(key), std::move(twin))));
  }

  torch::Library library_, autocast_;
  std::map<std::pair<std::string, c10::DispatchKey>, std::unique_ptr<torch::Library>> libraries_;
};

// Never destroyed: kernels cannot be removed while other threads may run them.
[[maybe_unused]] const auto* const registration = new Registration;

}  // namespace
}  // namespace simulated_cuda
