// Products whose sums are not over the divided dimension.
#include <algorithm>

#include "tensor/width_rules.h"

namespace fulgur::detail {
namespace {

WidthResult at_place(int64_t from_last) {
  return [from_last](const Tensor& result) -> std::optional<Division> {
    return Division{.dim = result.dim() + from_last};
  };
}

bool is_one_along(const WidthRead& read, int64_t from_last) {
  const int64_t dim = static_cast<int64_t>(read.sizes.size()) + from_last;
  return dim < 0 || read.sizes[static_cast<size_t>(dim)] == 1;
}

// The divided dimension of a product, counted from the last one; nullopt: the ranks cannot compute their parts.
std::optional<int64_t> place_in_product(const WidthRead* a, const WidthRead* b) {
  if (!a || !b || a->sizes.size() < 2 || b->sizes.size() < 2) return std::nullopt;
  if (!a->division && !b->division) return std::nullopt;
  for (const WidthRead* read : {a, b})
    if (read->division && !read->division->parts.empty()) return std::nullopt;
  const auto place_if = [](bool is_known, int64_t place) { return is_known ? std::optional(place) : std::nullopt; };
  if (a->division && b->division) {
    const int64_t place = a->from_last();
    const bool is_batch = place == b->from_last() && place <= -3;
    return place_if(
        is_batch && a->sizes[static_cast<size_t>(a->division->dim)] == b->sizes[static_cast<size_t>(b->division->dim)],
        place);
  }
  const WidthRead &part = a->division ? *a : *b, &whole = a->division ? *b : *a;
  const int64_t place = part.from_last();
  return place_if(place <= -3 ? is_one_along(whole, place) : place == (a->division ? -2 : -1), place);
}

WidthResult of_matmul(const WidthCall& call) {
  const auto place = place_in_product(call.at(0), call.at(1));
  return place && call.reads.size() == 2 ? at_place(*place) : WidthResult();
}

// A product is added to a value.
WidthResult of_sum_with_product(const WidthCall& call) {
  const WidthRead* sum = call.at(0);
  const auto place = place_in_product(call.at(1), call.at(2));
  if (!place || !sum || call.reads.size() != 3) return {};
  const bool fits =
      sum->division ? sum->from_last() == *place && sum->division->parts.empty() : is_one_along(*sum, *place);
  return fits ? at_place(*place) : WidthResult();
}

WidthResult of_linear(const WidthCall& call) {
  const WidthRead* input = call.at(0);
  if (!input || !input->division || !input->division->parts.empty() || input->from_last() == -1) return {};
  for (const WidthRead& read : call.reads)
    if (read.argument != 0 && read.division) return {};
  return at_place(input->from_last());
}

// Attention by heads.
WidthResult of_attention(const WidthCall& call) {
  const WidthRead *query = call.at(0), *mask = call.at(3);
  if (!query || !query->division || query->sizes.size() < 3 || query->from_last() > -3) return {};
  const int64_t place = query->from_last();
  for (size_t i = 0; i < 3; ++i) {
    const WidthRead* read = call.at(i);
    if (!read || !read->division || read->from_last() != place || !read->division->parts.empty()) return {};
  }
  if (mask && (mask->division ? mask->from_last() != place : !is_one_along(*mask, place))) return {};
  return at_place(place);
}

}  // namespace

WidthResult width_of_product(const WidthCall& call) {
  if (call.name == "matmul" || call.name == "bmm" || call.name == "mm") return of_matmul(call);
  if (call.name == "addmm" || call.name == "baddbmm") return of_sum_with_product(call);
  if (call.name == "einsum") return width_of_einsum(call);
  if (call.name == "linear") return of_linear(call);
  if (call.name == "scaled_dot_product_attention") return of_attention(call);
  return {};
}

}  // namespace fulgur::detail
