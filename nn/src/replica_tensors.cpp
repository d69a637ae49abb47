#include "fulgur/nn/replica_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/placed_call.h"

namespace fulgur::nn {
namespace {

using Replicas = std::vector<std::shared_ptr<torch::nn::Module>>;

struct NamedLayer {
  std::string name;
  torch::nn::Module* layer;
};

std::vector<NamedParameter> parameters_of(const torch::nn::Module& module) { return unique_parameters(module); }

// Each tensor once; an undefined one has no identity.
std::vector<NamedParameter> buffers_of(const torch::nn::Module& module) {
  std::vector<NamedParameter> all;
  std::unordered_set<const void*> seen;
  for (const auto& buffer : module.named_buffers())
    if (!buffer.value().defined() || seen.insert(buffer.value().unsafeGetTensorImpl()).second)
      all.push_back({buffer.key(), buffer.value()});
  return all;
}

// The layers below the module itself.
std::vector<NamedLayer> layers_of(const torch::nn::Module& module) {
  std::vector<NamedLayer> all;
  for (const auto& layer : module.named_modules("", /*include_self=*/false))
    all.push_back({layer.key(), layer.value().get()});
  return all;
}

std::string described(const NamedParameter& named) {
  const Tensor& value = named.value;
  return cat("'", named.name, "' ",
             value.defined() ? cat(shape_text(value.sizes()), " ", c10::toString(value.scalar_type())) : "undefined");
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
  throw ConfigError(cat("[nn.ReplicaTensors] a replica must have the module's ", what, "; ", differences.size(),
                        " differ: ", join_some(differences, 5),
                        ". Create every layer in the constructor, setup or configure_model, from the options alone."));
}

// The result of `list` for each replica, which must match the source.
template <class List, class Named>
std::vector<std::vector<Named>> same_in(const Replicas& replicas, const char* what, List list,
                                        const std::vector<Named>& mine) {
  std::vector<std::vector<Named>> theirs;
  for (const auto& replica : replicas) {
    theirs.push_back(list(*replica));
    check_same(what, mine, theirs.back());
  }
  return theirs;
}

// Whatever changes a tensor increments its version, or gives it other memory. -1: it has no version (inference
// tensors).
int64_t version_of(const Tensor& tensor) { return tensor.is_inference() ? -1 : tensor._version(); }

int64_t bytes_of(const Tensor& tensor) {
  return static_cast<int64_t>(tensor.is_sparse() ? tensor._indices().nbytes() + tensor._values().nbytes()
                                                 : tensor.nbytes());
}

// The maximum copied in one piece: it needs memory in addition to the tensors.
constexpr size_t kFlatBytes = size_t{64} << 20;

bool fits_in_flat(const Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense() && tensor.nbytes() <= kFlatBytes;
}

// `tensors` one after another in the memory of `flat`.
std::vector<Tensor> views_in(const Tensor& flat, const std::vector<Tensor>& tensors) {
  std::vector<Tensor> views;
  views.reserve(tensors.size());
  int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    views.push_back(flat.as_strided(tensor.sizes(), tensor.strides(), offset));
    offset += tensor.numel();
  }
  return views;
}

Tensor flattened(const std::vector<Tensor>& tensors) {
  int64_t numel = 0;
  for (const Tensor& tensor : tensors) numel += tensor.numel();
  Tensor flat = at::empty({numel}, tensors.front().options().requires_grad(false));
  at::_foreach_copy_(views_in(flat, tensors), tensors);
  return flat;
}

// Calls `work` with the positions of tensors that form one flat, of one device and dtype, or of a single tensor.
template <class Work>
void for_each_flat(const std::vector<Tensor>& tensors, const Work& work) {
  struct Flat {
    std::vector<size_t> places;
    size_t bytes = 0;
  };
  std::map<std::pair<at::Device, at::ScalarType>, Flat, decltype([](const auto& a, const auto& b) {
             return std::tuple(a.first.type(), a.first.index(), a.second) <
                    std::tuple(b.first.type(), b.first.index(), b.second);
           })>
      open;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    if (!fits_in_flat(tensor)) {
      work(std::vector<size_t>{i});
      continue;
    }
    Flat& flat = open[{tensor.device(), tensor.scalar_type()}];
    if (flat.bytes + tensor.nbytes() > kFlatBytes) {
      work(flat.places);
      flat = {};
    }
    flat.places.push_back(i);
    flat.bytes += tensor.nbytes();
  }
  for (const auto& [kind, flat] : open) work(flat.places);
}

template <class T>
std::vector<T> at_places(const std::vector<T>& all, const std::vector<size_t>& places) {
  std::vector<T> some;
  some.reserve(places.size());
  for (const size_t place : places) some.push_back(all[place]);
  return some;
}

bool on_one_device(const std::vector<Tensor>& tensors) {
  return std::ranges::all_of(tensors, [&](const Tensor& one) { return one.device() == tensors.front().device(); });
}

// Copies the values of `sources` to each of the lists `copies`: one copy per device instead of one per tensor.
void copy_lists(const std::vector<Tensor>& sources, const std::vector<std::vector<Tensor>>& copies) {
  for_each_flat(sources, [&](const std::vector<size_t>& places) {
    const std::vector<Tensor> from = at_places(sources, places);
    Tensor flat;
    for (const std::vector<Tensor>& list : copies) {
      const std::vector<Tensor> to = at_places(list, places);
      const at::Device device = to.front().device();
      if (from.size() == 1 || !on_one_device(to)) {
        for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i], /*non_blocking=*/!to[i].is_cpu());
      } else if (device == from.front().device()) {
        at::_foreach_copy_(to, from);
      } else {
        if (!flat.defined()) flat = flattened(from);
        at::_foreach_copy_(to, views_in(detail::move_tensor(flat, device), from));
      }
    }
  });
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
  const bool trained = std::exchange(
      trained_, std::ranges::any_of(layers_, [](const FollowedLayer& layer) { return layer.source->is_training(); }));
  int64_t bytes = 0;
  const auto copy_list = [&](std::vector<Followed>& list, bool versions_lie) {
    // Grouped by missing tensors, so that replicas that lack the same ones get them from one flat.
    std::map<std::vector<size_t>, std::vector<size_t>> replicas_by_places;
    for (size_t i = 0; i < replicas_.size(); ++i) {
      std::vector<size_t> places;
      for (size_t j = 0; j < list.size(); ++j) {
        const Followed& followed = list[j];
        const Tensor& source = followed.source;
        const bool same = !all && !(versions_lie && source.is_floating_point()) && followed.version >= 0 &&
                          version_of(source) == followed.version && source.const_data_ptr() == followed.data;
        // A custom forward may have changed a buffer.
        if (!same || version_of(followed.copies[i]) != followed.copy_versions[i]) places.push_back(j);
      }
      replicas_by_places[std::move(places)].push_back(i);
    }
    for (const auto& [places, replicas] : replicas_by_places) {
      if (places.empty()) continue;
      std::vector<Tensor> sources;
      std::vector<std::vector<Tensor>> copies(replicas.size());
      for (const size_t place : places) {
        sources.push_back(list[place].source.detach());
        for (size_t i = 0; i < replicas.size(); ++i) {
          const Tensor& copy = copies[i].emplace_back(list[place].copies[replicas[i]]);
          if (copy.device() != sources.back().device()) bytes += bytes_of(sources.back());
        }
      }
      copy_lists(sources, copies);
      for (const size_t place : places)
        for (const size_t replica : replicas)
          list[place].copy_versions[replica] = version_of(list[place].copies[replica]);
    }
    for (Followed& followed : list) {
      followed.version = version_of(followed.source);
      followed.data = followed.source.const_data_ptr();
    }
  };
  copy_list(parameters_, false);
  copy_list(buffers_, trained);
  for (Followed& followed : parameters_)
    for (Tensor& copy : followed.copies)
      if (copy.requires_grad() != followed.source.requires_grad())
        copy.set_requires_grad(followed.source.requires_grad());
  // `train` also sets all descendants: start with the outermost, so that a mode set by a user on an inner one comes
  // later.
  for (const FollowedLayer& layer : layers_)
    for (torch::nn::Module* copy : layer.copies)
      if (copy->is_training() != layer.source->is_training()) copy->train(layer.source->is_training());
  return bytes;
}

int64_t ReplicaTensors::reduce_gradients() {
  const at::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    // The source's gradients, and the replica's gradients to be added to them.
    std::vector<Tensor> sums, gradients;
    for (Followed& followed : parameters_) {
      Tensor& copy = followed.copies[i];
      if (!copy.grad().defined()) continue;
      Tensor gradient = copy.grad().detach();
      copy.mutable_grad().reset();
      const at::Device device = followed.source.device();
      if (gradient.device() != device) bytes += bytes_of(gradient);
      Tensor& sum = followed.source.mutable_grad();
      if (!sum.defined()) {
        sum = detail::move_tensor(gradient, device);
      } else if (!sum.is_sparse() && fits_in_flat(gradient)) {
        sums.push_back(sum);
        gradients.push_back(std::move(gradient));
      } else {
        sum.add_(detail::move_tensor(gradient, device));
      }
    }
    for_each_flat(gradients, [&](const std::vector<size_t>& places) {
      const std::vector<Tensor> from = at_places(gradients, places), to = at_places(sums, places);
      const at::Device device = to.front().device();
      if (from.size() == 1 || !on_one_device(to)) {
        for (size_t j = 0; j < to.size(); ++j) to[j].add_(detail::move_tensor(from[j], to[j].device()));
      } else if (device == from.front().device()) {
        at::_foreach_add_(to, from);
      } else {
        at::_foreach_add_(to, views_in(detail::move_tensor(flattened(from), device), from));
      }
    });
  }
  return bytes;
}

void ReplicaTensors::drop_gradients() noexcept {
  for (Followed& followed : parameters_)
    for (Tensor& copy : followed.copies) copy.mutable_grad().reset();
}

}  // namespace fulgur::nn
