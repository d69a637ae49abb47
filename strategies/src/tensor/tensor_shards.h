#pragma once

#include <c10/core/Storage.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "distributed/layer_exchange.h"
#include "fulgur/core/state/tensor_slice.h"
#include "sharding/flat_unit.h"
#include "tensor/divided_layers.h"
#include "tensor/memory_places.h"

namespace fulgur::detail {

/// Keeps this rank's parts of the parameters that the ranks along `tensor` divide: the module's parameters have these
/// parts as their values, and their shapes, except while all are gathered.
class TensorShards {
 public:
  /// The parameters are whole at first. `here` are the parameters of this rank's stages; the memory of others belongs
  /// to `StageParameters`. Those that stand for values get this rank's part of them later, and those that are here are
  /// kept then (`keep`), before anything is gathered.
  TensorShards(LayerExchange& ranks, std::vector<DividedParameter> parameters,
               const std::unordered_set<const void*>& here);
  TensorShards(const TensorShards&) = delete;
  TensorShards& operator=(const TensorShards&) = delete;

  int64_t rank() const { return ranks_.rank(); }
  int64_t size() const { return ranks_.world_size(); }
  LayerExchange& ranks() const { return ranks_; }
  const std::vector<DividedParameter>& parameters() const { return parameters_; }
  bool has(const Tensor& parameter) const { return places_.contains(parameter.unsafeGetTensorImpl()); }

  /// Keeps the value of a parameter that stood for values before, which is this rank's part.
  void keep(const Tensor& parameter);
  /// Gives each parameter this rank's part of its values.
  void divide();
  /// Gives each parameter the values of all ranks. All ranks must call it.
  void gather();
  bool are_divided() const { return are_divided_; }

  /// The whole of a tensor with the parameter's shape, such as a state of its optimizer, of which each rank has its
  /// part. All ranks must call it.
  Tensor whole_of(const Tensor& parameter, const Tensor& part) const;
  /// This rank's part of such a tensor. If `whole` stands for stored values, the part stands for its own.
  Tensor part_of(const Tensor& parameter, const Tensor& whole) const;
  /// What this rank's part is of such a tensor.
  TensorSlice slice_of(const Tensor& parameter) const;
  /// The sizes of a parameter of all ranks together.
  at::IntArrayRef whole_sizes(const Tensor& parameter) const { return at_place(parameter).sizes; }

  /// The parameter whose part here has the memory of a tensor; nullptr: another tensor's. Only while they are divided.
  const DividedParameter* with_memory(const Tensor& tensor) const {
    const auto found = by_memory_.find(tensor);
    return found ? &parameters_[*found] : nullptr;
  }
  /// Keeps the parts that are in a unit there. They are divided.
  void move_to(const FlatUnit& unit);
  /// The storage that the parameters of a unit have while it is free; they are known by it, too.
  void know_while_free(const FlatUnit& unit, const c10::Storage& away);

 private:
  const DividedParameter& at_place(const Tensor& parameter) const {
    return parameters_[places_.at(parameter.unsafeGetTensorImpl())];
  }
  Tensor joined(const DividedParameter& parameter, const Tensor& part) const;

  LayerExchange& ranks_;
  std::vector<DividedParameter> parameters_;
  std::vector<Tensor> own_;  ///< this rank's parts; undefined for parameters of other stages
  /// What parameters are while they are gathered. Callbacks keep aliases of them, so it is the same storage each time.
  std::vector<Tensor> wholes_;
  std::unordered_map<const void*, size_t> places_;
  MemoryPlaces by_memory_;
  bool are_divided_ = false;
};

}  // namespace fulgur::detail
