#include "recorder.h"

#include <ATen/Context.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "fulgur/core/device/recorded_step.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "host_writes.h"
#include "operator_rules.h"
#include "seen_operations.h"

namespace fulgur::detail {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

class Recorder;
thread_local Recorder* active_recorder = nullptr;
// Operations of a recorded step that run on other threads.
std::atomic<bool> recording{false}, used_elsewhere{false};

constexpr const char* kHostCode = "host code";
// A place takes milliseconds to find.
constexpr size_t kMostPlaces = 8;

// Of these, an operation reads no value of its first argument.
bool overwrites(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_";
}

class Recorder {
 public:
  Recorder(const RecordOptions& options, const KnownState& known)
      : options_(options), follows_(options.previous != nullptr) {
    result.before.add(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)));
    for (const at::Generator& generator : known.generators) result.before.add(generator);
    for (const auto& [name, tensor] : options.state) {
      if (!tensor.defined() || !tensor.has_storage() || !tensor.device().is_cpu()) continue;
      names_.try_emplace(storage_of(tensor), name);
      begin_with(tensor.storage());
    }
    for (const Tensor& tensor : options.inputs)
      if (tensor.has_storage() && tensor.device().is_cpu()) begin_with(tensor.storage());
    for (const c10::Storage& storage : known.storages) begin_with(storage);
  }

  /// `whole` runs the kernel unseen, `opened` with the calls in it seen.
  template <class Whole, class Opened>
  void call(const c10::OperatorHandle& op, Stack* stack, const Whole& whole, const Opened& opened) {
    if (always_composite(op)) return opened();
    if (reads_metadata(op)) return whole();
    const size_t arguments = op.schema().arguments().size(), results = op.schema().returns().size();
    RecordedCall call{op, {}, {}};
    for (size_t i = 0; i < arguments; ++i) call.arguments.push_back(frozen((*stack)[stack->size() - arguments + i]));
    save_state(call);
    find_host_writes(call);
    const size_t calls_before = result.calls.size(), refusals_before = result.refusals.size(),
                 made_before = made_.size();
    const bool open = options_.open_composites && may_be_composite(op) && all_plain(call);
    if (open) {
      ++opened_;
      opened();
      --opened_;
    } else {
      whole();
    }
    for (size_t i = 0; i < results; ++i) call.results.push_back(frozen((*stack)[stack->size() - results + i]));
    each_result(call, [this](const Tensor& tensor) {
      if (tensor.has_storage()) made_.try_emplace(storage_of(tensor), Made{tensor.storage(), made_.size()});
    });
    if (open && result.calls.size() > calls_before && result.refusals.size() == refusals_before &&
        do_all(calls_before, call))
      return host_.after(call);
    forget_scratch(calls_before, made_before, call);
    result.calls.erase(result.calls.begin() + static_cast<std::ptrdiff_t>(calls_before), result.calls.end());
    result.refusals.resize(refusals_before);
    if (const auto reason = why_refused(call)) refuse(name_of(op), *reason);
    take_final_shapes(call);
    set_kind(call);
    for (const Tensor& tensor : host_.reads_without_values(call)) refuse_host_write(tensor);
    host_.after(call);
    result.calls.push_back(std::move(call));
  }

  void refuse(const std::string& operation, const std::string& reason) { refuse(operation, reason, place()); }

  /// Call after the step.
  void end() {
    for (const c10::StorageImpl* const storage : host_.changed_since())
      refuse(kHostCode, written_by_host(names_.contains(storage) ? names_.at(storage) : "a tensor"), "");
  }

  RawRecording result;

 private:
  void refuse(const std::string& operation, const std::string& reason, const std::string& place) {
    const bool known = std::ranges::any_of(result.refusals, [&](const CaptureRefusal& one) {
      return one.operation == operation && one.reason == reason && one.place == place;
    });
    // Kept apart from those that are dropped with a composite operation only if new.
    if (!known) result.refusals.push_back({operation, reason, place});
  }

  // What is refused inside of a composite operation is dropped with it.
  std::string place() const { return options_.place && opened_ == 0 ? options_.place() : std::string(); }

  void begin_with(const c10::Storage& storage) {
    result.before.add(storage);
    host_.begin_with(storage);
  }

  static std::string written_by_host(const std::string& what) {
    return cat("it writes the memory of ", what,
               " itself, as by data_ptr() or an accessor, which a replay does not do; write it by operations, such as "
               "copy_ and fill_");
  }

  void refuse_host_write(const Tensor& tensor) {
    const auto name = names_.find(storage_of(tensor));
    refuse(kHostCode, written_by_host(cat(name == names_.end() ? "a tensor" : name->second, " of shape ",
                                          shape_text(tensor.sizes()))));
  }

  void find_host_writes(const RecordedCall& call) {
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      if (call.op.schema().arguments()[i].is_out() || (i == 0 && overwrites(call.op))) continue;
      each_tensor(call.arguments[i], [this](const Tensor& tensor) {
        if (tensor.device().is_cpu() && host_.changed(tensor)) refuse_host_write(tensor);
      });
    }
  }

  // A storage that may be host code's own: it is new in this step, or its memory is not owned.
  void note_place(const Tensor& tensor) {
    c10::StorageImpl* const storage = storage_of(tensor);
    const bool borrowed = is_borrowed(*storage);
    if (borrowed) result.borrowed.try_emplace(storage, checksum_of(*storage));
    if (is_wrapped_number(tensor) || result.places.size() >= kMostPlaces) return;
    if (follows_ || borrowed) result.places.try_emplace(storage, place());
  }

  void save_state(const RecordedCall& call) {
    each_argument(call, [this](const Tensor& tensor) {
      if (!tensor.has_storage() || !tensor.device().is_cpu() || made_.contains(storage_of(tensor)) ||
          result.before.has(storage_of(tensor)))
        return;
      note_place(tensor);
      result.before.add(tensor.storage());
    });
    for (const c10::IValue& value : call.arguments)
      if (value.isGenerator()) result.before.add(value.toGenerator());
  }

  static bool all_plain(const RecordedCall& call) {
    bool plain = true;
    each_argument(call, [&plain](const Tensor& tensor) {
      plain = plain && tensor.layout() == at::kStrided && tensor.device().is_cpu();
    });
    return plain;
  }

  // Whether the calls from `first` on write all results and all arguments that `call` writes. If not, the kernel writes
  // memory itself.
  bool do_all(size_t first, const RecordedCall& call) const {
    std::unordered_set<c10::StorageImpl*> made, given;
    for (size_t k = first; k < result.calls.size(); ++k) {
      const RecordedCall& inner = result.calls[k];
      // The kernel prepares memory for something that is not seen.
      if (changes_memory(inner.op) || inner.op.operator_name().name == "aten::as_strided_") return false;
      if (inner.kind == CallKind::view || inner.kind == CallKind::allocate) continue;
      each_written(inner, [&made](const Tensor& tensor) { made.insert(storage_of(tensor)); });
      each_result(inner, [&made](const Tensor& tensor) { made.insert(storage_of(tensor)); });
    }
    each_argument(call, [&given](const Tensor& tensor) { given.insert(storage_of(tensor)); });
    bool all = true;
    each_result(call, [&](const Tensor& tensor) {
      all = all && (made.contains(storage_of(tensor)) || given.contains(storage_of(tensor)));
    });
    each_written(call, [&](const Tensor& tensor) { all = all && made.contains(storage_of(tensor)); });
    return all;
  }

  // Memory that the calls from `first` on have made inside of `call`, which the kernel may write itself. There were
  // `made_before` results before.
  void forget_scratch(size_t first, size_t made_before, const RecordedCall& call) {
    std::unordered_set<c10::StorageImpl*> known;
    each_argument(call, [&known](const Tensor& tensor) { known.insert(storage_of(tensor)); });
    each_result(call, [&known](const Tensor& tensor) { known.insert(storage_of(tensor)); });
    for (size_t k = first; k < result.calls.size(); ++k)
      each_result(result.calls[k], [&](const Tensor& tensor) {
        c10::StorageImpl* const storage = storage_of(tensor);
        const auto made = made_.find(storage);
        if (made != made_.end() && made->second.number >= made_before && !known.contains(storage) &&
            !result.before.has(storage))
          host_.forget(storage);
      });
  }

  // An `out` that the kernel has enlarged has its final shape from now on, so that a replay does not enlarge it.
  static void take_final_shapes(RecordedCall& call) {
    const auto& arguments = call.op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!arguments[i].is_out() || !call.arguments[i].isTensor()) continue;
      const Tensor given = call.arguments[i].toTensor();
      for (const c10::IValue& one : call.results)
        if (one.isTensor() && one.toTensor().defined() && storage_of(one.toTensor()) == storage_of(given) &&
            one.toTensor().storage_offset() == given.storage_offset() && one.toTensor().sizes() != given.sizes())
          call.arguments[i] = frozen(one);
    }
  }

  static void set_kind(RecordedCall& call) {
    std::unordered_set<c10::StorageImpl*> given;
    each_argument(call, [&given](const Tensor& tensor) { given.insert(storage_of(tensor)); });
    bool writes = false, makes = false;
    each_written(call, [&writes](const Tensor&) { writes = true; });
    each_result(call, [&](const Tensor& tensor) { makes = makes || !given.contains(storage_of(tensor)); });
    if (only_allocates(call.op))
      call.kind = CallKind::allocate;
    else if (changes_metadata(call.op) ||
             (!writes && !makes && !call.results.empty() && !call.op.schema().is_mutable()))
      call.kind = CallKind::view;
    else
      call.kind = makes ? CallKind::makes : CallKind::in_place;
  }

  const RecordOptions& options_;
  const bool follows_;  // another recording
  HostWrites host_;
  std::unordered_map<const c10::StorageImpl*, std::string> names_;  // of the state
  int opened_ = 0;                                                  // composite operations whose calls are being seen
  // Held, since a storage that is freed inside the step could be followed by another one at its address.
  struct Made {
    c10::Storage storage;
    size_t number;  // of those that were there before
  };
  std::unordered_map<c10::StorageImpl*, Made> made_;
};

void record_call(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const DispatchKeySet below = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::Fake);
  const auto whole = [&] {
    const c10::impl::ExcludeDispatchKeyGuard unseen(DispatchKey::Fake);
    op.redispatchBoxed(below, stack);
  };
  if (active_recorder) return active_recorder->call(op, stack, whole, [&] { op.redispatchBoxed(below, stack); });
  // What a watch does for an operation is not seen.
  const c10::impl::ExcludeDispatchKeyGuard unseen(DispatchKey::Fake);
  // Another run may be recording a step: it cannot know whose operation this is.
  if (!show_to_watch(*stack, op.schema().arguments().size()) || recording) used_elsewhere = true;
  op.redispatchBoxed(below, stack);
}

class ActiveRecorder {
 public:
  explicit ActiveRecorder(Recorder& recorder) : include_(DispatchKey::Fake) {
    active_recorder = &recorder;
    used_elsewhere = false;
  }
  ~ActiveRecorder() {
    active_recorder = nullptr;
    recording = false;
  }
  ActiveRecorder(const ActiveRecorder&) = delete;
  ActiveRecorder& operator=(const ActiveRecorder&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
  RecordingCpuStep recording_;
};

}  // namespace

void register_fallback() {
  static std::once_flag once;
  // Never destroyed: at the end of the process, removing it would rebuild the tables of all operators.
  std::call_once(once, [] {
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", std::make_optional(DispatchKey::Fake),
                                                    __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&record_call>());
    library.release();  // NOLINT(bugprone-unused-return-value)
  });
}

std::vector<const StorageUse*> forget_lost_memory(RawRecording& recording, const StorageUses& uses) {
  std::vector<const StorageUse*> lost;
  for (const auto& [storage, use] : uses) {
    if (use.is_made || !is_borrowed(*storage) || use.has_others(/*copies=*/recording.before.has(storage) ? 1 : 0))
      continue;
    recording.before.forget(storage);
    lost.push_back(&use);
  }
  return lost;
}

RawRecording record_calls(const std::function<void()>& step, const RecordOptions& options, const KnownState& known) {
  register_fallback();
  if (recording.exchange(true))
    throw Error("[CapturedProgram.record] a process makes one recording at a time; another one has not ended");
  Recorder recorder(options, known);
  try {
    const ActiveRecorder active(recorder);
    step();
  } catch (...) {
    forget_lost_memory(recorder.result, storage_uses(recorder.result.calls));
    recorder.result.before.restore();
    throw;
  }
  recorder.end();
  if (used_elsewhere) recorder.refuse("the step", "it computes on other threads, whose operations are not seen");
  return std::move(recorder.result);
}

}  // namespace fulgur::detail
