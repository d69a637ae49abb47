#include "fulgur/core/state/late_number.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr const char* kNumber = "__number__";

StateTree read(const Tensor& scalar) {
  if (scalar.scalar_type() == at::kBool) return scalar.item<bool>();
  if (scalar.is_floating_point()) return scalar.item<double>();
  return scalar.item<int64_t>();
}

}  // namespace

StateTree late_number(const Tensor& scalar) {
  if (!scalar.defined() || scalar.numel() != 1 || scalar.is_complex())
    throw Error(cat("[core.late_number] a late number must be a tensor with one real element; got ",
                    scalar.defined() ? shape_text(scalar.sizes()) : "an undefined one", "."));
  return scalar.is_cpu() ? read(scalar) : StateTree::map({{kNumber, scalar.detach()}});
}

std::optional<StateTree> read_late_number(const StateTree& state) {
  const auto* map = std::get_if<StateTree::Map>(&state.variant());
  if (map == nullptr || map->size() != 1 || map->begin()->first != kNumber) return std::nullopt;
  const auto* scalar = std::get_if<Tensor>(&map->begin()->second.variant());
  if (scalar == nullptr || !scalar->defined() || scalar->numel() != 1) return std::nullopt;
  return read(*scalar);
}

}  // namespace fulgur
