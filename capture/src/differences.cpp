#include "differences.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

using c10::IValue;

std::string value_text(const IValue& value) {
  if (value.isDouble()) return format_double(value.toDouble());
  std::ostringstream out;
  out << value;
  return out.str();
}

bool same_double(double one, double other) { return std::bit_cast<uint64_t>(one) == std::bit_cast<uint64_t>(other); }

bool same_host_value(const IValue& one, const IValue& other) {
  if (one.tagKind() != other.tagKind()) return false;
  if (one.isDouble()) return same_double(one.toDouble(), other.toDouble());
  if (one.isComplexDouble())
    return same_double(one.toComplexDouble().real(), other.toComplexDouble().real()) &&
           same_double(one.toComplexDouble().imag(), other.toComplexDouble().imag());
  if (one.isGenerator()) return one.toGenerator() == other.toGenerator();
  if (one.isDoubleList()) return std::ranges::equal(one.toDoubleVector(), other.toDoubleVector(), same_double);
  if (one.isList()) {
    const auto mine = one.toListRef(), theirs = other.toListRef();
    return std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end(), same_host_value);
  }
  return value_text(one) == value_text(other);
}

bool same_bytes(const Tensor& one, const Tensor& other) {
  const size_t size = one.storage().nbytes();
  return size == other.storage().nbytes() &&
         (size == 0 || std::memcmp(one.storage().data(), other.storage().data(), size) == 0);
}

class Comparison {
 public:
  Comparison(const ComparedRecording& before, const ComparedRecording& now) : before_(before), now_(now) {}

  bool is_of_host = false;  // what was found is no operation's

  std::optional<std::string> of_values(const IValue& one, const IValue& other) {
    std::vector<Tensor> mine, theirs;
    each_tensor(one, [&mine](const Tensor& tensor) { mine.push_back(tensor); });
    each_tensor(other, [&theirs](const Tensor& tensor) { theirs.push_back(tensor); });
    if (mine.size() != theirs.size()) return cat("it had ", mine.size(), " tensors and now has ", theirs.size());
    for (size_t i = 0; i < mine.size(); ++i)
      if (auto found = of_tensors(mine[i], theirs[i])) return found;
    const bool is_of_tensors = one.isTensor() || one.isTensorList() || one.isOptionalTensorList();
    if (is_of_tensors && one.tagKind() == other.tagKind()) return std::nullopt;
    if (mine.empty() && !same_host_value(one, other))
      return cat("it was ", value_text(one), " and is now ", value_text(other), ", computed on the host");
    return std::nullopt;
  }

 private:
  std::optional<std::string> of_tensors(const Tensor& mine, const Tensor& theirs) {
    if (mine.scalar_type() != theirs.scalar_type() || mine.sizes() != theirs.sizes() ||
        mine.strides() != theirs.strides() || mine.storage_offset() != theirs.storage_offset())
      return cat("the tensor had shape ", shape_text(mine.sizes()), " of ", c10::toString(mine.scalar_type()),
                 " and now has ", shape_text(theirs.sizes()), " of ", c10::toString(theirs.scalar_type()),
                 ", or other strides or another place in its memory");
    if (is_wrapped_number(mine) != is_wrapped_number(theirs)) return "a number was a tensor";
    if (is_wrapped_number(mine))
      return std::memcmp(mine.const_data_ptr(), theirs.const_data_ptr(), mine.nbytes()) == 0
                 ? std::nullopt
                 : std::optional<std::string>("a number of the host has changed");
    const auto first = before_.uses.find(storage_of(mine)), second = now_.uses.find(storage_of(theirs));
    if (first == before_.uses.end() || second == now_.uses.end()) return std::nullopt;
    const StorageUse &was = first->second, &is = second->second;
    if (was.number != is.number || was.is_made != is.is_made) return "tensors share memory in another way";
    if (was.is_made || storage_of(mine) == storage_of(theirs) || is_input(was, is)) return std::nullopt;
    if (before_.uses.contains(storage_of(theirs)))
      return "it reads a result of the previous step, which is other memory in each step; keep such state in one "
             "tensor "
             "and write it in place, as copy_ does";
    if (!was.is_written && !is.is_written && have_same_values(mine, theirs)) return std::nullopt;
    is_of_host = true;
    const auto place = now_.raw.places.find(storage_of(theirs));
    return cat("host code", place == now_.raw.places.end() || place->second.empty() ? "" : cat(" in ", place->second),
               " gives the step a tensor of shape ", shape_text(theirs.sizes()),
               " that is other memory in each step, or has other values that the host computed, as from_blob makes it; "
               "keep it in one tensor and write it in place, as copy_ does");
  }

  bool have_same_values(const Tensor& mine, const Tensor& theirs) const {
    const auto first = before_.raw.borrowed.find(storage_of(mine));
    const auto second = now_.raw.borrowed.find(storage_of(theirs));
    if (first == before_.raw.borrowed.end() && second == now_.raw.borrowed.end()) return same_bytes(mine, theirs);
    return first != before_.raw.borrowed.end() && second != now_.raw.borrowed.end() && first->second == second->second;
  }

  bool is_input(const StorageUse& was, const StorageUse& is) const {
    for (size_t i = 0; i < std::min(before_.inputs.size(), now_.inputs.size()); ++i)
      if (storage_of(before_.inputs[i]) == was.storage.unsafeGetStorageImpl() &&
          storage_of(now_.inputs[i]) == is.storage.unsafeGetStorageImpl())
        return true;
    return false;
  }

  const ComparedRecording &before_, &now_;
};

std::string argument_name(const RecordedCall& call, size_t i) { return call.op.schema().arguments()[i].name(); }

}  // namespace

std::optional<std::string> difference_between(const ComparedRecording& before, const ComparedRecording& now) {
  Comparison comparison(before, now);
  const size_t shared = std::min(before.raw.calls.size(), now.raw.calls.size());
  for (size_t k = 0; k < shared; ++k) {
    const RecordedCall &was = before.raw.calls[k], &is = now.raw.calls[k];
    const std::string place = cat(name_of(is.op), " (operation ", k + 1, ")");
    if (was.op.operator_name() != is.op.operator_name())
      return cat(place, " is called where the previous step called ", name_of(was.op));
    for (size_t i = 0; i < is.arguments.size(); ++i)
      if (const auto found = comparison.of_values(was.arguments[i], is.arguments[i]))
        return comparison.is_of_host ? *found : cat(place, ", argument ", argument_name(is, i), ": ", *found);
    for (size_t i = 0; i < is.results.size(); ++i)
      if (const auto found = comparison.of_values(was.results[i], is.results[i]))
        return cat(place, ", result: ", *found);
    if (was.kind != is.kind) return cat(place, ": its results share memory in another way");
  }
  if (before.raw.calls.size() == now.raw.calls.size()) return std::nullopt;
  const bool more = now.raw.calls.size() > shared;
  return cat(name_of((more ? now : before).raw.calls[shared].op), " (operation ", shared + 1, ") is called only in ",
             more ? "this" : "the previous", " step");
}

}  // namespace fulgur::detail
