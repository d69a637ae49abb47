#include "direct_call.h"

#include <cstring>

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

std::unique_ptr<DirectCall> make_increment(const Tensor& tensor, float by) {
  return std::make_unique<Increment>(tensor, by);
}

}  // namespace fulgur::detail
