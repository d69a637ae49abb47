// Where the divided dimension is after a change of the layout.
#include <algorithm>
#include <limits>
#include <numeric>

#include "tensor/width_rules.h"

namespace fulgur::detail {
namespace {

bool has_name(const WidthCall& call, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, std::string_view(call.name)) != names.end();
}

int64_t product_of(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// The elements of a rank are blocks of the dimension and those after it. In the new sizes, these are whole dimensions,
// too, of which the first is divided.
std::optional<Division> reshaped(const std::vector<int64_t>& old, const Division& division, at::IntArrayRef sizes,
                                 int64_t inferred) {
  const auto dim = static_cast<size_t>(division.dim);
  const int64_t blocks = product_of(at::IntArrayRef(old).slice(0, dim));
  // Equal dimensions before it are the same ones.
  size_t same = 0;
  while (same < dim && same < sizes.size() && old[same] == sizes[same]) ++same;
  std::vector<int64_t> places;
  for (size_t i = same == dim ? dim : 0; i < sizes.size(); ++i)
    if (product_of(sizes.slice(0, i)) == blocks) places.push_back(static_cast<int64_t>(i));
  if (places.empty()) return std::nullopt;
  int64_t place = places.front();
  const int64_t most = product_of(sizes.slice(static_cast<size_t>(places.back())));
  if (places.size() > 1) {
    // Some have one element: the module's own number, or the unit that no rank divides, tells which one is meant.
    const auto is_inferred = std::ranges::find(places, inferred);
    if (is_inferred != places.end())
      place = inferred;
    else if (division.unit > 1 && most == division.unit)
      place = places[places.size() - 2];
    else if (division.unit > 1 && most > division.unit)
      place = places.back();
    else
      return std::nullopt;
  } else if (inferred > place && (division.parts.empty() || inferred != place + 1)) {
    // A number of groups that the module knows, and each rank would have all of them.
    bool is_old_dim = false;
    for (size_t i = dim + 1; i < old.size(); ++i)
      is_old_dim |= old.size() - i == sizes.size() - static_cast<size_t>(inferred) &&
                    old[i] == sizes[static_cast<size_t>(inferred)];
    if (!is_old_dim) return std::nullopt;
  }
  Division result{.dim = place, .parts = {}, .unit = division.unit};
  const int64_t size = sizes[static_cast<size_t>(place)];
  const bool keeps_it = size == old[dim];
  if (division.parts.empty() || keeps_it) {
    if (keeps_it) result.parts = division.parts;
    // A module may have computed either of the sizes of a split dimension from this rank's part.
    const bool is_split = size < old[dim];
    const int64_t behind = product_of(sizes.slice(static_cast<size_t>(place) + 1));
    return is_split && inferred != place && behind != division.unit ? std::nullopt : std::optional(result);
  }
  // Parts of one size become a dimension of their own, and each is divided.
  const auto count = static_cast<int64_t>(division.parts.size());
  const bool are_equal =
      std::ranges::all_of(division.parts, [&](int64_t part) { return part == division.parts.front(); });
  if (!are_equal || size != count || inferred == place || static_cast<size_t>(place) + 1 >= sizes.size())
    return std::nullopt;
  if (static_cast<size_t>(place) + 2 >= sizes.size() || inferred == place + 1 ||
      sizes[static_cast<size_t>(place) + 1] == division.parts.front())
    return Division{.dim = place + 1, .parts = {}, .unit = division.unit};
  return std::nullopt;
}

WidthResult of_reshape(const WidthCall& call, const WidthRead& read) {
  int64_t inferred = -1;
  // The sizes of a value of which each rank has a part, too.
  if (const WidthRead* form = call.at(1); form && form->division) inferred = form->division->dim;
  for (const char* name : {"size", "shape", "sizes"})
    if (const c10::IValue* sizes = call.named(name); sizes && sizes->isIntList()) {
      const auto asked = sizes->toIntVector();
      inferred = std::ranges::find(asked, -1) - asked.begin();
      if (inferred == static_cast<int64_t>(asked.size()))
        inferred = -1;
      else if (call.name == "unflatten") {
        const auto dims = call.dims(static_cast<int64_t>(read.sizes.size()));
        inferred += dims ? dims->front() : 0;
      }
    }
  return [old = read.sizes, division = *read.division, inferred](const Tensor& result) {
    return reshaped(old, division, result.sizes(), inferred);
  };
}

WidthResult at_dim(Division division, int64_t dim) {
  division.dim = dim;
  return [division](const Tensor&) { return std::optional(division); };
}

WidthResult of_permutation(const WidthCall& call, const WidthRead& read) {
  const auto count = static_cast<int64_t>(read.sizes.size());
  const int64_t dim = read.division->dim;
  if (call.name == "permute") {
    const auto dims = call.dims(count);
    return dims ? at_dim(*read.division, std::ranges::find(*dims, dim) - dims->begin()) : WidthResult();
  }
  int64_t first = count - 2, second = count - 1;
  if (has_name(call, {"transpose", "swapaxes", "swapdims"})) {
    if (!call.arguments[1].isInt() || !call.arguments[2].isInt()) return {};
    first = call.arguments[1].toInt(), second = call.arguments[2].toInt();
    first += first < 0 ? count : 0, second += second < 0 ? count : 0;
  } else if (count != 2 && call.name != "mT") {
    return {};
  }
  return at_dim(*read.division, dim == first ? second : dim == second ? first : dim);
}

WidthResult of_squeeze(const WidthCall& call, const WidthRead& read) {
  const auto count = static_cast<int64_t>(read.sizes.size());
  const int64_t dim = read.division->dim;
  const auto dims = call.dims(count);
  int64_t before = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (dims && std::ranges::find(*dims, i) == dims->end()) continue;
    // One process has more elements there, and would keep it.
    if (i == dim && (!dims || read.sizes[static_cast<size_t>(i)] == 1)) return {};
    before += i < dim && read.sizes[static_cast<size_t>(i)] == 1;
  }
  return at_dim(*read.division, dim - before);
}

// Whole parts of a fused dimension, or of another one.
WidthResult of_pieces(const WidthCall& call, const WidthRead& read) {
  const auto count = static_cast<int64_t>(read.sizes.size());
  const Division division = *read.division;
  const auto dims = call.dims(count);
  if (!dims || dims->size() != 1) return {};
  const bool removes = has_name(call, {"select", "unbind"});
  if (dims->front() != division.dim) return at_dim(division, division.dim - (removes && dims->front() < division.dim));
  if (removes || division.parts.empty()) return {};
  const auto part_size = [dim = division.dim](const Tensor& piece) { return piece.size(dim); };
  if (has_name(call, {"slice", "narrow"})) {
    const c10::IValue *start = call.named("start"), *step = call.named("step");
    if (step && (!step->isInt() || step->toInt() != 1)) return {};
    const int64_t asked = start && start->isInt() ? start->toInt() : 0;
    return [=](const Tensor& piece) -> std::optional<Division> {
      int64_t begin = 0;
      for (const int64_t part : division.parts) {
        if (begin == asked && part_size(piece) == part)
          return Division{.dim = division.dim, .parts = {}, .unit = division.unit};
        begin += part;
      }
      return std::nullopt;
    };
  }
  // The pieces come in their order.
  return [=, next = size_t{0}](const Tensor& piece) mutable -> std::optional<Division> {
    if (next >= division.parts.size() || part_size(piece) != division.parts[next]) return std::nullopt;
    ++next;
    return Division{.dim = division.dim, .parts = {}, .unit = division.unit};
  };
}

// By an index that all ranks have.
WidthResult of_chosen_rows(const WidthCall& call, const WidthRead& read) {
  const WidthRead* index = call.at(2);
  const auto dims = call.dims(static_cast<int64_t>(read.sizes.size()));
  const bool is_known = index && !index->division && dims && dims->size() == 1 && dims->front() != read.division->dim;
  return is_known ? at_dim(*read.division, read.division->dim) : WidthResult();
}

WidthResult of_join(const WidthCall& call) {
  const WidthRead& first = call.reads.front();
  if (!first.division) return {};
  for (const WidthRead& read : call.reads)
    if (!read.division || read.division->dim != first.division->dim || read.sizes.size() != first.sizes.size() ||
        read.division->parts != first.division->parts)
      return {};
  const bool stacks = call.name == "stack";
  const auto dims = call.dims(static_cast<int64_t>(first.sizes.size()) + stacks);
  if (!dims || dims->size() != 1) return {};
  const int64_t dim = dims->front(), divided = first.division->dim;
  if (stacks) return at_dim(*first.division, divided + (dim <= divided));
  return dim == divided ? WidthResult() : at_dim(*first.division, divided);
}

}  // namespace

WidthResult width_of_layout(const WidthCall& call) {
  if (has_name(call, {"cat", "concat", "concatenate", "stack"})) return of_join(call);
  const WidthRead* read = call.at(0);
  if (!read || !read->division) return {};
  const auto count = static_cast<int64_t>(read->sizes.size());
  const int64_t dim = read->division->dim;
  if (has_name(call, {"expand", "expand_as"}))
    return [size = read->sizes[static_cast<size_t>(dim)], division = *read->division,
            count](const Tensor& result) -> std::optional<Division> {
      Division moved = division;
      moved.dim += result.dim() - count;
      return result.size(moved.dim) == size ? std::optional(moved) : std::nullopt;
    };
  if (has_name(call, {"view_as", "reshape_as"})) return of_reshape(call, *read);
  if (call.name == "index_select") return of_chosen_rows(call, *read);
  if (call.reads.size() != 1) return {};
  if (has_name(call, {"reshape", "_unsafe_view", "flatten", "unflatten"}) ||
      (call.name == "view" && call.named("size")))
    return of_reshape(call, *read);
  if (has_name(call, {"transpose", "swapaxes", "swapdims", "permute", "t", "numpy_T", "mT"}))
    return of_permutation(call, *read);
  if (call.name == "squeeze") return of_squeeze(call, *read);
  if (call.name == "unsqueeze") {
    const auto dims = call.dims(count + 1);
    return at_dim(*read->division, dim + (dims->front() <= dim));
  }
  if (has_name(call, {"chunk", "split", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split",
                      "unsafe_split_with_sizes", "narrow", "slice", "select", "unbind"}))
    return of_pieces(call, *read);
  return {};
}

}  // namespace fulgur::detail
