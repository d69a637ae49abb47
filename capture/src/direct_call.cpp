#include "direct_call.h"

#include <ATen/Parallel.h>

#include <cstring>

#include "fulgur/core/state/plain_copy.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::detail {
namespace {

class Clear final : public DirectCall {
 public:
  explicit Clear(Tensor tensor) : tensor_(std::move(tensor)), size_(tensor_.nbytes()) {}
  void run() override { std::memset(tensor_.mutable_data_ptr(), 0, size_); }

 private:
  Tensor tensor_;
  size_t size_;
};

class PlainCopy final : public DirectCall {
 public:
  PlainCopy(Tensor to, Tensor from) : to_(std::move(to)), from_(std::move(from)), size_(from_.nbytes()) {}
  void run() override {
    if (size_ > 0) std::memcpy(to_.mutable_data_ptr(), from_.const_data_ptr(), size_);
  }

 private:
  Tensor to_, from_;
  size_t size_;
};

class BiasProduct final : public DirectCall {
 public:
  using Signature = Tensor&(const Tensor&, const Tensor&, const Tensor&, const at::Scalar&, const at::Scalar&, Tensor&);

  BiasProduct(const c10::OperatorHandle& op, Tensor bias, Tensor a, Tensor b, at::Scalar alpha, Tensor out)
      : op_(op.typed<Signature>()),
        bias_(std::move(bias)),
        a_(std::move(a)),
        b_(std::move(b)),
        out_(std::move(out)),
        alpha_(std::move(alpha)),
        row_(bias_.nbytes()),
        rows_(out_.size(0)) {}
  void run() override {
    auto* to = static_cast<char*>(out_.mutable_data_ptr());
    const void* const from = bias_.const_data_ptr();
    for (int64_t i = 0; i < rows_; ++i, to += row_) std::memcpy(to, from, row_);
    op_.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), out_, a_, b_, beta_, alpha_, out_);
  }

 private:
  c10::TypedOperatorHandle<Signature> op_;
  Tensor bias_, a_, b_, out_;
  at::Scalar beta_ = 1, alpha_;
  size_t row_;
  int64_t rows_;
};

class Increment final : public DirectCall {
 public:
  Increment(Tensor tensor, float by) : tensor_(std::move(tensor)), by_(by) {}
  void run() override { *tensor_.mutable_data_ptr<float>() += by_; }

 private:
  Tensor tensor_;
  float by_;
};

}  // namespace

DirectCall::~DirectCall() = default;

void exchange_memory(const std::vector<Tensor>& to, std::span<const Tensor> results) {
  bool alike = to.size() == results.size();
  c10::StorageImpl* last = nullptr;
  for (size_t i = 0; alike && i < to.size(); ++i) {
    const Tensor &mine = to[i], &fresh = results[i];
    if (!mine.defined()) continue;
    alike = fresh.defined() && mine.scalar_type() == fresh.scalar_type() && mine.sizes() == fresh.sizes() &&
            mine.strides() == fresh.strides() && mine.storage_offset() == fresh.storage_offset() &&
            mine.storage().nbytes() == fresh.storage().nbytes();
    if (!alike) break;
    c10::StorageImpl* const kept = mine.storage().unsafeGetStorageImpl();
    c10::StorageImpl* const given = fresh.storage().unsafeGetStorageImpl();
    if (kept == last) continue;  // results that share memory come one after the other
    last = kept;
    at::DataPtr memory = given->set_data_ptr(at::DataPtr(nullptr, c10::Device(c10::kCPU)));
    memory = kept->set_data_ptr(std::move(memory));
    given->set_data_ptr_noswap(std::move(memory));
  }
  if (!alike)
    throw Error(
        "[CapturedProgram.replay] an operation's results have the shapes of the recording; it has made others, since "
        "they "
        "depend on values. Set trainer.capture to false, or move the operation out of the step.");
}

std::unique_ptr<DirectCall> make_clear(const Tensor& tensor) { return std::make_unique<Clear>(tensor); }

std::unique_ptr<DirectCall> make_plain_copy(const Tensor& to, const Tensor& from) {
  return std::make_unique<PlainCopy>(to, from);
}

std::unique_ptr<DirectCall> make_bias_product(const c10::OperatorHandle& op,
                                              const std::vector<c10::IValue>& arguments) {
  const Tensor &bias = arguments[0].toTensor(), &a = arguments[1].toTensor(), &b = arguments[2].toTensor(),
               &out = arguments[5].toTensor();
  const bool fits = bias.dim() == 1 && bias.is_contiguous() && bias.scalar_type() == out.scalar_type() &&
                    out.dim() == 2 && out.is_contiguous() && out.size(1) == bias.size(0) && out.size(0) > 0 &&
                    out.size(1) > 0 && out.numel() < at::internal::GRAIN_SIZE && holds_its_values(bias);
  if (!fits || arguments[3].toScalar().toComplexDouble() != 1. || out.is_alias_of(bias) || out.is_alias_of(a) ||
      out.is_alias_of(b))
    return nullptr;
  return std::make_unique<BiasProduct>(op, bias, a, b, arguments[4].toScalar(), out);
}

std::unique_ptr<DirectCall> make_increment(const Tensor& tensor, float by) {
  return std::make_unique<Increment>(tensor, by);
}

}  // namespace fulgur::detail
