#include "fulgur/capture/captured_program.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "differences.h"
#include "exchange_log.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "lowering.h"
#include "memory_plan.h"
#include "recorder.h"

namespace fulgur {

using detail::CallKind;
using detail::name_of;
using detail::RecordedCall;
using detail::ReplayCall;
using detail::SavedState;
using detail::StorageUse;

std::string CaptureRefusal::text() const {
  return place.empty() ? cat(operation, ": ", reason) : cat(operation, " in ", place, ": ", reason);
}

struct CapturedProgram::Parts {
  RecordOptions options;
  detail::RawRecording raw;
  detail::StorageUses uses;
  detail::Lowered lowered;
  detail::MemoryPlan memory;
  std::unordered_map<c10::StorageImpl*, std::string> names;  // of options.state
  std::vector<at::Generator> generators;
  detail::ExchangeLog exchanges;    // of the recorded step, until they are not repeated any more
  std::optional<SavedState> after;  // of what existed before the step, and of its results that something refers to
  bool prepared = false, has_state = true, repeats_step = false;
  torch::jit::Stack stack;

  void call(ReplayCall& one);
  void run();
  void repeat_step();
  void keep_results();
  std::string writer_of(const std::vector<c10::StorageImpl*>& storages) const;
  detail::KnownState known() const;
};

void CapturedProgram::Parts::call(ReplayCall& one) {
  if (one.direct) return one.direct->run();
  stack.assign(one.arguments.begin(), one.arguments.end());
  one.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  if (!one.exchanged.empty()) {
    std::vector<Tensor> results;
    for (const c10::IValue& value : stack) {
      if (value.isTensor())
        results.push_back(value.toTensor());
      else if (value.isTensorList())
        for (const Tensor& tensor : value.toTensorVector()) results.push_back(tensor);
    }
    detail::exchange_memory(one.exchanged, results);
  }
  stack.clear();
}

void CapturedProgram::Parts::run() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (ReplayCall& one : lowered.calls) call(one);
}

// Nothing is exchanged: the exchanges get what those of the recorded step got.
void CapturedProgram::Parts::repeat_step() {
  const detail::LoggedExchanges repeat(exchanges, detail::ExchangeMode::repeat);
  run();
}

void CapturedProgram::Parts::keep_results() {
  if (!has_state || after) return;
  after = SavedState::now(raw.before);
  for (const auto& [storage, use] : uses)
    if (use.is_shared()) after->add(use.storage, use.used_bytes);
}

// What a later recording keeps from its beginning.
detail::KnownState CapturedProgram::Parts::known() const {
  detail::KnownState known{.storages = {}, .generators = generators};
  const int64_t copies = raw.before.is_empty() ? 0 : 1;
  for (const auto& [storage, use] : uses)
    if (!use.is_made && use.has_others(copies)) known.storages.push_back(use.storage);
  return known;
}

// Of the storages, one that only host code writes, else the one that the step uses first.
std::string CapturedProgram::Parts::writer_of(const std::vector<c10::StorageImpl*>& storages) const {
  const StorageUse* first = nullptr;
  const auto name_or = [this](c10::StorageImpl* storage, const char* other) {
    const auto found = names.find(storage);
    return found == names.end() ? std::string(other) : found->second;
  };
  for (c10::StorageImpl* const storage : storages) {
    const auto found = uses.find(storage);
    if (found == uses.end())
      return cat(name_or(storage, "a tensor"), ", which no operation uses: host code writes its memory itself");
    const StorageUse& use = found->second;
    const auto order = [](const StorageUse& one) { return std::pair(!one.last_writer.empty(), one.number); };
    if (!first || order(use) < order(*first)) first = &use;
  }
  const std::string what =
      cat(name_or(first->storage.unsafeGetStorageImpl(), "a tensor"), " of shape ", shape_text(first->example.sizes()));
  return first->last_writer.empty() ? cat(what, ", which no operation writes: host code writes its memory itself")
                                    : cat(what, ", which ", first->last_writer, " writes last");
}

CapturedProgram::CapturedProgram(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
CapturedProgram::~CapturedProgram() = default;

std::unique_ptr<CapturedProgram> CapturedProgram::record(const std::function<void()>& step, RecordOptions options) {
  auto parts = std::make_unique<Parts>();
  parts->options = std::move(options);
  const detail::KnownState known =
      parts->options.previous ? parts->options.previous->parts_->known() : detail::KnownState();
  {
    const detail::LoggedExchanges keep(parts->exchanges, detail::ExchangeMode::keep);
    parts->raw = detail::record_calls(step, parts->options, known);
  }
  parts->uses = detail::storage_uses(parts->raw.calls);
  parts->generators = parts->raw.before.generators();
  for (const auto& [name, tensor] : std::exchange(parts->options.state, {}))
    if (tensor.defined() && tensor.has_storage()) parts->names.try_emplace(detail::storage_of(tensor), name);
  parts->options.previous = nullptr;
  for (const StorageUse* const lost : detail::forget_lost_memory(parts->raw, parts->uses)) {
    const auto place = parts->raw.places.find(lost->storage.unsafeGetStorageImpl());
    parts->raw.refusals.push_back({"host code",
                                   cat("it makes a tensor of shape ", shape_text(lost->example.sizes()),
                                       " around its own memory in each step (from_blob); keep the values in one "
                                       "tensor and write it in place, as "
                                       "copy_ does"),
                                   place == parts->raw.places.end() ? std::string() : place->second});
  }
  return std::unique_ptr<CapturedProgram>(new CapturedProgram(std::move(parts)));
}

const std::vector<CaptureRefusal>& CapturedProgram::refusals() const { return parts_->raw.refusals; }

std::optional<std::string> CapturedProgram::difference(const CapturedProgram& previous) const {
  const auto compared = [](const Parts& parts) {
    return detail::ComparedRecording{parts.uses, parts.options.inputs, parts.raw};
  };
  return detail::difference_between(compared(*previous.parts_), compared(*parts_));
}

void CapturedProgram::prepare() {
  Parts& p = *parts_;
  if (p.prepared) return;
  if (!p.raw.refusals.empty())
    throw Error(cat("[CapturedProgram.prepare] every operation of a captured step can be replayed; ",
                    p.raw.refusals.front().text(), "."));
  p.keep_results();
  p.lowered = detail::lower(p.raw.calls, p.uses, p.options);
  p.memory = detail::plan_memory(p.raw.calls.size(), p.lowered, p.options.plan_memory);
  p.prepared = true;
}

std::optional<std::string> CapturedProgram::check_replay(bool undo) {
  Parts& p = *parts_;
  if (!p.prepared || !p.after)
    throw Error("[CapturedProgram.check_replay] a replay is compared after prepare(), while the states are kept.");
  p.raw.before.restore();
  p.repeat_step();
  const SavedState replayed = SavedState::now(*p.after);
  std::optional<std::string> found;
  if (p.after->generators_differ_from(replayed))
    found = "a replay draws other random numbers than the step, in which host code seeds a generator or draws itself";
  else if (p.exchanges.differs)
    found = "a replay sends other values to the other processes than the step";
  else if (const auto differing = p.after->differing(replayed); !differing.empty())
    found = cat("a replay gives other values than the step in ", differing.size(),
                " of the tensors that it uses; the first is ", p.writer_of(differing));
  p.after->restore();
  if (undo) this->undo();
  return found;
}

void CapturedProgram::undo() {
  if (!parts_->has_state) throw Error("[CapturedProgram.undo] the state before the step was forgotten.");
  parts_->keep_results();
  parts_->raw.before.restore();
  parts_->repeats_step = true;
}

void CapturedProgram::forget_state() {
  parts_->raw.before = {};
  parts_->after.reset();
  parts_->has_state = false;
}

void CapturedProgram::replay() {
  if (!parts_->prepared) throw Error("[CapturedProgram.replay] a program is replayed after prepare().");
  if (!parts_->repeats_step) return parts_->run();
  parts_->repeat_step();
  parts_->repeats_step = false;
  parts_->exchanges = {};
}

CaptureSummary CapturedProgram::summary() const {
  const Parts& p = *parts_;
  CaptureSummary summary;
  summary.operations = static_cast<int64_t>(p.raw.calls.size());
  for (const RecordedCall& call : p.raw.calls) {
    if (call.kind == CallKind::view) ++summary.views;
    if (call.kind == CallKind::allocate) ++summary.allocations;
  }
  for (const ReplayCall& call : p.lowered.calls) {
    ++(call.direct ? summary.typed : summary.boxed);
    if (!call.exchanged.empty()) ++summary.exchanged;
  }
  summary.constants = p.lowered.constant_calls;
  summary.planned_bytes = p.memory.planned_bytes;
  summary.separate_bytes = p.memory.separate_bytes;
  summary.peak_live_bytes = p.memory.peak_live_bytes;
  return summary;
}

std::string CapturedProgram::listing() const {
  std::map<std::string, int64_t> counts;
  for (const ReplayCall& call : parts_->lowered.calls) {
    const std::string recorded = name_of(parts_->raw.calls[call.recorded].op), called = name_of(call.op);
    ++counts[cat(call.direct ? "typed " : "boxed ", recorded, recorded == called ? "" : cat(" as ", called),
                 call.exchanged.empty() ? "" : ", memory exchanged")];
  }
  std::string text;
  for (const auto& [line, count] : counts) text += cat(count, " ", line, "\n");
  return text;
}

}  // namespace fulgur
