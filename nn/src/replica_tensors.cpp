#include "fulgur/nn/replica_tensors.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "fulgur/core/errors.h"
#include "fulgur/core/module.h"
#include "fulgur/core/text.h"

namespace fulgur::nn {
namespace {

using Replicas = std::vector<std::shared_ptr<torch::nn::Module>>;

struct NamedLayer {
  std::string name;
  torch::nn::Module* layer;
};

std::vector<NamedParameter> parameters_of(const torch::nn::Module& module) { return unique_parameters(module); }

// Each once; one that is undefined has no identity.
std::vector<NamedParameter> buffers_of(const torch::nn::Module& module) {
  std::vector<NamedParameter> all;
  std::unordered_set<const void*> seen;
  for (const auto& buffer : module.named_buffers())
    if (!buffer.value().defined() || seen.insert(buffer.value().unsafeGetTensorImpl()).second) all.push_back({buffer.key(), buffer.value()});
  return all;
}

// Those below the module itself.
std::vector<NamedLayer> layers_of(const torch::nn::Module& module) {
  std::vector<NamedLayer> all;
  for (const auto& layer : module.named_modules("", /*include_self=*/false)) all.push_back({layer.key(), layer.value().get()});
  return all;
}

std::string described(const NamedParameter& named) {
  const Tensor& value = named.value;
  return cat("'", named.name, "' ", value.defined() ? cat(shape_text(value.sizes()), " ", c10::toString(value.scalar_type())) : "undefined");
}
std::string described(const NamedLayer& named) { return cat("'", named.name, "'"); }

template <class Named>
void check_same(const char* what, const std::vector<Named>& source, const std::vector<Named>& replica) {
  std::vector<std::string> differences;
  for (size_t i = 0; i < std::max(source.size(), replica.size()); ++i) {
    const std::string here = i < source.size() ? described(source[i]) : "none";
    const std::string there = i < replica.size() ? described(replica[i]) : "none";
    if (here != there) differences.push_back(cat(here, " and ", there));
  }
  if (differences.empty()) return;
  const size_t count = differences.size();
  if (count > 5) {
    differences.resize(5);
    differences.emplace_back("…");
  }
  throw ConfigError(cat("[nn.ReplicaTensors] a replica must have the module's ", what, "; ", count, " differ: ", join(differences),
                        ". Make every layer in the constructor, setup or configure_model, from the options alone."));
}

// What `list` finds in each replica, which is to be the same as in the source.
template <class List, class Named>
std::vector<std::vector<Named>> same_in(const Replicas& replicas, const char* what, List list, const std::vector<Named>& mine) {
  std::vector<std::vector<Named>> theirs;
  for (const auto& replica : replicas) {
    theirs.push_back(list(*replica));
    check_same(what, mine, theirs.back());
  }
  return theirs;
}

// What changes a tensor counts its version up, or gives it other memory. -1: it has none (inference tensors).
int64_t version_of(const Tensor& tensor) { return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor._version()); }

int64_t bytes_of(const Tensor& tensor) {
  return static_cast<int64_t>(tensor.is_sparse() ? tensor._indices().nbytes() + tensor._values().nbytes() : tensor.nbytes());
}

}  // namespace

ReplicaTensors::ReplicaTensors(const torch::nn::Module& source, const Replicas& replicas) : replicas_(replicas) {
  const std::vector<NamedLayer> layers = layers_of(source);
  const auto their_layers = same_in(replicas, "layers", layers_of, layers);
  layers_.push_back({&source, {}});
  for (const auto& replica : replicas) layers_[0].copies.push_back(replica.get());
  for (size_t i = 0; i < layers.size(); ++i) {
    FollowedLayer& followed = layers_.emplace_back();
    followed.source = layers[i].layer;
    for (const auto& replica : their_layers) followed.copies.push_back(replica[i].layer);
  }
  const auto follow_all = [&](const char* what, auto list, std::vector<Followed>& to) {
    const std::vector<NamedParameter> mine = list(source);
    const auto theirs = same_in(replicas, what, list, mine);
    for (size_t i = 0; i < mine.size(); ++i) {
      if (!mine[i].value.defined()) continue;
      Followed& followed = to.emplace_back();
      followed.source = mine[i].value;
      for (const auto& replica : theirs) followed.copies.push_back(replica[i].value);
      followed.copy_versions.assign(replicas.size(), -1);
    }
  };
  follow_all("parameters", parameters_of, parameters_);
  follow_all("buffers", buffers_of, buffers_);
}

int64_t ReplicaTensors::copy_values(bool all) {
  const at::NoGradGuard no_grad;
  const bool trained = std::exchange(trained_, std::any_of(layers_.begin(), layers_.end(), [](const FollowedLayer& layer) { return layer.source->is_training(); }));
  int64_t bytes = 0;
  const auto copy_list = [&](std::vector<Followed>& list, bool versions_lie) {
    for (Followed& followed : list) {
      const Tensor& source = followed.source;
      const bool same = !all && !(versions_lie && source.is_floating_point()) && followed.version >= 0 && version_of(source) == followed.version &&
                        source.const_data_ptr() == followed.data;
      for (size_t i = 0; i < followed.copies.size(); ++i) {
        Tensor& copy = followed.copies[i];
        // A forward of its own may have changed a buffer.
        if (same && version_of(copy) == followed.copy_versions[i]) continue;
        // Into the CPU's memory a copy that is not waited for would be read too early.
        copy.copy_(source.detach(), /*non_blocking=*/!copy.is_cpu());
        if (copy.device() != source.device()) bytes += bytes_of(source);
        followed.copy_versions[i] = version_of(copy);
      }
      followed.version = version_of(source);
      followed.data = source.const_data_ptr();
    }
  };
  copy_list(parameters_, false);
  copy_list(buffers_, trained);
  for (Followed& followed : parameters_)
    for (Tensor& copy : followed.copies)
      if (copy.requires_grad() != followed.source.requires_grad()) copy.set_requires_grad(followed.source.requires_grad());
  // `train` sets all that is below, too: from the outermost, one that a user has set apart comes later.
  for (const FollowedLayer& layer : layers_)
    for (torch::nn::Module* copy : layer.copies)
      if (copy->is_training() != layer.source->is_training()) copy->train(layer.source->is_training());
  return bytes;
}

int64_t ReplicaTensors::reduce_gradients() {
  const at::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (Followed& followed : parameters_) {
    const at::Device device = followed.source.device();
    for (Tensor& copy : followed.copies) {
      if (!copy.grad().defined()) continue;
      Tensor gradient = copy.grad().detach();
      copy.mutable_grad().reset();
      if (gradient.device() != device) {
        bytes += bytes_of(gradient);
        gradient = gradient.to(device, /*non_blocking=*/!device.is_cpu());
      }
      Tensor& sum = followed.source.mutable_grad();
      if (sum.defined()) sum.add_(gradient);
      else sum = gradient;
    }
  }
  return bytes;
}

}  // namespace fulgur::nn
