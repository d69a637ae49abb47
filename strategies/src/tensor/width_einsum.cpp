// Sums of products that name their dimensions by letters.
#include <algorithm>
#include <map>
#include <string_view>

#include "fulgur/core/text/text.h"
#include "tensor/width_rules.h"

namespace fulgur::detail {
namespace {

// A letter, or for a dimension of an ellipsis its place, counted from the last one, from here on.
using Label = int64_t;
constexpr Label kEllipsis = 256;

struct Term {
  std::vector<Label> labels;
  bool is_known = true;  ///< the term fits the dimensions
};

// With `dims` dimensions, of which an ellipsis has what letters leave.
Term term_of(std::string_view text, int64_t dims) {
  const auto dots = text.find("...");
  const int64_t letters = std::ranges::count_if(text, [](char c) { return c != '.' && c != ' '; });
  Term term;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i == dots) {
      for (int64_t place = dims - letters; place > 0; --place) term.labels.push_back(kEllipsis + place);
      i += 2;
    } else if (text[i] != ' ') {
      term.labels.push_back(static_cast<Label>(text[i]));
    }
  }
  term.is_known = static_cast<int64_t>(term.labels.size()) == dims;
  return term;
}

// Without an arrow: the dimensions of ellipses, then the letters that occur once, in the order of the alphabet.
std::vector<Label> implied_output(const std::vector<Term>& terms, int64_t of_ellipsis) {
  std::map<Label, int64_t> counts;
  for (const Term& term : terms)
    for (const Label label : term.labels) ++counts[label];
  std::vector<Label> output;
  for (int64_t place = of_ellipsis; place > 0; --place) output.push_back(kEllipsis + place);
  for (const auto& [label, count] : counts)
    if (label < kEllipsis && count == 1) output.push_back(label);
  return output;
}

}  // namespace

WidthResult width_of_einsum(const WidthCall& call) {
  const std::string equation = call.arguments[0].toStringRef();
  const auto arrow = equation.find("->");
  const auto texts = split_text(std::string_view(equation).substr(0, arrow), ',');
  if (texts.size() != call.reads.size()) return {};
  std::vector<Term> terms;
  int64_t of_ellipsis = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    terms.push_back(term_of(texts[i], static_cast<int64_t>(call.reads[i].sizes.size())));
    if (!terms.back().is_known) return {};
    of_ellipsis = std::max<int64_t>(of_ellipsis,
                                    std::ranges::count_if(terms.back().labels, [](Label l) { return l >= kEllipsis; }));
  }
  std::optional<Label> divided;
  for (size_t i = 0; i < terms.size(); ++i) {
    const auto& division = call.reads[i].division;
    if (!division) continue;
    const Label label = terms[i].labels[static_cast<size_t>(division->dim)];
    if (!division->parts.empty() || (divided && *divided != label)) return {};
    divided = label;
  }
  if (!divided) return {};
  for (size_t i = 0; i < terms.size(); ++i) {
    const WidthRead& read = call.reads[i];
    // A diagonal has elements of one rank only.
    if (read.division && std::ranges::count(terms[i].labels, *divided) != 1) return {};
    for (size_t dim = 0; !read.division && dim < read.sizes.size(); ++dim)
      if (terms[i].labels[dim] == *divided && read.sizes[dim] != 1) return {};
  }
  std::vector<Label> output;
  if (arrow == std::string::npos) {
    output = implied_output(terms, of_ellipsis);
  } else {
    const std::string_view text = std::string_view(equation).substr(arrow + 2);
    const int64_t letters = std::ranges::count_if(text, [](char c) { return c != '.' && c != ' '; });
    output = term_of(text, letters + (text.find("...") == text.npos ? 0 : of_ellipsis)).labels;
  }
  // Otherwise the products are added over it.
  const auto place = std::ranges::find(output, *divided);
  if (place == output.end()) return {};
  return [dim = place - output.begin()](const Tensor&) { return std::optional(Division{.dim = dim}); };
}

}  // namespace fulgur::detail
