#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"
#include "process_group_impl.h"

namespace fulgur::detail {
namespace {

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::min: return c10d::ReduceOp::MIN;
    case ReduceOp::max: return c10d::ReduceOp::MAX;
    default: return c10d::ReduceOp::SUM;
  }
}

Tensor own_copy(const Tensor& value) { return value.detach().clone(at::MemoryFormat::Contiguous); }

/// Gathers in forward, adds up in backward: the gradient of a rank's tensor is the sum of what all ranks want of it.
struct GatherWithGradients : torch::autograd::Function<GatherWithGradients> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const Tensor& value, int64_t collectives) {
    context->saved_data["collectives"] = collectives;
    return reinterpret_cast<Collectives*>(collectives)->all_gather(value, false);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    auto& collectives = *reinterpret_cast<Collectives*>(context->saved_data["collectives"].toInt());
    const Tensor all = collectives.all_reduce(at::stack(gradients), ReduceOp::sum);
    return {all[collectives.rank()], Tensor()};
  }
};

class Pending final : public PendingReduction {
 public:
  Pending(ProcessGroup& owner, Tensor values, c10::intrusive_ptr<c10d::Work> work) : owner_(owner), values_(std::move(values)), work_(std::move(work)) {}
  std::vector<int64_t> take() override {
    try {
      work_->wait();
    } catch (...) {
      owner_.rethrow("agreement");
    }
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

std::string to_text(const Tensor& bytes, int64_t length) { return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(length)}; }

constexpr int64_t kMostDims = 8;

}  // namespace

Tensor C10dCollectives::all_reduce(const Tensor& value, ReduceOp op) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> values{own_copy(value)};
  try {
    group_->allreduce(values, {.reduceOp = to_c10d(op)})->wait();
  } catch (...) {
    owner_.rethrow("all_reduce");
  }
  if (op == ReduceOp::mean) values[0] = values[0] / world_size();
  return values[0];
}

std::vector<Tensor> C10dCollectives::gather_same(const Tensor& value) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> input{value.detach().contiguous()};
  std::vector<std::vector<Tensor>> output(1);
  for (int64_t i = 0; i < world_size(); ++i) output[0].push_back(at::empty_like(input[0], at::MemoryFormat::Contiguous));
  try {
    group_->allgather(output, input)->wait();
  } catch (...) {
    owner_.rethrow("all_gather");
  }
  return output[0];
}

std::vector<Tensor> C10dCollectives::all_gather(const Tensor& value, bool with_gradients) {
  // Ranks whose shapes differ would fail with a text that nobody understands.
  if (value.dim() > kMostDims) throw Error(cat("[strategies.all_gather] at most ", kMostDims, " dimensions can be gathered; got ", value.dim(), "."));
  std::vector<int64_t> shape(kMostDims + 2, 0);
  shape[0] = static_cast<int64_t>(value.scalar_type());
  shape[1] = value.dim();
  for (int64_t i = 0; i < value.dim(); ++i) shape[static_cast<size_t>(i) + 2] = value.size(i);
  const std::vector<Tensor> shapes = gather_same(at::tensor(shape, at::kLong));
  int64_t most_rows = 0;
  bool same = true;
  for (size_t r = 0; r < shapes.size(); ++r) {
    const int64_t* other = shapes[r].const_data_ptr<int64_t>();
    bool fits = other[0] == shape[0] && other[1] == shape[1];
    for (size_t i = 3; i < shape.size(); ++i) fits = fits && other[i] == shape[i];
    if (!fits)
      throw DistributedError(cat("[strategies.all_gather] the tensors of all ranks must have the same dtype and shape but for their rows; rank ", static_cast<int64_t>(r), " has ",
                                 shape_text({other + 2, static_cast<size_t>(other[1])}), ", rank ", rank(), " has ", shape_text(value.sizes()), "."));
    same = same && other[2] == shape[2];
    most_rows = std::max(most_rows, other[2]);
  }
  if (same) {
    if (!with_gradients) return gather_same(value);
    return GatherWithGradients::apply(value, reinterpret_cast<int64_t>(static_cast<Collectives*>(this)));
  }
  // Ranks with fewer rows are filled up, and cut again.
  std::vector<int64_t> sizes = value.sizes().vec();
  sizes[0] = most_rows - sizes[0];
  const Tensor padded = at::cat({value, at::zeros(sizes, value.options())});
  std::vector<Tensor> all = with_gradients ? GatherWithGradients::apply(padded, reinterpret_cast<int64_t>(static_cast<Collectives*>(this))) : gather_same(padded);
  for (size_t r = 0; r < all.size(); ++r) all[r] = all[r].narrow(0, 0, shapes[r].const_data_ptr<int64_t>()[2]);
  return all;
}

Tensor C10dCollectives::broadcast(const Tensor& value, int64_t source_rank) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> values{own_copy(value)};
  c10d::BroadcastOptions options;
  options.rootRank = source_rank;
  try {
    group_->broadcast(values, options)->wait();
  } catch (...) {
    owner_.rethrow("broadcast");
  }
  return values[0];
}

bool C10dCollectives::any(bool value) { return start_max({value ? 1 : 0})->take()[0] != 0; }

void C10dCollectives::barrier(std::string_view reason) {
  try {
    start_max({0})->take();
  } catch (const DistributedError& error) {
    throw DistributedError(cat(error.what(), "\n(all ranks were to come together: ", reason, ")"));
  }
}

std::vector<std::string> C10dCollectives::gather_text(std::string_view text) {
  const std::vector<Tensor> lengths = gather_same(at::tensor({static_cast<int64_t>(text.size())}, at::kLong));
  int64_t longest = 0;
  for (const Tensor& length : lengths) longest = std::max(longest, *length.const_data_ptr<int64_t>());
  const std::vector<Tensor> bytes = gather_same(to_tensor(text, longest));
  std::vector<std::string> texts;
  for (size_t r = 0; r < bytes.size(); ++r) texts.push_back(to_text(bytes[r], *lengths[r].const_data_ptr<int64_t>()));
  return texts;
}

std::string C10dCollectives::broadcast_text(std::string_view text, int64_t source_rank) {
  const int64_t length = *broadcast(at::tensor({static_cast<int64_t>(text.size())}, at::kLong), source_rank).const_data_ptr<int64_t>();
  const bool mine = rank() == source_rank;
  return to_text(broadcast(to_tensor(mine ? text : std::string_view(), length), source_rank), length);
}

std::unique_ptr<PendingReduction> C10dCollectives::start_max(std::vector<int64_t> values) {
  std::vector<Tensor> tensors{at::tensor(values, at::kLong)};
  try {
    auto work = group_->allreduce(tensors, {.reduceOp = c10d::ReduceOp::MAX});
    return std::make_unique<Pending>(owner_, tensors[0], std::move(work));
  } catch (...) {
    owner_.rethrow("agreement");
  }
}

void C10dCollectives::set_activity(const char* what, int64_t step) { owner_.impl().heartbeat->set(what, step); }

}  // namespace fulgur::detail
