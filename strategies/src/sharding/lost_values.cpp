#include "sharding/lost_values.h"

#include <ATen/ops/empty_strided.h>

#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

class LostValues final : public StoredValues {
 public:
  explicit LostValues(const char* strategy) : strategy_(strategy) {}
  Tensor read() const override {
    throw Error(cat("[strategies.", strategy_,
                    "] the values of the module are divided among the ranks of a run that has ended, since the "
                    "module was created without memory for them. Load a checkpoint of that run into the module."));
  }

 private:
  const char* strategy_;
};

}  // namespace

Tensor lost_values(const char* strategy, const Tensor& parameter, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const Tensor whole = at::empty_strided(sizes, strides, parameter.options().requires_grad(false).device(at::kMeta));
  return stand_in(whole, c10::make_intrusive<LostValues>(strategy));
}

}  // namespace fulgur::detail
