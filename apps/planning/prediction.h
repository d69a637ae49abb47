#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/options/enum_names.h"
#include "planning/exchange_model.h"
#include "planning/traced_model.h"

namespace fulgur::cli {

inline constexpr double kGiB = 1024.0 * 1024 * 1024;

/// What ranks have only a part of. `ddp`: nothing; the others are values of fsdp's `sharding`.
enum class PlannedSharding { ddp, optimizer, gradients, parameters, hybrid };
inline constexpr PlannedSharding kShardings[] = {PlannedSharding::ddp, PlannedSharding::optimizer,
                                                 PlannedSharding::gradients, PlannedSharding::parameters,
                                                 PlannedSharding::hybrid};
constexpr auto enum_names(PlannedSharding) {
  return std::to_array<EnumName<PlannedSharding>>({{PlannedSharding::ddp, "ddp"},
                                                   {PlannedSharding::optimizer, "optimizer"},
                                                   {PlannedSharding::gradients, "gradients"},
                                                   {PlannedSharding::parameters, "parameters"},
                                                   {PlannedSharding::hybrid, "hybrid"}});
}

/// Options of the run that the plan follows.
struct PlannedRun {
  double bucket_bytes = 25 * 1024.0 * 1024.0;
  bool bucket_views = false;
  bool compresses = false;  ///< gradients are sent in 16 bits
  int64_t accumulate = 1;
  int64_t global_batch = 0;   ///< samples of a step, which decide `accumulate`; 0: not given
  int64_t shard_size = 0;     ///< ranks that have one copy together, with `hybrid`; 0: the devices of a node
  bool whole_saves = false;   ///< whether fsdp saves with `state_dict_type: full`
  bool divided_mesh = false;  ///< whether a mesh evaluates in units and saves parts
  bool tf32 = false;
};

/// Bytes of a rank.
struct PlannedMemory {
  double parameters = 0, gradients = 0, states = 0, buffers = 0, batch = 0, activations = 0, exchange = 0,
         libraries = 0;
  double total() const {
    return parameters + gradients + states + buffers + batch + activations + exchange + libraries;
  }
  /// Names and bytes, in this order.
  std::vector<std::pair<const char*, double>> kinds() const;
  std::pair<const char*, double> largest() const;
};

/// Predictions of time are not more exact than this, and those of memory may be too low by the rest.
inline constexpr double kAsFast = 0.95, kSafeShareOfMemory = 0.91;

struct Prediction {
  Mesh mesh;
  PlannedSharding sharding = PlannedSharding::ddp;
  int64_t batch_size = 0;  ///< of one rank, in one batch of a window
  PlannedMemory memory;
  double limit = 0;           ///< bytes that tensors may have
  std::string obstacle;       ///< why steps do not run; empty if they do
  bool batch_divides = true;  ///< whether the batches of all ranks divide the global batch
  /// Whether the whole module fits beside this rank's other parts.
  bool holds_whole = true;
  /// Whether no part of a run needs the whole module, as with divided parameters and `state_dict_type: sharded`.
  bool stays_divided = false;
  bool starts() const { return holds_whole || stays_divided; }
  double sent_bytes = 0;  ///< by each rank, in a step
  double compute_s = 0, optimizer_s = 0, exchange_s = 0, exposed_s = 0, jitter_s = 0;
  double step_s() const { return compute_s + optimizer_s + exposed_s + jitter_s; }
  double efficiency = 0;  ///< speed of a device, relative to one device alone
  double samples_per_s = 0, tokens_per_s = 0;
  double flops_per_s = 0;  ///< of each device: matrix products
  double save_stall_s = 0, save_every_s = 0, waste = 0;
};

/// Ranks that have one copy of what is divided together.
int64_t ranks_of_copy(PlannedSharding sharding, const Mesh& mesh, const PlannedRun& run);
/// Bytes of a rank.
PlannedMemory memory_of(const ModelSize& model, const StepSize& step, PlannedSharding sharding, const Mesh& mesh,
                        const PlannedRun& run, const HardwareProfile& profile);
/// The prediction of a step, and of what follows from it.
Prediction predict_step(const ModelSize& model, const StepSize& step, PlannedSharding sharding, const Mesh& mesh,
                        const PlannedRun& run, const HardwareProfile& profile);

/// The time of an operation on a device.
double seconds_of(const Operation& operation, const PlannedRun& run, const HardwareProfile& profile);
/// That of an optimizer's step with so many bytes of gradients and of states.
double optimizer_seconds(double gradient_bytes, double state_bytes, const HardwareProfile& profile);
/// What saves and failures of `ranks` ranks cost.
struct PlannedSaves {
  double stall_s = 0, every_s = 0, waste = 0;
};
PlannedSaves saves_of(const ModelSize& model, int64_t ranks, const HardwareProfile& profile);
/// How much longer than `step_s` the slowest of `ranks` ranks takes.
double jitter_seconds(double step_s, int64_t ranks, const HardwareProfile& profile);

/// Time between two saves that wastes the least: Young's sqrt(2 · stall · MTBF), and not less than a save takes.
double save_interval_s(double stall_s, double mtbf_s, double write_s);

}  // namespace fulgur::cli
