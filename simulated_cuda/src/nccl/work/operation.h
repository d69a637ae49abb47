#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "ranks/data_types.h"

namespace fulgur::simulated_nccl {

enum class Kind : int32_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send,
  receive
};

/// One call of a program.
struct Operation {
  Kind kind = Kind::all_reduce;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;  ///< as in NCCL: elements that a rank sends; for reduce-scatter and scatter, those that it receives
  ncclDataType_t type = ncclFloat32;
  Reduction reduction = {};
  int root = 0;  ///< for send and receive: the peer
  cudaStream_t stream = nullptr;

  bool is_collective() const { return kind != Kind::send && kind != Kind::receive; }
  bool reduces() const { return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter; }
  bool has_root() const {
    return kind == Kind::reduce || kind == Kind::broadcast || kind == Kind::gather || kind == Kind::scatter;
  }
  size_t bytes() const { return count * size_of(type); }
};

/// A rank's description of its call, which it sends to the others before any data. The descriptions must be equal.
struct Statement {
  Kind kind;
  int32_t type, op, root;
  uint64_t count, call;

  /// `call` numbers the calls between two ranks.
  static Statement of(const Operation& operation, uint64_t call);
  bool agrees_with(const Statement& other) const;
  std::string text() const;
};

}  // namespace fulgur::simulated_nccl
