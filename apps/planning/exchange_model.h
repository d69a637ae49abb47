#pragma once

#include <compare>
#include <cstdint>

#include "planning/hardware_profile.h"

namespace fulgur::cli {

/// Ranks on `nodes` nodes with `devices` each.
struct Mesh {
  int64_t nodes = 1, devices = 1;
  int64_t ranks() const { return nodes * devices; }
  auto operator<=>(const Mesh&) const = default;
};

/// The machines of a group of `count` ranks, every `stride`-th of the run: of the group that is on the most nodes.
Mesh machines_of(int64_t count, int64_t stride, const Mesh& run);

/// What is not a rank's own, of something that is divided among the ranks.
inline double part_of_others(int64_t ranks) { return static_cast<double>(ranks - 1) / static_cast<double>(ranks); }

/// Times of exchanges by the alpha-beta model: messages times their latency, and bytes over bandwidth. Each is the
/// fastest of the ways in which NCCL does it.
/// All ranks get the sum of tensors of `bytes`: a ring over all devices, a tree over the nodes, or in three steps: in
/// the nodes, between them, in the nodes.
double all_reduce_s(double bytes, const Mesh& mesh, const HardwareProfile& profile);
/// All ranks get the parts of all, `bytes` together. A reduce-scatter takes as long.
double all_gather_s(double bytes, const Mesh& mesh, const HardwareProfile& profile);
/// A message from one rank to another.
double message_s(double bytes, bool between_nodes, const HardwareProfile& profile);
/// Exchanges between the devices with the same number of all nodes, over one link each.
double all_reduce_between_nodes_s(double bytes, const Mesh& mesh, const HardwareProfile& profile);

/// How much later than `compute_s` exchanges end of which each takes `each_s`, and which become possible evenly over
/// `compute_s`, the first after a part of it and the last at its end. They are made one after another.
double exposed_s(double compute_s, double each_s, int64_t count);
/// Seconds in which ranks exchange a unit of divided parameters.
struct UnitExchange {
  double gather;   ///< of all its parts
  double scatter;  ///< of its gradients
  int64_t units;
};
/// The same for a window of `batches`, of which a forward and a backward compute for so many seconds each. In both,
/// each unit is gathered while the one before it computes; the last backward divides gradients, too.
double exposed_of_units_s(const UnitExchange& each, double forward_s, double backward_s, double batches);

}  // namespace fulgur::cli
