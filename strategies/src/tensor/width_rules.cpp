// Operations of single elements, and along other dimensions than the divided one.
#include "tensor/width_rules.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <unordered_set>

namespace fulgur::detail {
namespace {

using Names = std::unordered_set<std::string>;

// Besides those with LibTorch's tag.
const Names& of_single_elements() {
  static const Names names{"to",         "_to_copy",   "clone",      "contiguous",    "detach",      "alias",
                           "type_as",    "copy",       "zeros_like", "ones_like",     "empty_like",  "full_like",
                           "rand_like",  "randn_like", "dropout",    "alpha_dropout", "_to_cpu",     "cpu",
                           "cuda",       "zero",       "fill",       "bernoulli",     "square",      "relu6",
                           "selu",       "celu",       "where",      "masked_fill",   "bitwise_not", "requires_grad",
                           "lift_fresh", "leaky_relu", "hardswish",  "log_sigmoid"};
  return names;
}

// They keep all dimensions, or are reductions.
const Names& along_dimensions() {
  static const Names names{"softmax", "log_softmax", "cumsum",    "cumprod", "flip",
                           "roll",    "sort",        "argsort",   "topk",    "sum",
                           "mean",    "amax",        "amin",      "argmax",  "argmin",
                           "max",     "min",         "prod",      "norm",    "linalg_vector_norm",
                           "var",     "std",         "logsumexp", "median",  "repeat_interleave"};
  return names;
}

bool is_of_single_elements(const WidthCall& call) {
  if (call.name == "prelu") return call.at(0) && call.at(0)->division && call.at(1) && call.at(1)->tensor.numel() == 1;
  // A gather of chosen elements.
  if (call.name == "where" && call.arguments.size() < 3) return false;
  return call.op.hasTag(at::Tag::pointwise) || of_single_elements().contains(call.name);
}

// All parts are of the same elements, and whole values are the same for all elements of the dimension.
WidthResult of_broadcast(const WidthCall& call) {
  const WidthRead* first = nullptr;
  for (const WidthRead& read : call.reads)
    if (read.division && !first) first = &read;
  if (!first) return {};
  const int64_t place = first->from_last();
  const auto size_of = [&](const WidthRead& read) {
    const int64_t dim = static_cast<int64_t>(read.sizes.size()) + place;
    return dim < 0 ? 1 : read.sizes[static_cast<size_t>(dim)];
  };
  for (const WidthRead& read : call.reads) {
    // An expanded value is one for all of them, too.
    const int64_t dim = static_cast<int64_t>(read.sizes.size()) + place;
    if (!read.division && size_of(read) != 1 && read.tensor.stride(dim) != 0) return {};
    if (read.division && (read.from_last() != place || read.division->parts != first->division->parts ||
                          size_of(read) != size_of(*first)))
      return {};
  }
  return [division = *first->division, place](const Tensor& result) -> std::optional<Division> {
    Division of_result = division;
    of_result.dim = result.dim() + place;
    return of_result;
  };
}

WidthResult along_others(const WidthCall& call) {
  if (call.reads.size() != 1 || call.reads[0].argument != 0) return {};
  const WidthRead& read = call.reads[0];
  const int64_t count = static_cast<int64_t>(read.sizes.size());
  const auto dims = call.dims(count);
  if (!dims || dims->empty()) return {};
  Division division = *read.division;
  if (std::ranges::find(*dims, division.dim) != dims->end()) return {};
  const int64_t before = std::ranges::count_if(*dims, [&](int64_t dim) { return dim < division.dim; });
  const int64_t all = static_cast<int64_t>(dims->size());
  return [=](const Tensor& result) -> std::optional<Division> {
    Division of_result = division;
    if (result.dim() == count - all)
      of_result.dim -= before;
    else if (result.dim() != count)
      return std::nullopt;
    return of_result;
  };
}

// Over the last dimensions; the weights are those of these.
WidthResult of_norm(const WidthCall& call) {
  if (!call.at(0) || !call.at(0)->division || !call.arguments[1].isIntList()) return {};
  for (const WidthRead& read : call.reads)
    if (read.argument != 0 && read.division) return {};
  const WidthRead& read = *call.at(0);
  if (read.from_last() >= -static_cast<int64_t>(call.arguments[1].toIntList().size())) return {};
  return [division = *read.division](const Tensor&) { return std::optional(division); };
}

}  // namespace

const WidthRead* WidthCall::at(size_t argument) const {
  const auto found = std::ranges::find(reads, argument, &WidthRead::argument);
  return found == reads.end() ? nullptr : &*found;
}

const c10::IValue* WidthCall::named(std::string_view argument) const {
  const auto& schema = op.schema().arguments();
  for (size_t i = 0; i < schema.size(); ++i)
    if (schema[i].name() == argument) return arguments[i].isNone() ? nullptr : &arguments[i];
  return nullptr;
}

std::optional<std::vector<int64_t>> WidthCall::dims(int64_t count) const {
  const c10::IValue* value = named("dim");
  if (!value) value = named("dims");
  if (!value) return std::nullopt;
  std::vector<int64_t> all;
  if (value->isInt())
    all = {value->toInt()};
  else if (value->isIntList())
    all = value->toIntVector();
  else
    return std::nullopt;
  for (int64_t& dim : all) dim += dim < 0 ? count : 0;
  return all;
}

WidthResult width_rule(const WidthCall& call) {
  if (is_of_single_elements(call)) return of_broadcast(call);
  if (along_dimensions().contains(call.name)) return along_others(call);
  if (call.name == "layer_norm" || call.name == "rms_norm") return of_norm(call);
  if (WidthResult layout = width_of_layout(call)) return layout;
  return width_of_product(call);
}

}  // namespace fulgur::detail
