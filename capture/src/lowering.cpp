#include "lowering.h"

#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "fulgur/core/state/plain_copy.h"
#include "host_writes.h"
#include "operator_rules.h"
#include "out_overload.h"
#include "reused_memory.h"
#include "transposed_copy.h"

namespace fulgur::detail {
namespace {

using c10::IValue;

// What a call makes.
struct Made {
  std::vector<Tensor> outputs;  // if all results are single new tensors
  bool has_others = false;      // a list, an undefined tensor, or an argument
};

Made made_by(const RecordedCall& call) {
  std::unordered_set<c10::StorageImpl*> given;
  each_argument(call, [&given](const Tensor& tensor) { given.insert(storage_of(tensor)); });
  Made made;
  for (const IValue& result : call.results) {
    if (!result.isTensor() || !result.toTensor().defined() || given.contains(storage_of(result.toTensor())))
      made.has_others = true;
    else
      made.outputs.push_back(result.toTensor());
  }
  return made;
}

bool never_changes(const RecordedCall& call, const StorageUses& uses) {
  if (!makes_constants(call)) return false;
  bool is_kept = true;
  // Host code that writes larger results is found by the comparison of a replay, in which they are computed again.
  each_result(call, [&](const Tensor& tensor) {
    is_kept =
        is_kept && !uses.at(storage_of(tensor)).is_written && tensor.storage().nbytes() <= HostWrites::kMostOfConstants;
  });
  return is_kept;
}

// `zeros` becomes zero_, `clone` becomes copy_.
bool simplify_maker(const std::vector<Tensor>& outputs, ReplayCall& replayed) {
  const std::string_view name = replayed.op.operator_name().name;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  if (outputs.size() != 1) return false;
  if (name == "aten::zeros" || name == "aten::zeros_like" || name == "aten::new_zeros") {
    if (!is_whole_memory(outputs[0])) return false;
    replayed.op = dispatcher.findSchemaOrThrow("aten::zero_", "");
    replayed.arguments = {outputs[0]};
    replayed.direct = make_clear(outputs[0]);
    return true;
  }
  if (name == "aten::clone" || name == "aten::_to_copy") {
    replayed.op = dispatcher.findSchemaOrThrow("aten::copy_", "");
    replayed.arguments = {outputs[0], replayed.arguments[0].toTensor(), false};
    return true;
  }
  return false;
}

// A counter that grows by a number of the host.
std::unique_ptr<DirectCall> increment_of(const ReplayCall& call) {
  if (name_of(call.op) != "aten::add_.Tensor") return nullptr;
  const Tensor &to = call.arguments[0].toTensor(), &by = call.arguments[1].toTensor();
  if (to.dim() != 0 || to.scalar_type() != at::kFloat || by.dim() != 0 || !is_wrapped_number(by) ||
      call.arguments[2].toScalar().toDouble() != 1)
    return nullptr;
  if (by.scalar_type() == at::kDouble) return make_increment(to, static_cast<float>(*by.const_data_ptr<double>()));
  if (by.scalar_type() == at::kLong) return make_increment(to, static_cast<float>(*by.const_data_ptr<int64_t>()));
  return nullptr;
}

// Of operations on small tensors, on which LibTorch works longer to find out what to do, and of copies.
std::unique_ptr<DirectCall> without_overhead(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
  const std::string name = name_of(op);
  if (name == "aten::addmm.out") return make_bias_product(op, arguments);
  if (name != "aten::copy_") return nullptr;
  const Tensor &to = arguments[0].toTensor(), &from = arguments[1].toTensor();
  return is_plain_copy(to, from) ? make_plain_copy(to, from) : make_transposed_copy(to, from);
}

std::vector<Tensor> results_to_exchange(const RecordedCall& call) {
  std::unordered_set<c10::StorageImpl*> given;
  each_argument(call, [&given](const Tensor& tensor) { given.insert(storage_of(tensor)); });
  std::vector<Tensor> exchanged;
  const auto add = [&](const Tensor& tensor) {
    exchanged.push_back(tensor.defined() && !given.contains(storage_of(tensor)) ? tensor : Tensor());
  };
  for (const IValue& result : call.results) {
    if (result.isTensor())
      add(result.toTensor());
    else if (result.isTensorList())
      for (const Tensor& tensor : result.toTensorVector()) add(tensor);
  }
  return exchanged;
}

}  // namespace

Lowered lower(const std::vector<RecordedCall>& calls, const StorageUses& uses, const RecordOptions& options) {
  Lowered lowered;
  lowered.made = made_memories(uses);
  ReusedMemory reused(lowered.made);
  for (size_t k = 0; k < calls.size(); ++k) {
    const RecordedCall& call = calls[k];
    if (call.kind == CallKind::view || call.kind == CallKind::allocate) continue;
    ReplayCall replayed{call.op, {}, {}, nullptr, k};
    for (const IValue& argument : call.arguments) replayed.arguments.push_back(reused.placed(argument));
    if (call.kind == CallKind::makes) {
      if (never_changes(call, uses)) {
        ++lowered.constant_calls;
        each_result(call, [&](const Tensor& tensor) { lowered.constants.insert(storage_of(tensor)); });
        continue;
      }
      const Made made = made_by(call);
      const bool simplified = options.simplify && !made.has_others && simplify_maker(made.outputs, replayed);
      if (!simplified) {
        const auto overload = made.has_others ? std::nullopt : out_overload(call.op);
        if (overload && out_gives_same_bits(call, *overload, made.outputs)) {
          replayed.op = *overload;
          if (options.plan_memory) reused.try_reuse(call, k, *overload, made.outputs, lowered.constants);
          for (const Tensor& output : made.outputs) replayed.arguments.emplace_back(reused.placed(output));
        } else {
          replayed.exchanged = results_to_exchange(call);
        }
      }
    } else if (options.simplify) {
      replayed.direct = increment_of(replayed);
    }
    if (!options.typed_calls) {
      replayed.direct.reset();
    } else {
      if (options.simplify && !replayed.direct) replayed.direct = without_overhead(replayed.op, replayed.arguments);
      if (!replayed.direct) replayed.direct = make_typed_call(replayed.op, replayed.arguments, replayed.exchanged);
    }
    lowered.calls.push_back(std::move(replayed));
  }
  reused.free_replaced();
  return lowered;
}

}  // namespace fulgur::detail
