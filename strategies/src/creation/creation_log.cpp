#include "creation/creation_log.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "operations/calls_above_autograd.h"
#include "operations/operator_arguments.h"
#include "sharding/storages.h"

namespace fulgur::detail {
namespace {

// These read only the shape of what they write.
bool writes_all(const c10::OperatorHandle& op) {
  return is_one_of(op, {"aten::normal_", "aten::uniform_", "aten::fill_", "aten::zero_", "aten::copy_",
                        "aten::exponential_", "aten::log_normal_", "aten::cauchy_"});
}

bool fills_its_memory(const Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.storage_offset() == 0 &&
         tensor.nbytes() == tensor.storage().nbytes();
}

c10::Storage new_memory(size_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                            c10::GetCPUAllocator()->allocate(bytes),
                                                            c10::GetCPUAllocator(), /*resizable=*/false));
}

c10::Storage memory_without_values(size_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                            at::DataPtr(nullptr, at::kMeta), /*allocator=*/nullptr,
                                                            /*resizable=*/false));
}

// Draws as the operation did.
class DrawsFrom {
 public:
  DrawsFrom(const c10::OperatorHandle& op, torch::jit::Stack& stack, const at::Generator& generator) {
    if (!generator.defined()) return;
    const auto& schema = op.schema().arguments();
    for (size_t i = 0; i < schema.size(); ++i)
      if (schema[i].name() == "generator") {
        stack[i] = generator.clone();
        return;
      }
    // It has no such argument.
    at::Generator common = at::detail::getDefaultCPUGenerator();
    before_ = common.get_state();
    common.set_state(at::Generator(generator).get_state());
  }
  ~DrawsFrom() {
    if (!before_.defined()) return;
    at::Generator common = at::detail::getDefaultCPUGenerator();
    common.set_state(before_);
  }
  DrawsFrom(const DrawsFrom&) = delete;
  DrawsFrom& operator=(const DrawsFrom&) = delete;

 private:
  Tensor before_;
};

}  // namespace

bool CreationLog::has(const Tensor& tensor) const {
  return tensor.defined() && tensor.has_storage() && of_module_.contains(tensor.storage().unsafeGetStorageImpl());
}

void CreationLog::add_memory(const Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const size_t index = memory_.size();
  if (!of_module_.emplace(storage.unsafeGetStorageImpl(), index).second) return;
  c10::Storage of_log = memory_without_values(storage.nbytes());
  of_log_.emplace(of_log.unsafeGetStorageImpl(), index);
  // Code that asks for the memory would get a null pointer otherwise.
  storage.unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
  memory_.push_back({.of_module = storage.getWeakStorageImpl(), .of_log = std::move(of_log)});
}

Tensor CreationLog::in_log(const Tensor& tensor) const {
  Tensor moved = tensor.detach();
  set_storage(moved, memory_[of_module_.at(tensor.storage().unsafeGetStorageImpl())].of_log);
  return moved;
}

c10::IValue CreationLog::moved_to_log(const c10::IValue& value, std::vector<size_t>* found) const {
  c10::IValue moved = value;
  change_tensors_of(moved, [&](const Tensor& tensor) {
    if (!has(tensor)) return tensor.detach().clone();
    if (found) found->push_back(of_module_.at(tensor.storage().unsafeGetStorageImpl()));
    return in_log(tensor);
  });
  return moved;
}

void CreationLog::add(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                      std::span<const c10::IValue> results, const at::Generator& generator) {
  const UnseenCalls unseen;
  const at::NoGradGuard no_grad;
  Operation added{.op = op,
                  .arguments = {},
                  .results = {},
                  .reads = {},
                  .writes = {},
                  .makes = {},
                  .overwrites = {},
                  .generator = generator};
  const auto& schema = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    added.arguments.push_back(moved_to_log(arguments[i], is_written(schema[i]) ? &added.writes : &added.reads));
  for (const c10::IValue& result : results)
    each_tensor_of(result, [&](const Tensor& tensor) {
      if (has(tensor)) return;
      added.makes.push_back(memory_.size());
      add_memory(tensor);
    });
  for (const c10::IValue& result : results) added.results.push_back(moved_to_log(result, nullptr));
  if (writes_all(op) && arguments[0].isTensor() && fills_its_memory(arguments[0].toTensor()) &&
      std::ranges::find(added.reads, added.writes.front()) == added.reads.end())
    added.overwrites = added.writes.front();
  operations_.push_back(std::move(added));
}

std::vector<const CreationLog::Operation*> CreationLog::operations_of(size_t memory) const {
  std::unordered_set<size_t> needed{memory};
  std::vector<const Operation*> found;
  for (const Operation& operation : operations_ | std::views::reverse) {
    if (needed.empty()) break;
    const auto is_needed = [&](size_t one) { return needed.contains(one); };
    if (std::ranges::none_of(operation.writes, is_needed) && std::ranges::none_of(operation.makes, is_needed)) continue;
    found.push_back(&operation);
    for (const size_t made : operation.makes) needed.erase(made);
    if (operation.overwrites) needed.erase(*operation.overwrites);
    needed.insert(operation.reads.begin(), operation.reads.end());
    for (const size_t written : operation.writes)
      if (operation.overwrites != written) needed.insert(written);
  }
  std::ranges::reverse(found);
  return found;
}

Tensor CreationLog::with_values(const Tensor& in_log, Values& values) const {
  const c10::StorageImpl* const memory = in_log.storage().unsafeGetStorageImpl();
  auto [place, is_new] = values.try_emplace(of_log_.at(memory));
  if (is_new) place->second = new_memory(memory->nbytes());
  return at::empty({0}, at::TensorOptions().dtype(in_log.scalar_type()))
      .set_(place->second, in_log.storage_offset(), in_log.sizes(), in_log.strides());
}

void CreationLog::execute(const Operation& operation, Values& values) const {
  torch::jit::Stack stack;
  for (c10::IValue argument : operation.arguments) {
    change_tensors_of(argument, [&](const Tensor& tensor) {
      // Operations may write to copies of arguments, too.
      return tensor.is_meta() ? with_values(tensor, values) : tensor.clone();
    });
    stack.push_back(std::move(argument));
  }
  {
    const DrawsFrom draws(operation.op, stack, operation.generator);
    operation.op.callBoxed(&stack);
  }
  const auto adopt = [&](const Tensor& computed, const Tensor& in_log) {
    const size_t memory = of_log_.at(in_log.storage().unsafeGetStorageImpl());
    if (std::ranges::find(operation.makes, memory) == operation.makes.end()) return;
    const bool is_alike =
        computed.strides() == in_log.strides() && computed.storage_offset() == in_log.storage_offset();
    if (is_alike && computed.storage().nbytes() >= in_log.storage().nbytes())
      values.insert_or_assign(memory, computed.storage());
    else
      with_values(in_log, values).copy_(computed);
  };
  for (size_t i = 0; i < stack.size() && i < operation.results.size(); ++i) {
    std::vector<Tensor> computed, expected;
    each_tensor_of(stack[i], [&](const Tensor& tensor) { computed.push_back(tensor); });
    each_tensor_of(operation.results[i], [&](const Tensor& tensor) { expected.push_back(tensor); });
    for (size_t k = 0; k < computed.size() && k < expected.size(); ++k) adopt(computed[k], expected[k]);
  }
}

Tensor CreationLog::compute(const Tensor& in_log) const {
  const UnseenCalls unseen;
  const at::NoGradGuard no_grad;
  Values values;
  for (const Operation* operation : operations_of(of_log_.at(in_log.storage().unsafeGetStorageImpl())))
    execute(*operation, values);
  const Tensor computed = with_values(in_log, values);
  values.clear();
  if (fills_its_memory(computed)) return computed;
  return at::empty_strided(in_log.sizes(), in_log.strides(), computed.options()).copy_(computed);
}

std::vector<CreationLog::Use> CreationLog::memory_in_use() const {
  std::vector<Use> uses;
  for (const auto& [memory, index] : of_module_)
    if (const size_t tensors = memory_[index].of_module.use_count(); tensors > 0)
      uses.push_back({.memory = memory, .tensors = tensors});
  return uses;
}

}  // namespace fulgur::detail
