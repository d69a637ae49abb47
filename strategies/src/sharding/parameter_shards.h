#pragma once

#include <c10/core/Storage.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fulgur/capture/operation_watch.h"
#include "sharding/optimizer_shards.h"

namespace fulgur::detail {

/// How errors about units that are away name what divides them.
struct UnitNaming {
  std::string strategy = "fsdp";
  /// What else a user can do to read parameters anywhere: "or use …"; empty: nothing.
  std::string instead = "or use strategy: fsdp with sharding: gradients";
};

/// Keeps this rank's part of the parameters only (ZeRO, stage 3: Rajbhandari et al., 2020). A unit is gathered when an
/// operation of a forward or a backward reads one of its parameters, and freed when an operation reads another unit.
/// The order of the last step says which unit is gathered in advance, while the one before it computes.
///
/// A parameter that is not there has memory which cannot be read: an access outside of forward and backward fails with
/// an error that names the unit. Graphs keep views of parameters, so the memory of a gathered unit is always the same
/// storage, whose data comes and goes.
class ParameterShards {
 public:
  /// `groups` must outlive this. With `notes_changes`, `has_changed` says whether anything was written to parameters.
  explicit ParameterShards(ShardGroups& groups, UnitNaming naming = {}, bool notes_changes = false);
  ~ParameterShards();
  ParameterShards(const ParameterShards&) = delete;
  ParameterShards& operator=(const ParameterShards&) = delete;

  /// Takes a unit, whose part this rank keeps, and frees it. It must outlive this. Returns the storage that its
  /// parameters have while it is free.
  c10::Storage add(FlatUnit& flat);
  /// From now on operations of this thread gather what they read, until `end_backward`.
  void begin_forward();
  /// The same for a forward without a backward, until `end_evaluation`. If not `all_compute` it, the first rank that
  /// does says which unit is gathered, and a rank that does not only takes part in that, and returns at the end of the
  /// others. All ranks must call both.
  void begin_evaluation(bool computes, bool all_compute);
  void end_evaluation();
  /// Frees what the forward has kept, except the unit that it read last.
  void begin_backward();
  /// Frees all units. If a forward `follows`, its operations are watched without `begin_forward`.
  void end_backward(bool follows);
  /// Frees all units before a step changes the parts.
  void before_step();
  /// Stops watching, and frees all units; what was written to whole parameters stays.
  void divide();
  /// Divides, until `resume` watches again if operations were watched here. The thread's state in between, such as
  /// c10::InferenceMode, must not keep what it was before.
  void pause();
  void resume();
  /// Stops watching, and gives the parameters, whole, memory on `device` that they share with no other. All ranks must
  /// call it; nothing can be gathered afterwards.
  void give_back(at::Device device);
  /// Whether a unit is gathered now.
  bool has_whole(size_t unit) const { return units_[unit].is_there; }
  /// A buffer with the parts of all ranks of a unit. All ranks must call it, also within a forward or a backward.
  Tensor whole(size_t unit);
  /// The same, of parameter `index` of the unit.
  Tensor copy_of(size_t unit, size_t index);
  /// Gathers one unit after the other, and calls `use` while it is there. All ranks must call it, outside of forward
  /// and backward.
  void for_each_whole(const std::function<void(const FlatUnit&)>& use);
  /// Whether the bits of a unit's part here have changed since it was added. Waits for the device.
  bool has_changed() const;
  /// Gathers all units until `release`, also within a forward or a backward. All ranks must call it.
  void hold();
  void release();
  bool is_held() const { return held_ > 0; }
  /// Whether the memory of a parameter is that of its unit. It is not after `set_data`.
  bool holds(const Tensor& parameter) const;
  /// Compares the parts of this rank with those of the ranks that have copies, bit by bit; all ranks must call it.
  /// Throws a DistributedError that names a parameter of a unit that differs.
  void check_copies();
  /// Ranks that gather units in different orders would get wrong values of units with the same size. Each sixteenth
  /// call starts a comparison with the other ranks of this group, and the sixteenth one after it reads the result,
  /// without a wait, and throws a DistributedError if the orders differ. All ranks must call it after the same steps.
  void compare_order();
  /// Compares all until now, and waits for the result.
  void check_order();
  /// From here to `end_recording`, a step is recorded (`GraphCapture`), not computed: no gather happens.
  void begin_recording();
  /// Returns the gathers of the step, for `note_launch`.
  std::vector<size_t> end_recording();
  /// After a recording that has failed, within the step or after it: as if it had not begun. What it has gathered has
  /// no values, which are not copied to the parts.
  void drop_recording() noexcept;
  /// A launch gathers what was recorded, in that order.
  void note_launch(const std::vector<size_t>& exchanges);
  /// Stops watching. Parameters that are not whole can never be read again: the other ranks are gone.
  void abandon() noexcept;

 private:
  enum Pass { forward, backward };
  enum Purpose { training, evaluation };
  /// The units that were gathered, in their order: in this forward and backward, and in those before.
  struct Order {
    std::vector<size_t> now, last;
  };
  struct Unit {
    FlatUnit* flat = nullptr;
    c10::Storage whole, away;  // of the parameters, while they are there or not
    int64_t bytes = 0;         // of the storage
    bool is_there = true;
    c10::intrusive_ptr<c10d::Work> on_its_way;  // the exchange that was started in advance
    std::vector<int64_t> versions;              // of the parameters, when they were gathered
    std::array<int64_t, 2> gathers{};           // in each pass of this step
    std::array<bool, 2> is_kept{};              // until the end of the pass: it is read too often to be freed
  };
  void begin(Purpose purpose);
  void use(at::TensorList tensors);
  void gather_all();
  void start(size_t index);
  /// The unit that the first rank which computes gathers next; -1: none any more. Throws a DistributedError if this
  /// rank computes and gathers another one.
  int64_t agree(int64_t own);
  void follow();
  void gather(size_t index);
  void arrive(Unit& unit);
  /// `what`: the number of a unit that is gathered for operations; that and the number of units for a copy.
  void note_exchange(size_t what);
  void start_comparison();
  /// Reads the comparison that was started.
  void settle_order();
  /// `was_held`: code outside of passes has had it.
  void free(Unit& unit, bool was_held = false);
  void free_all(bool was_held = false);
  /// Leaves units that are on their way.
  void free_all_but(const std::vector<size_t>& wanted, bool kept_too, bool was_held = false);
  void note(size_t unit);
  void start_next();
  void put_away(Unit& unit);
  void watch();
  void stop() noexcept;

  ShardGroups& groups_;
  UnitNaming naming_;
  bool notes_changes_;
  Tensor changed_;  // a flag on the device; undefined: nothing has been compared yet
  std::vector<Unit> units_;
  std::unordered_map<const c10::StorageImpl*, size_t> unit_of_;  // by either storage
  Pass pass_ = forward;
  std::array<Order, 2> orders_;  // by purpose
  Order* order_ = orders_.data();
  int64_t exchanges_ = 0;  // a hash of all exchanges, in their order
  /// A step that is recorded, and what it changes on the host.
  struct RecordedStep {
    std::vector<size_t> exchanges;
    std::array<Order, 2> orders;
    std::vector<std::array<bool, 2>> were_kept;  // of each unit
    std::vector<bool> were_there;
  };
  std::optional<RecordedStep> recorded_;
  std::unique_ptr<PendingReduction> compared_;
  int64_t until_comparison_ = 1, first_backwards_ = 2;
  bool follows_ = false;              // this step has gathered in the last order so far
  std::optional<int64_t> announcer_;  // the rank that says what is gathered, if not all compute
  bool computes_ = true;
  bool watches_ = false;
  bool is_paused_ = false;               // it watched before
  int held_ = 0;                         // calls of `hold` that are not released
  std::optional<OperationWatch> watch_;  // a process has one at a time
};

}  // namespace fulgur::detail
