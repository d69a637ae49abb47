#include "planning/mesh/mesh_memory.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace fulgur::cli {
namespace {

class RankMemory {
 public:
  RankMemory(const detail::StagePlan& plan, const std::vector<LayerTrace>& layers) : plan_(plan), layers_(layers) {}

  void forward(int64_t stage) {
    const auto [begin, end] = layers_of(stage);
    live_ += input_bytes(layers_, begin);
    for (size_t i = begin; i < end; ++i) {
      note(layers_[i].forward_peak);
      live_ += layers_[i].kept_bytes;
    }
  }
  /// Activations are freed from the last layer to the first; the first backward of a stage makes its gradients.
  void backward(int64_t stage, bool has_gradients) {
    const auto [begin, end] = layers_of(stage);
    const bool makes_gradients = !has_gradients && with_gradients_.insert(stage).second;
    for (size_t i = end; i-- > begin;) {
      note(makes_gradients ? layers_[i].backward_peak_with_gradients : layers_[i].backward_peak);
      live_ -= layers_[i].kept_bytes;
      if (makes_gradients) live_ += layers_[i].gradient_bytes;
    }
    live_ -= input_bytes(layers_, begin);
  }
  /// Frees nothing, and keeps the gradients of what the stage returns.
  void backward_input(int64_t stage) {
    const auto [begin, end] = layers_of(stage);
    live_ += kept_for_weights(stage);
    if (stage == 0) return;
    for (size_t i = end; i-- > begin;) note(layers_[i].backward_peak);
  }
  void backward_weights(int64_t stage, bool has_gradients) {
    backward(stage, has_gradients);
    live_ -= kept_for_weights(stage);
  }
  /// The gradients of a stage's input, which are kept until they are known to have arrived.
  void send(int64_t stage) {
    if (stage == 0) return;
    sent_.push_back(input_bytes(layers_, layers_of(stage).first));
    live_ += sent_.back();
  }
  void free_sent(int64_t received) {
    for (; freed_ < received && freed_ < static_cast<int64_t>(sent_.size()); ++freed_)
      live_ -= sent_[static_cast<size_t>(freed_)];
  }
  void begin_with(double bytes) { live_ += bytes; }
  double peak() const { return peak_; }

 private:
  std::pair<size_t, size_t> layers_of(int64_t stage) const { return plan_.stages[static_cast<size_t>(stage)]; }
  double kept_for_weights(int64_t stage) const {
    const size_t end = layers_of(stage).second;
    return end == layers_.size() ? 0 : layers_[end - 1].output_bytes;
  }
  void note(double beside) { peak_ = std::max(peak_, live_ + beside); }

  const detail::StagePlan& plan_;
  const std::vector<LayerTrace>& layers_;
  std::unordered_set<int64_t> with_gradients_;
  std::vector<double> sent_;
  int64_t freed_ = 0;
  double live_ = 0, peak_ = 0;
};

// Parameters of a module's unit of which one of these differs are in separate units: the dtype, whether they learn,
// whether ranks along `tensor` divide them, and the ranks of the pipeline that read them.
using UnitKind = std::tuple<const PlannedUnit*, at::ScalarType, bool, bool, std::vector<int64_t>>;

UnitKind unit_kind(const detail::StageTensor& tensor, double bytes, const std::vector<PlannedUnit>& units) {
  const auto found = std::ranges::find_if(units, [&](const PlannedUnit& unit) {
    const size_t size = unit.name.size();
    return size > 0 && tensor.name.size() > size && tensor.name[size] == '.' && tensor.name.starts_with(unit.name);
  });
  return {found == units.end() ? nullptr : &*found, tensor.value.scalar_type(), tensor.value.requires_grad(),
          bytes < static_cast<double>(tensor.value.nbytes()), tensor.ranks};
}

}  // namespace

double peak_of_actions(const std::vector<detail::PipelineAction>& actions,
                       const std::vector<int64_t>& received_gradients, const detail::StagePlan& plan,
                       const std::vector<LayerTrace>& layers, bool has_gradients) {
  RankMemory memory(plan, layers);
  if (has_gradients) {
    std::unordered_set<int64_t> stages;
    for (const detail::PipelineAction& action : actions) stages.insert(action.stage);
    double gradients = 0;
    for (const int64_t stage : stages)
      for (auto [i, end] = plan.stages[static_cast<size_t>(stage)]; i < end; ++i) gradients += layers[i].gradient_bytes;
    memory.begin_with(gradients);
  }
  for (size_t i = 0; i < actions.size(); ++i) {
    const detail::PipelineAction& action = actions[i];
    switch (action.kind) {
      case detail::ActionKind::forward:
        memory.free_sent(received_gradients[i]);
        memory.forward(action.stage);
        break;
      case detail::ActionKind::backward:
        memory.backward(action.stage, has_gradients);
        memory.send(action.stage);
        break;
      case detail::ActionKind::backward_input:
        memory.backward_input(action.stage);
        memory.send(action.stage);
        break;
      case detail::ActionKind::backward_weights:
        memory.backward_weights(action.stage, has_gradients);
        break;
    }
  }
  return memory.peak();
}

std::vector<RankBytes> bytes_of_ranks(const detail::StagePlan& plan, const TracedLayers& traced,
                                      const std::vector<PlannedUnit>& units, int64_t ranks) {
  std::vector<RankBytes> all(static_cast<size_t>(ranks));
  std::vector<std::map<UnitKind, double>> kinds(all.size());  // with their bytes
  for (const detail::StageTensor& tensor : plan.tensors) {
    if (!tensor.is_parameter) continue;
    const double bytes = traced.parameter_bytes.at(tensor.value.unsafeGetTensorImpl());
    const bool learns = tensor.value.requires_grad();
    const UnitKind kind = unit_kind(tensor, bytes, units);
    for (const int64_t rank : tensor.ranks) {
      const auto place = static_cast<size_t>(rank);
      const auto [unit, is_new] = kinds[place].emplace(kind, 0);
      const bool is_stepped = learns && tensor.owner() == rank;
      unit->second += bytes;
      if (is_stepped) all[place].largest_stepped_unit = std::max(all[place].largest_stepped_unit, unit->second);
      all[place].parameters += bytes;
      all[place].units += is_new;
      all[place].gradients += learns ? bytes : 0;
      all[place].shared += learns && tensor.ranks.size() > 1 ? bytes : 0;
      all[place].stepped += is_stepped ? bytes : 0;
      all[place].stepped_units += is_new && is_stepped;
    }
  }
  for (size_t place = 0; place < all.size(); ++place) {
    double largest = 0, second = 0;
    for (const auto& [kind, bytes] : kinds[place]) {
      second = std::max(second, std::min(bytes, largest));
      largest = std::max(largest, bytes);
    }
    all[place].two_units = largest + second;
  }
  return all;
}

}  // namespace fulgur::cli
