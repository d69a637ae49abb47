#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/stage_parameters.h"
#include "sharding/flat_unit.h"
#include "sharding/parameter_shards.h"

namespace fulgur::detail {

/// What errors about a parameter that is not there suggest.
inline constexpr const char* kInsteadOfUnits = "or set strategy.evaluation: whole";

/// The parameters of a mesh in evaluations, whose steps read the whole module on each rank: all ranks have parts of
/// units, and an operation that reads a parameter gathers its unit, as with `sharding: parameters` of fsdp. What a rank
/// computes with in training stays where it is meanwhile.
class EvaluationUnits {
 public:
  /// `patterns` are those of `parameter_units`. All references must outlive this.
  EvaluationUnits(const LightningModule& module, MeshGroups& mesh, const std::vector<StageTensor>& tensors,
                  StageParameters& parameters, std::optional<std::vector<std::string>> patterns, at::Device device);
  ~EvaluationUnits();
  EvaluationUnits(const EvaluationUnits&) = delete;
  EvaluationUnits& operator=(const EvaluationUnits&) = delete;

  /// Around the step of a batch: see `ParameterShards`. The first one, and the first after `end`, makes the units, one
  /// after the other, unless all parameters are there. All ranks
  /// must call them.
  void begin_round(bool computes, bool all_compute);
  void end_round();
  /// What gathers units; null if there are none now.
  ParameterShards* parameter_shards() const;
  /// Whether a step is under way that gathers units.
  bool in_round() const { return in_round_; }
  /// A copy of a parameter, within a round. All ranks must call it.
  Tensor copy_of(const Tensor& parameter);
  /// The module's parameters are again what this rank computes with in training, with what has been written to them.
  /// All ranks must call it.
  void end();
  /// The same without their values: the other ranks are gone.
  void abandon() noexcept;

 private:
  struct Units;
  void make();
  void put_back() noexcept;

  const LightningModule& module_;
  MeshGroups& mesh_;
  const std::vector<StageTensor>& tensors_;
  StageParameters& parameters_;
  std::optional<std::vector<std::string>> patterns_;
  at::Device device_;
  std::unique_ptr<Units> units_;
  bool in_round_ = false;
};

}  // namespace fulgur::detail
