#include "fulgur/nn/replica_tensors.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>

#include "fulgur/core/errors.h"
#include "fulgur/core/module.h"
#include "fulgur/core/text.h"

namespace fulgur::nn {
namespace {

struct Named {
  std::string name;
  Tensor value;
};

std::vector<Named> parameters_of(const torch::nn::Module& module) {
  std::vector<Named> all;
  for (auto& [name, value] : unique_parameters(module)) all.push_back({name, value});
  return all;
}

std::vector<Named> buffers_of(const torch::nn::Module& module) {
  std::vector<Named> all;
  for (const auto& buffer : module.named_buffers()) all.push_back({buffer.key(), buffer.value()});
  return all;
}

// What changes a tensor counts its version up, or gives it other memory. -1: it has none (inference tensors).
int64_t version_of(const Tensor& tensor) { return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor._version()); }

std::string kind_of(const Tensor& tensor) { return tensor.defined() ? cat(shape_text(tensor.sizes()), " ", c10::toString(tensor.scalar_type())) : "undefined"; }

void check_same(const char* what, const std::vector<Named>& source, const std::vector<Named>& replica) {
  std::vector<std::string> differences;
  for (size_t i = 0; i < std::max(source.size(), replica.size()); ++i) {
    const std::string here = i < source.size() ? cat("'", source[i].name, "' ", kind_of(source[i].value)) : "none";
    const std::string there = i < replica.size() ? cat("'", replica[i].name, "' ", kind_of(replica[i].value)) : "none";
    if (here != there) differences.push_back(cat(here, " and ", there));
  }
  if (differences.empty()) return;
  const size_t count = differences.size();
  if (count > 5) differences.resize(5), differences.emplace_back("…");
  throw ConfigError(cat("[nn.replica_tensors] a replica must have the module's ", what, "; ", static_cast<int64_t>(count), " differ: ", join(differences),
                        ". Make every layer in the constructor, setup or configure_model, from the options alone."));
}

}  // namespace

ReplicaTensors::ReplicaTensors(const torch::nn::Module& source, std::vector<std::shared_ptr<torch::nn::Module>> replicas)
    : source_(source), replicas_(std::move(replicas)) {
  const auto follow_all = [&](const char* what, auto list, std::vector<Followed>& to) {
    const std::vector<Named> mine = list(source_);
    std::vector<std::vector<Named>> theirs;
    for (const auto& replica : replicas_) {
      theirs.push_back(list(*replica));
      check_same(what, mine, theirs.back());
    }
    for (size_t i = 0; i < mine.size(); ++i) {
      if (!mine[i].value.defined()) continue;
      Followed& followed = to.emplace_back();
      followed.name = mine[i].name;
      followed.source = mine[i].value;
      for (const auto& replica : theirs) followed.copies.push_back(replica[i].value);
      followed.copy_versions.assign(replicas_.size(), -1);
    }
  };
  follow_all("parameters", parameters_of, parameters_);
  follow_all("buffers", buffers_of, buffers_);
}

int64_t ReplicaTensors::copy_values() {
  at::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (auto* list : {&parameters_, &buffers_})
    for (Followed& followed : *list) {
      const Tensor& source = followed.source;
      const bool same = version_of(source) == followed.version && followed.version >= 0 && source.const_data_ptr() == followed.data;
      for (size_t i = 0; i < followed.copies.size(); ++i) {
        Tensor& copy = followed.copies[i];
        // A forward of its own may have changed a buffer.
        if (same && version_of(copy) == followed.copy_versions[i]) continue;
        copy.copy_(source.detach(), /*non_blocking=*/true);
        if (copy.device() != source.device()) bytes += static_cast<int64_t>(source.nbytes());
        followed.copy_versions[i] = version_of(copy);
      }
      followed.version = version_of(source);
      followed.data = source.const_data_ptr();
      if (list == &parameters_)
        for (Tensor& copy : followed.copies)
          if (copy.requires_grad() != source.requires_grad()) copy.set_requires_grad(source.requires_grad());
    }
  const auto layers = source_.modules();
  for (const auto& replica : replicas_) {
    const auto theirs = replica->modules();
    // `train` would set all that is below, too; a user may have set one layer apart.
    for (size_t i = 0; i < std::min(layers.size(), theirs.size()); ++i)
      if (theirs[i]->is_training() != layers[i]->is_training()) theirs[i]->train(layers[i]->is_training());
  }
  return bytes;
}

void ReplicaTensors::stepped() {
  for (Followed& followed : parameters_)
    if (followed.source.requires_grad()) followed.version = -1;
}

int64_t ReplicaTensors::reduce_gradients() {
  at::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (Followed& followed : parameters_) {
    for (Tensor& copy : followed.copies) {
      if (!copy.grad().defined()) continue;
      const Tensor gradient = copy.grad().detach();
      copy.mutable_grad().reset();
      const bool crosses = gradient.device() != followed.source.device();
      if (crosses) bytes += static_cast<int64_t>(gradient.nbytes());
      const Tensor here = crosses ? gradient.to(followed.source.device(), /*non_blocking=*/true) : gradient;
      if (followed.source.grad().defined()) followed.source.mutable_grad().add_(here);
      else followed.source.mutable_grad() = here;
    }
  }
  return bytes;
}

}  // namespace fulgur::nn
