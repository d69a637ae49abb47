#include "fulgur/data/sample_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <array>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "reading/sample_error.h"

namespace fulgur {
namespace {

template <class T>
constexpr at::ScalarType dtype_of() {
  if constexpr (std::is_same_v<T, int64_t>)
    return at::kLong;
  else if constexpr (std::is_same_v<T, double>)
    return at::kDouble;
  else if constexpr (std::is_same_v<T, float>)
    return at::kFloat;
  else
    return at::kBool;
}

/// The value as a separate tensor.
Tensor to_tensor(const Sample::Value& value) {
  return std::visit(
      [](const auto& v) -> Tensor {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, Tensor>)
          return v.defined() ? v.detach() : v;
        else if constexpr (std::is_same_v<T, std::string>)
          return {};
        else
          return at::scalar_tensor(at::Scalar(v), at::TensorOptions().dtype(dtype_of<T>()));
      },
      value);
}

std::string kind(const Tensor& tensor) {
  return cat(at::toString(tensor.scalar_type()), " ", shape_text(tensor.sizes()));
}

class RowWriter {
 public:
  /// `advice` is called for the error of a sample whose shape differs.
  RowWriter(Batch& out, int64_t row, int64_t index, std::function<std::string()> advice)
      : out_(out), row_(row), index_(index), advice_(std::move(advice)) {}

  void write(const Sample& sample) const {
    if (sample.entries() != out_.entries()) mismatch(sample);
    for (size_t i = 0; i < sample.entries(); ++i) {
      const auto& [name, value] = sample.entry(i);
      auto& [expected, target] = out_.entry(i);
      if (name != expected) mismatch(sample);
      const auto row = static_cast<size_t>(row_);
      if (auto* texts = std::get_if<std::vector<std::string>>(&target)) {
        if (!std::holds_alternative<std::string>(value)) mismatch(sample);
        texts->at(row) = std::get<std::string>(value);
      } else if (std::holds_alternative<std::string>(value)) {
        mismatch(sample);
      } else if (auto* list = std::get_if<std::vector<Tensor>>(&target)) {
        list->at(row) = to_tensor(value);
      } else {
        write_row(name, value, std::get<Tensor>(target));
      }
    }
  }

 private:
  void write_row(const std::string& name, const Sample::Value& value, const Tensor& target) const {
    const auto row_shape = target.sizes().slice(1);
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      if (!tensor->defined() || tensor->sizes() != row_shape || tensor->scalar_type() != target.scalar_type())
        unlike(name, value, target);
      if (tensor->numel() == 0) return;  // it may have no memory
      if (tensor->is_cpu() && target.is_cpu() && tensor->is_contiguous() && target.is_contiguous())
        std::memcpy(static_cast<char*>(target.mutable_data_ptr()) + static_cast<size_t>(row_) * tensor->nbytes(),
                    tensor->const_data_ptr(), tensor->nbytes());
      else
        target.select(0, row_).copy_(tensor->detach());
      return;
    }
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_arithmetic_v<T>) {
            if (!row_shape.empty() || target.scalar_type() != dtype_of<T>()) unlike(name, value, target);
            target.mutable_data_ptr<T>()[row_] = v;
          }
        },
        value);
  }

  [[noreturn]] void unlike(const std::string& name, const Sample::Value& value, const Tensor& target) const {
    const Tensor got = to_tensor(value);
    throw DataError(cat("[data.SampleDataset] samples of entry '", name,
                        "' must have the same dtype and shape; sample ", index_, " has ",
                        got.defined() ? kind(got) : "an undefined tensor", ", but the first one had ",
                        at::toString(target.scalar_type()), " ", shape_text(target.sizes().slice(1)), ". ", advice_()));
  }

  [[noreturn]] void mismatch(const Sample& sample) const {
    std::vector<std::string> got, expected;
    for (size_t i = 0; i < sample.entries(); ++i) got.push_back(sample.entry(i).first);
    for (const auto& [name, value] : out_) expected.push_back(name);
    throw DataError(
        cat("[data.SampleDataset] all samples must have the entries of the first one, of the same kinds; sample ",
            index_, " has ", join(got), " instead of ", join(expected), "."));
  }

  Batch& out_;
  int64_t row_, index_;
  std::function<std::string()> advice_;
};

}  // namespace

Batch SampleDataset::prototype() const {
  Batch batch;
  if (size() == 0) return batch;
  // Its errors are reported as for any other sample.
  const std::array<int64_t, 1> index{0};
  Sample first;
  if (const auto error = exception_of([&] { first = get(0, {}); })) throw_naming(error, index, "");
  for (size_t i = 0; i < first.entries(); ++i) {
    const auto& [name, value] = first.entry(i);
    if (std::holds_alternative<std::string>(value))
      batch.add(name, std::vector<std::string>(1));
    else
      batch.add(name, to_tensor(value).unsqueeze(0));
  }
  return batch;
}

std::string SampleDataset::advice_for_shape(int64_t) const {
  return "Give the loader a collate function (stack_all_but, pad) if shapes differ.";
}

void SampleDataset::read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out,
                         const SampleContext& context) const {
  for (size_t i = 0; i < indices.size(); ++i) {
    const int64_t index = indices[i];
    const auto error = exception_of([&] {
      RowWriter(out, first_row + static_cast<int64_t>(i), index, [&] {
        return advice_for_shape(index);
      }).write(get(index, context));
    });
    if (error) throw_naming(error, indices.slice(i, 1), "");
  }
}

}  // namespace fulgur
