#include "fulgur/core/contracts/collectives.h"

#include <ATen/ops/stack.h>

#include <utility>

namespace fulgur {
namespace {

class Known final : public PendingReduction {
 public:
  explicit Known(std::vector<int64_t> values) : values_(std::move(values)) {}
  std::vector<int64_t> take() override { return std::move(values_); }

 private:
  std::vector<int64_t> values_;
};

}  // namespace

Collectives::~Collectives() = default;
PendingReduction::~PendingReduction() = default;

Tensor Collectives::all_gather_same(const Tensor& value, bool with_gradients) {
  return at::stack(all_gather(value, with_gradients));
}

bool same_on_all_ranks(Collectives& collectives, std::vector<int64_t> numbers) {
  const size_t count = numbers.size();
  numbers.reserve(2 * count);
  // ~ reverses the order: the maximum of ~n is ~(the minimum of n).
  for (size_t i = 0; i < count; ++i) numbers.push_back(~numbers[i]);
  const std::vector<int64_t> largest = collectives.start_max(std::move(numbers))->take();
  for (size_t i = 0; i < count; ++i)
    if (largest[i] != ~largest[count + i]) return false;
  return true;
}

std::unique_ptr<PendingReduction> SingleProcessCollectives::start_max(std::vector<int64_t> values) {
  return std::make_unique<Known>(std::move(values));
}

}  // namespace fulgur
