#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

class CapturedProgram;

/// Settings of `CapturedProgram::record`.
struct RecordOptions {
  /// Tensors that the caller fills before each replay, such as a batch. Another recording may have others in their
  /// place.
  std::vector<Tensor> inputs;
  /// Tensors, with their names for messages, whose values are kept from the beginning of the step, such as a module's
  /// parameters and buffers. The values of other tensors are kept when an operation first uses them.
  std::vector<std::pair<std::string, Tensor>> state;
  /// The recording of an earlier step of the same kind, or nullptr: the values of the tensors and generators that it
  /// used are kept from the beginning, too.
  const CapturedProgram* previous = nullptr;
  /// Describes the part of the step that runs now, such as a module's name; called for each refused operation. May be
  /// empty.
  std::function<std::string()> place;
  /// For tests and measurements; results do not depend on them. Record the operations inside those that are made of
  /// others; call kernels by their type instead of boxed; replace small operations by simpler ones; let intermediate
  /// results share memory.
  bool open_composites = true, typed_calls = true, simplify = true, plan_memory = true;
};

/// Why a step cannot be replayed.
struct CaptureRefusal {
  std::string operation;  ///< for example `aten::_local_scalar_dense`; or `host code`
  std::string reason;
  std::string place;  ///< from RecordOptions::place
  FULGUR_API std::string text() const;
};

/// What a program consists of.
struct CaptureSummary {
  int64_t operations = 0;  ///< as recorded
  int64_t typed = 0, boxed = 0;
  int64_t exchanged = 0;  ///< of those: results have no `out` overload, so their memory is exchanged after each call
  int64_t views = 0, constants = 0, allocations = 0;  ///< done once
  int64_t planned_bytes = 0;                          ///< memory that intermediate results share
  int64_t separate_bytes = 0;                         ///< memory of results that have their own
  int64_t peak_live_bytes = 0;                        ///< the most that is alive at once, as in an eager step
};

/// A step's operations on CPU tensors, recorded below autograd and replayed without autograd, without allocations if
/// possible, and with the same bits as an eager step. A replay reads and writes the memory that the recorded step read
/// and wrote: parameters, optimizer state, inputs, and results that something still refers to after the recording.
/// Random numbers come from the same generators.
///
/// What a step does outside LibTorch's operations is not replayed: numbers computed on the host keep the values that
/// they had, and branches stay as they were. So `difference` compares recordings of successive steps, and
/// `check_replay` compares a replay with the eager step. Not thread-safe; one recording at a time in a process.
class FULGUR_API CapturedProgram {
 public:
  /// Runs `step` once, eagerly, and records it. All intermediate results stay in memory until `prepare`. If `step`
  /// throws, the tensors and generators that it used get their previous values, and the exception is passed on. Throws
  /// an Error inside another recording.
  static std::unique_ptr<CapturedProgram> record(const std::function<void()>& step, RecordOptions options = {});
  ~CapturedProgram();
  CapturedProgram(const CapturedProgram&) = delete;
  CapturedProgram& operator=(const CapturedProgram&) = delete;

  /// If not empty, the program cannot be prepared or replayed.
  const std::vector<CaptureRefusal>& refusals() const;
  /// What differs between two recordings besides the values of tensors, and so would be frozen in a replay: operations,
  /// shapes, numbers of the host, tensors that are other memory in each step. Names the operation. nullopt if nothing
  /// differs.
  std::optional<std::string> difference(const CapturedProgram& previous) const;
  /// Chooses kernels and memory. Throws an Error if something is refused. Values of intermediate results are lost.
  void prepare();
  /// After `prepare`, once: compares a replay with the recorded step, from the state before it, over all tensors that
  /// the step used and that still exist, and the generators. Names what differs and the operation that wrote it. Ends
  /// with the state after the eager step, or before it if `undo`.
  std::optional<std::string> check_replay(bool undo = false);
  /// Gives the tensors and generators that the recorded step used the values that they had before it. The next replay
  /// repeats this step: it gets what the exchanges (`ExchangeOperation`) of the step have given, and exchanges nothing.
  /// Not after `forget_state`.
  void undo();
  /// Frees the copies of the states before and after the recorded step, which `check_replay` and `undo` need.
  void forget_state();
  /// Runs the step. An exception leaves it half done.
  void replay();

  CaptureSummary summary() const;
  /// The operations by kind and count, one a line, for people.
  std::string listing() const;

 private:
  struct Parts;
  explicit CapturedProgram(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace fulgur
