#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "distributed/process_group_impl.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

c10d::ReduceOp to_c10d(ReduceOp op) {
  if (op == ReduceOp::min) return c10d::ReduceOp::MIN;
  return op == ReduceOp::max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
}

Tensor own_copy(const Tensor& value) { return value.detach().clone(at::MemoryFormat::Contiguous); }

/// Gathers in forward, reduces in backward: the gradient of a rank's tensor is the sum of the gradients from all ranks.
struct GatherWithGradients : torch::autograd::Function<GatherWithGradients> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& value, int64_t collectives) {
    context->saved_data["collectives"] = collectives;
    return reinterpret_cast<C10dCollectives*>(collectives)->gather_rows(value);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto& collectives = *reinterpret_cast<C10dCollectives*>(context->saved_data["collectives"].toInt());
    return {collectives.reduce_rows(gradients[0]), Tensor()};
  }
};

class Pending final : public PendingReduction {
 public:
  Pending(ProcessGroup& owner, Tensor values, c10::intrusive_ptr<c10d::Work> work)
      : owner_(owner), values_(std::move(values)), work_(std::move(work)) {}
  std::vector<int64_t> take() override {
    const ExchangeMark mark(*owner_.impl().heartbeat, "agreement");
    run_exchange(owner_, "agreement", [&] { work_->wait(); });
    const int64_t* data = values_.const_data_ptr<int64_t>();
    return {data, data + values_.numel()};
  }

 private:
  ProcessGroup& owner_;
  Tensor values_;
  c10::intrusive_ptr<c10d::Work> work_;
};

Tensor to_tensor(std::string_view text, int64_t length) {
  Tensor tensor = at::zeros({std::max<int64_t>(length, 1)}, at::kByte);
  text.copy(static_cast<char*>(tensor.mutable_data_ptr()), text.size());
  return tensor;
}

std::string to_text(const Tensor& bytes, int64_t length) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(length)};
}

constexpr int64_t kMostDims = 8;

/// The dtype, the number of dimensions and the sizes, padded with zeros.
std::vector<int64_t> shape_of(const Tensor& value) {
  std::vector<int64_t> shape(kMostDims + 2, 0);
  shape[0] = static_cast<int64_t>(value.scalar_type());
  shape[1] = value.dim();
  for (int64_t i = 0; i < std::min(value.dim(), kMostDims); ++i) shape[static_cast<size_t>(i) + 2] = value.size(i);
  return shape;
}

at::IntArrayRef sizes_in(const Tensor& shape) {
  const int64_t* data = shape.const_data_ptr<int64_t>();
  return {data + 2, static_cast<size_t>(data[1])};
}

}  // namespace

Tensor C10dCollectives::all_reduce(const Tensor& value, ReduceOp op) {
  const at::NoGradGuard no_grad;
  const ExchangeMark mark(*owner_.impl().heartbeat, "all_reduce");
  std::vector<Tensor> values{own_copy(value)};
  run_exchange(owner_, "all_reduce", [&] { group_->allreduce(values, {.reduceOp = to_c10d(op)})->wait(); });
  if (op == ReduceOp::mean) values[0] = values[0] / world_size();
  return values[0];
}

void C10dCollectives::sum(Tensor values) {
  const at::NoGradGuard no_grad;
  const ExchangeMark mark(*owner_.impl().heartbeat, "all_reduce");
  std::vector<Tensor> sent{std::move(values)};
  run_exchange(owner_, "all_reduce", [&] { group_->allreduce(sent)->wait(); });
}

bool C10dCollectives::is_over_nccl(const Tensor& value) const { return !value.is_cpu() && !owner_.impl().nccl.empty(); }

Tensor C10dCollectives::gather_rows(const Tensor& value) {
  const at::NoGradGuard no_grad;
  const ExchangeMark mark(*owner_.impl().heartbeat, "all_gather");
  Tensor input = value.detach().contiguous();
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.insert(sizes.begin(), world_size());
  Tensor rows = at::empty(sizes, input.options());
  run_exchange(owner_, "all_gather", [&] {
    if (is_over_nccl(value)) {
      group_->_allgather_base(rows, input)->wait();
    } else {
      std::vector<std::vector<Tensor>> output{rows.unbind()};
      std::vector<Tensor> inputs{input};
      group_->allgather(output, inputs)->wait();
    }
  });
  return rows;
}

c10::intrusive_ptr<c10d::Work> C10dCollectives::start_gather(const Tensor& buffer) {
  const at::NoGradGuard no_grad;
  const Tensor own = buffer.view({world_size(), -1})[rank()];
  // Gloo reads its input while it writes the output.
  return start_gather(buffer, is_over_nccl(buffer) ? own : own.clone());
}

c10::intrusive_ptr<c10d::Work> C10dCollectives::start_gather(Tensor buffer, Tensor own) {
  const at::NoGradGuard no_grad;
  if (is_over_nccl(buffer)) return group_->_allgather_base(buffer, own);
  std::vector<std::vector<Tensor>> output{buffer.view({world_size(), -1}).unbind()};
  std::vector<Tensor> inputs{std::move(own)};
  return group_->allgather(output, inputs);
}

std::pair<Tensor, c10::intrusive_ptr<c10d::Work>> C10dCollectives::start_sum_of_parts(Tensor buffer) {
  const at::NoGradGuard no_grad;
  Tensor own = buffer.view({world_size(), -1})[rank()];
  if (is_over_nccl(buffer)) {
    own = at::empty_like(own);
    return {own, group_->_reduce_scatter_base(own, buffer)};
  }
  // Gloo has no reduce-scatter.
  std::vector<Tensor> sums{buffer};
  return {own, group_->allreduce(sums)};
}

Tensor C10dCollectives::reduce_rows(const Tensor& rows) {
  // Gloo has no reduce-scatter.
  if (!is_over_nccl(rows)) return all_reduce(rows, ReduceOp::sum)[rank()];
  const at::NoGradGuard no_grad;
  Tensor input = rows.detach().contiguous();
  Tensor mine = at::empty(input.sizes().slice(1), input.options());
  run_exchange(owner_, "all_gather", [&] { group_->_reduce_scatter_base(mine, input)->wait(); });
  return mine;
}

std::vector<Tensor> C10dCollectives::gather_shapes(const Tensor& value) {
  // Ranks with different shapes would otherwise fail with an incomprehensible message.
  if (value.dim() > kMostDims)
    throw Error(
        cat("[strategies.all_gather] at most ", kMostDims, " dimensions can be gathered; got ", value.dim(), "."));
  return gather_rows(at::tensor(shape_of(value), at::kLong)).unbind();
}

void C10dCollectives::require_same_shape(const Tensor& value) {
  {
    const std::lock_guard lock(shapes_mutex_);
    if (!same_shapes_.insert(shape_of(value)).second) return;
  }
  const std::vector<Tensor> shapes = gather_shapes(value);
  for (size_t r = 0; r < shapes.size(); ++r)
    if (!shapes[r].equal(shapes[static_cast<size_t>(rank())]))
      throw DistributedError(
          cat("[strategies.all_gather_same] the tensors of all ranks must have the same dtype and shape; rank ",
              static_cast<int64_t>(r), " has ", shape_text(sizes_in(shapes[r])), ", rank ", rank(), " has ",
              shape_text(value.sizes()), ". all_gather takes tensors with different numbers of rows."));
}

Tensor C10dCollectives::all_gather_same(const Tensor& value, bool with_gradients) {
  require_same_shape(value);
  return with_gradients ? GatherWithGradients::apply(value, reinterpret_cast<int64_t>(this)) : gather_rows(value);
}

std::vector<Tensor> C10dCollectives::all_gather(const Tensor& value, bool with_gradients) {
  const std::vector<int64_t> shape = shape_of(value);
  const std::vector<Tensor> shapes = gather_shapes(value);
  int64_t most_rows = 0;
  bool same = true;
  for (size_t r = 0; r < shapes.size(); ++r) {
    const int64_t* other = shapes[r].const_data_ptr<int64_t>();
    bool fits = other[0] == shape[0] && other[1] == shape[1];
    for (size_t i = 3; i < shape.size(); ++i) fits = fits && other[i] == shape[i];
    if (!fits)
      throw DistributedError(
          cat("[strategies.all_gather] the tensors of all ranks must have the same dtype and shape except for the "
              "number of rows; rank ",
              static_cast<int64_t>(r), " has ", shape_text(sizes_in(shapes[r])), ", rank ", rank(), " has ",
              shape_text(value.sizes()), "."));
    same = same && other[2] == shape[2];
    most_rows = std::max(most_rows, other[2]);
  }
  const auto gather = [&](const Tensor& rows) {
    return (with_gradients ? GatherWithGradients::apply(rows, reinterpret_cast<int64_t>(this)) : gather_rows(rows))
        .unbind();
  };
  if (same) return gather(value);
  // Pad the ranks with fewer rows, and trim again afterwards.
  std::vector<int64_t> sizes = value.sizes().vec();
  sizes[0] = most_rows - sizes[0];
  std::vector<Tensor> all = gather(at::cat({value, at::zeros(sizes, value.options())}));
  for (size_t r = 0; r < all.size(); ++r) all[r] = all[r].narrow(0, 0, shapes[r].const_data_ptr<int64_t>()[2]);
  return all;
}

Tensor C10dCollectives::broadcast(const Tensor& value, int64_t source_rank) {
  const at::NoGradGuard no_grad;
  const ExchangeMark mark(*owner_.impl().heartbeat, "broadcast");
  std::vector<Tensor> values{own_copy(value)};
  c10d::BroadcastOptions options;
  options.rootRank = source_rank;
  run_exchange(owner_, "broadcast", [&] { group_->broadcast(values, options)->wait(); });
  return values[0];
}

bool C10dCollectives::any(bool value) { return start_max({value ? 1 : 0})->take()[0] != 0; }

void C10dCollectives::barrier(std::string_view reason) {
  try {
    start_max({0})->take();
  } catch (const DistributedError& error) {
    throw DistributedError(cat(error.what(), "\n(waiting for all ranks: ", reason, ")"));
  }
}

std::vector<std::string> C10dCollectives::gather_text(std::string_view text) {
  const std::vector<Tensor> lengths = gather_rows(at::tensor({static_cast<int64_t>(text.size())}, at::kLong)).unbind();
  int64_t longest = 0;
  for (const Tensor& length : lengths) longest = std::max(longest, *length.const_data_ptr<int64_t>());
  const std::vector<Tensor> bytes = gather_rows(to_tensor(text, longest)).unbind();
  std::vector<std::string> texts;
  for (size_t r = 0; r < bytes.size(); ++r) texts.push_back(to_text(bytes[r], *lengths[r].const_data_ptr<int64_t>()));
  return texts;
}

std::string C10dCollectives::broadcast_text(std::string_view text, int64_t source_rank) {
  const int64_t length =
      *broadcast(at::tensor({static_cast<int64_t>(text.size())}, at::kLong), source_rank).const_data_ptr<int64_t>();
  const bool mine = rank() == source_rank;
  return to_text(broadcast(to_tensor(mine ? text : std::string_view(), length), source_rank), length);
}

std::unique_ptr<PendingReduction> C10dCollectives::start_max(std::vector<int64_t> values) {
  std::vector<Tensor> tensors{at::tensor(values, at::kLong)};
  auto work =
      run_exchange(owner_, "agreement", [&] { return group_->allreduce(tensors, {.reduceOp = c10d::ReduceOp::MAX}); });
  return std::make_unique<Pending>(owner_, tensors[0], std::move(work));
}

void C10dCollectives::set_activity(const char* what) { owner_.impl().heartbeat->set_activity(what); }
void C10dCollectives::set_steps_done(int64_t steps) { owner_.impl().heartbeat->set_steps_done(steps); }

}  // namespace fulgur::detail
