#include "tensor/rank_functions.h"

#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tensor/divided_layers.h"

namespace fulgur::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;

void keep(AutogradContext* context, LayerExchange& ranks) {
  context->saved_data["ranks"] = reinterpret_cast<int64_t>(&ranks);
}

LayerExchange& kept_ranks(AutogradContext* context) {
  if (at::GradMode::is_enabled())
    throw Error(
        "[strategies.mesh] backward with create_graph computes gradients of exchanges between the ranks of the axis "
        "tensor, which have none. Set mesh.tensor to 1.");
  return *reinterpret_cast<LayerExchange*>(context->saved_data["ranks"].toInt());  // NOLINT(performance-no-int-to-ptr)
}

// Not a view: autograd refuses to change views that a function returns in place, as `x += bias` does.
Tensor as_result(const Tensor& value) { return value.contiguous().variable_data(); }

Tensor summed(const Tensor& value, LayerExchange& ranks) {
  Tensor sum = value.detach().clone(at::MemoryFormat::Contiguous);
  ranks.sum(sum);
  return sum;
}

Tensor own_range_of(const Tensor& value, int64_t dim, LayerExchange& ranks) {
  const OwnRange own = own_range(value.size(dim), ranks.rank(), ranks.world_size());
  return value.narrow(dim, own.begin, own.count).contiguous();
}

Tensor joined_parts(const Tensor& part, int64_t dim, int64_t size, LayerExchange& ranks) {
  const OwnRange first = own_range(size, 0, ranks.world_size());
  Tensor sent = part.detach().movedim(dim, 0).contiguous();
  if (sent.size(0) < first.count) {
    std::vector<int64_t> missing = sent.sizes().vec();
    missing[0] = first.count - missing[0];
    sent = at::cat({sent, at::zeros(missing, sent.options())});
  }
  return as_result(ranks.gather_rows(sent).flatten(0, 1).narrow(0, 0, size).movedim(0, dim));
}

struct ForParts : Function<ForParts> {
  static Tensor forward(AutogradContext* context, const Tensor& value, LayerExchange& ranks) {
    keep(context, ranks);
    return value;
  }
  static std::vector<Tensor> backward(AutogradContext* context, const std::vector<Tensor>& gradients) {
    return {summed(gradients[0], kept_ranks(context)), Tensor()};
  }
};

struct SumOfRanks : Function<SumOfRanks> {
  static Tensor forward(AutogradContext* context, const Tensor& value, LayerExchange& ranks) {
    keep(context, ranks);
    return summed(value, ranks);
  }
  static std::vector<Tensor> backward(AutogradContext* context, const std::vector<Tensor>& gradients) {
    kept_ranks(context);
    return {gradients[0], Tensor()};
  }
};

struct PartOfValue : Function<PartOfValue> {
  static Tensor forward(AutogradContext* context, const Tensor& value, int64_t dim, LayerExchange& ranks) {
    keep(context, ranks);
    context->saved_data["dim"] = dim;
    context->saved_data["size"] = value.size(dim);
    return own_range_of(value.detach(), dim, ranks).clone();
  }
  static std::vector<Tensor> backward(AutogradContext* context, const std::vector<Tensor>& gradients) {
    return {joined_parts(gradients[0], context->saved_data["dim"].toInt(), context->saved_data["size"].toInt(),
                         kept_ranks(context)),
            Tensor(), Tensor()};
  }
};

struct WholeOfParts : Function<WholeOfParts> {
  static Tensor forward(AutogradContext* context, const Tensor& part, int64_t dim, int64_t size, LayerExchange& ranks) {
    keep(context, ranks);
    context->saved_data["dim"] = dim;
    return joined_parts(part, dim, size, ranks);
  }
  static std::vector<Tensor> backward(AutogradContext* context, const std::vector<Tensor>& gradients) {
    return {own_range_of(gradients[0], context->saved_data["dim"].toInt(), kept_ranks(context)), Tensor(), Tensor(),
            Tensor()};
  }
};

// (…, tokens, width) of one rank after the other: (ranks, tokens / ranks, …, width).
Tensor by_ranks(const Tensor& value, LayerExchange& ranks) {
  return value.detach().movedim(-2, 0).unflatten(0, {ranks.world_size(), -1}).contiguous();
}
Tensor own_tokens_of_sum(const Tensor& value, LayerExchange& ranks) {
  return as_result(ranks.reduce_rows(by_ranks(value, ranks)).movedim(0, -2));
}
Tensor all_tokens(const Tensor& part, LayerExchange& ranks) {
  return joined_parts(part, part.dim() - 2, part.size(-2) * ranks.world_size(), ranks);
}

struct TokensOfSum : Function<TokensOfSum> {
  static Tensor forward(AutogradContext* context, const Tensor& value, LayerExchange& ranks) {
    keep(context, ranks);
    return own_tokens_of_sum(value, ranks);
  }
  static std::vector<Tensor> backward(AutogradContext* context, const std::vector<Tensor>& gradients) {
    return {all_tokens(gradients[0], kept_ranks(context)), Tensor()};
  }
};

struct AllTokensForParts : Function<AllTokensForParts> {
  static Tensor forward(AutogradContext* context, const Tensor& part, LayerExchange& ranks) {
    keep(context, ranks);
    return all_tokens(part, ranks);
  }
  static std::vector<Tensor> backward(AutogradContext* context, const std::vector<Tensor>& gradients) {
    return {own_tokens_of_sum(gradients[0], kept_ranks(context)), Tensor()};
  }
};

void check_targets(const Tensor& targets, int64_t classes, int64_t ignore_index) {
  if (!targets.is_cpu() || targets.numel() == 0) return;
  const Tensor wrong = targets.ne(ignore_index).logical_and(targets.lt(0).logical_or(targets.ge(classes)));
  TORCH_CHECK_INDEX(!wrong.any().item<bool>(), "Target ", targets.masked_select(wrong)[0].item<int64_t>(),
                    " is out of bounds.");
}

struct CrossEntropyOfParts : Function<CrossEntropyOfParts> {
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& targets, int64_t begin,
                        int64_t reduction, int64_t ignore_index, LayerExchange& ranks) {
    const bool is_double = logits.scalar_type() == at::kDouble;
    const Tensor values = logits.detach().to(is_double ? at::kDouble : at::kFloat);
    const Tensor most = ranks.all_reduce(values.amax(1), ReduceOp::max);
    Tensor exponentials = (values - most.unsqueeze(1)).exp_();
    const Tensor here = targets.ge(begin).logical_and(targets.lt(begin + values.size(1)));
    const Tensor index = at::where(here, targets - begin, at::zeros_like(targets)).unsqueeze(1);
    const Tensor picked = at::where(here, values.gather(1, index).squeeze(1) - most, at::zeros({}, values.options()));
    Tensor sums = at::stack({exponentials.sum(1), picked});
    ranks.sum(sums);
    const Tensor counts = targets.ne(ignore_index);
    const Tensor losses = at::where(counts, sums[0].log() - sums[1], at::zeros({}, values.options()));
    context->saved_data["reduction"] = reduction;
    context->saved_data["dtype"] = static_cast<int64_t>(logits.scalar_type());
    const Tensor count = counts.sum();
    context->save_for_backward({exponentials.div_(sums[0].unsqueeze(1)), here, index, counts, count});
    if (reduction == at::Reduction::None) return losses;
    return reduction == at::Reduction::Sum ? losses.sum() : losses.sum() / count;
  }
  static std::vector<Tensor> backward(AutogradContext* context, const std::vector<Tensor>& gradients) {
    if (at::GradMode::is_enabled())
      throw Error(
          "[strategies.mesh] backward with create_graph needs the second derivative of a cross entropy that is divided "
          "by vocabulary. Set mesh.tensor to 1.");
    const auto saved = context->get_saved_variables();
    const Tensor &probabilities = saved[0], &here = saved[1], &index = saved[2], &counts = saved[3], &count = saved[4];
    const auto reduction = context->saved_data["reduction"].toInt();
    Tensor scale = gradients[0].to(probabilities.scalar_type());
    if (reduction == at::Reduction::Mean) scale = scale / count;
    scale = (scale * counts).unsqueeze(1);
    Tensor gradient = probabilities * scale;
    gradient.scatter_add_(1, index, -(scale * here.unsqueeze(1)));
    return {gradient.to(static_cast<at::ScalarType>(context->saved_data["dtype"].toInt())),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

}  // namespace

Tensor for_parts(const Tensor& value, LayerExchange& ranks) { return ForParts::apply(value, ranks); }
Tensor sum_of_ranks(const Tensor& value, LayerExchange& ranks) { return SumOfRanks::apply(value, ranks); }
Tensor part_of_value(const Tensor& value, int64_t dim, LayerExchange& ranks) {
  return PartOfValue::apply(value, at::maybe_wrap_dim(dim, value.dim()), ranks);
}
Tensor whole_of_parts(const Tensor& part, int64_t dim, int64_t size, LayerExchange& ranks) {
  return WholeOfParts::apply(part, at::maybe_wrap_dim(dim, part.dim()), size, ranks);
}

Tensor tokens_of_sum(const Tensor& value, LayerExchange& ranks) { return TokensOfSum::apply(value, ranks); }
Tensor all_tokens_for_parts(const Tensor& part, LayerExchange& ranks) { return AllTokensForParts::apply(part, ranks); }

Tensor cross_entropy_of_parts(const Tensor& logits, const Tensor& targets, const ClassRange& range, int64_t reduction,
                              int64_t ignore_index, LayerExchange& ranks) {
  check_targets(targets, range.classes, ignore_index);
  return CrossEntropyOfParts::apply(logits, targets, range.begin, reduction, ignore_index, ranks);
}

}  // namespace fulgur::detail
