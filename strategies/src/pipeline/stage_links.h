#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "distributed/mesh_groups.h"
#include "fulgur/core/contracts/layer_chain.h"

namespace fulgur::detail {

/// What is sent between neighbours of a pipeline: outputs of a stage to the rank of the next one, and their gradients
/// back. Each direction between two ranks has a group of its own, so that over NCCL a message waits only for those
/// before it in its direction.
///
/// Sender and receiver know the shapes of messages of one key from the first of them, which a header precedes.
class StageLinks {
 public:
  using Values = LayerChain::Values;
  /// Connects this rank to its neighbours; all ranks must call it. With several stages per rank, the last rank sends to
  /// the first one, too.
  StageLinks(MeshGroups& mesh, bool is_ring, at::Device device);
  StageLinks(const StageLinks&) = delete;
  StageLinks& operator=(const StageLinks&) = delete;

  /// Sends outputs of `stage` to the rank of the next stage. Does not wait. Throws an Error if their shapes are not
  /// those of an earlier message with this key.
  void send_outputs(int64_t stage, const std::string& key, const Values& outputs);
  /// Receives the outputs of the stage before `stage`; those that have gradients require them.
  Values receive_outputs(int64_t stage, const std::string& key);
  /// Sends the gradients of what `receive_outputs` returned to the rank of the stage before. Does not wait. Their
  /// memory is kept until `free_gradients` or `finish`.
  void send_gradients(const Values& gradients);
  /// Receives the gradients of those of `outputs` that require them.
  Values receive_gradients(const Values& outputs);
  /// The rank before has received the gradients of the first `calls` of `send_gradients` since `finish`.
  void free_gradients(int64_t calls);
  /// Waits until everything that was sent has left its memory.
  void finish();

 private:
  struct Link {
    c10::intrusive_ptr<c10d::ProcessGroup> group;
    bool is_sender = false;
  };
  struct Shape {
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes;
    bool has_gradient = false;
    bool operator==(const Shape&) const = default;
  };
  static Shape shape_of(const Tensor& value) {
    return {value.scalar_type(), value.sizes().vec(), value.requires_grad()};
  }
  using Sent = std::pair<c10::intrusive_ptr<c10d::Work>, Tensor>;
  Sent start_send(const Link& link, const Tensor& value);
  void send(const Link& link, const Tensor& value) { under_way_.push_back(start_send(link, value)); }
  void receive(const Link& link, Tensor value);
  void send_header(const std::vector<Shape>& shapes);
  std::vector<Shape> receive_header();

  MeshGroups& mesh_;
  at::Device device_;
  Link outputs_in_, outputs_out_, gradients_in_, gradients_out_;
  std::map<std::pair<int64_t, std::string>, std::vector<Shape>> sent_, received_;
  std::vector<Sent> under_way_;
  std::deque<std::vector<Sent>> gradients_under_way_;  ///< by calls of `send_gradients`
  int64_t gradients_freed_ = 0;                        ///< calls
};

}  // namespace fulgur::detail
