#include "pipeline/evaluation_units.h"

#include <ATen/core/grad_mode.h>

#include <map>
#include <unordered_map>
#include <utility>

#include "distributed/shard_groups.h"
#include "fulgur/core/state/stored_values.h"
#include "sharding/parameter_units.h"

namespace fulgur::detail {
namespace {

// Gradients that wait for a step keep the shape of a part.
void give_data(const Tensor& parameter, const Tensor& data) {
  Tensor gradient = std::exchange(parameter.mutable_grad(), Tensor());
  replace_data(parameter, data);
  if (gradient.defined()) parameter.mutable_grad() = std::move(gradient);
}

}  // namespace

struct EvaluationUnits::Units {
  // A parameter, and an alias of what it is in training.
  struct InTraining {
    const StageTensor* tensor;
    Tensor data;
  };
  explicit Units(MeshGroups& mesh)
      : groups(mesh.whole()),
        shards(groups, {.strategy = "mesh", .instead = std::string(kInsteadOfUnits)},
               /*notes_changes=*/true) {}

  ShardGroups groups;
  std::vector<std::unique_ptr<FlatUnit>> flat;
  ParameterShards shards;
  std::unordered_map<const void*, InTraining> in_training;
};

EvaluationUnits::EvaluationUnits(const LightningModule& module, MeshGroups& mesh,
                                 const std::vector<StageTensor>& tensors, StageParameters& parameters,
                                 std::optional<std::vector<std::string>> patterns, at::Device device)
    : module_(module),
      mesh_(mesh),
      tensors_(tensors),
      parameters_(parameters),
      patterns_(std::move(patterns)),
      device_(device) {}

EvaluationUnits::~EvaluationUnits() { abandon(); }

void EvaluationUnits::make() {
  const at::NoGradGuard no_grad;
  auto units = std::make_unique<Units>(mesh_);
  std::vector<NamedParameter> parameters;
  for (const StageTensor& tensor : tensors_) {
    if (!tensor.is_parameter) continue;
    parameters.push_back({tensor.name, tensor.value});
    units->in_training.emplace(tensor.value.unsafeGetTensorImpl(),
                               Units::InTraining{.tensor = &tensor, .data = tensor.value.detach()});
  }
  units_ = std::move(units);
  for (const ParameterUnit& unit : parameter_units(module_, parameters, patterns_)) {
    std::map<at::ScalarType, std::vector<NamedParameter>> alike;
    for (const NamedParameter& parameter : unit.parameters) alike[parameter.value.scalar_type()].push_back(parameter);
    for (auto& [dtype, members] : alike) {
      std::vector<const StageTensor*> tensors;
      for (const NamedParameter& member : members)
        tensors.push_back(units_->in_training.at(member.value.unsafeGetTensorImpl()).tensor);
      std::vector<Tensor> values = parameters_.whole_values(tensors);
      for (size_t i = 0; i < members.size(); ++i) give_data(members[i].value, std::exchange(values[i], Tensor()));
      const C10dCollectives& ranks = units_->groups.parts();
      FlatUnit& flat = *units_->flat.emplace_back(
          std::make_unique<FlatUnit>(std::move(members), device_, ranks.rank(), ranks.world_size()));
      flat.keep_part();
      units_->shards.add(flat);
    }
  }
}

void EvaluationUnits::begin_round(bool computes, bool all_compute) {
  // Something holds all parameters.
  if (!units_ && parameters_.are_all_there()) return;
  if (!units_) make();
  units_->shards.begin_evaluation(computes, all_compute);
  in_round_ = true;
}

void EvaluationUnits::end_round() {
  if (std::exchange(in_round_, false)) units_->shards.end_evaluation();
}

ParameterShards* EvaluationUnits::parameter_shards() const { return units_ ? &units_->shards : nullptr; }

Tensor EvaluationUnits::copy_of(const Tensor& parameter) {
  for (size_t unit = 0; unit < units_->flat.size(); ++unit) {
    const auto& parameters = units_->flat[unit]->parameters();
    for (size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].value.is_same(parameter)) return units_->shards.copy_of(unit, i);
  }
  return parameter.detach().clone();
}

void EvaluationUnits::end() {
  if (!units_) return;
  const at::NoGradGuard no_grad;
  in_round_ = false;
  units_->shards.divide();
  if (mesh_.whole().collectives().any(units_->shards.has_changed()))
    units_->shards.for_each_whole([&](const FlatUnit& flat) {
      for (size_t i = 0; i < flat.parameters().size(); ++i) {
        const Units::InTraining& own = units_->in_training.at(flat.parameters()[i].value.unsafeGetTensorImpl());
        parameters_.take_value(*own.tensor, own.data, flat.whole(i, flat.buffer()));
      }
    });
  put_back();
}

void EvaluationUnits::put_back() noexcept {
  if (!units_) return;
  for (const auto& [impl, own] : units_->in_training) give_data(own.tensor->value, own.data);
  units_.reset();
}

void EvaluationUnits::abandon() noexcept {
  if (!units_) return;
  units_->shards.abandon();
  put_back();
}

}  // namespace fulgur::detail
