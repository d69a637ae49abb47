#include "fulgur/strategies/deferred_init.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <set>
#include <utility>

#include "creation/deferred_calls.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr size_t kLeastBytes = size_t{1} << 20;

class CreatedValues final : public StoredValues {
 public:
  CreatedValues(std::shared_ptr<const detail::CreationLog> log, Tensor tensor)
      : log_(std::move(log)), tensor_(std::move(tensor)) {}
  Tensor read() const override { return log_->compute(tensor_); }

 private:
  std::shared_ptr<const detail::CreationLog> log_;
  Tensor tensor_;  // in the log
};

// Lets the parameters stand for their values, and computes the buffers.
void complete(torch::nn::Module& module, const std::shared_ptr<detail::CreationLog>& log) {
  const at::NoGradGuard no_grad;
  std::map<const c10::StorageImpl*, std::set<const c10::TensorImpl*>> registered;
  std::vector<Tensor> parameters;
  for (const Tensor& parameter : module.parameters())
    if (log->has(parameter) &&
        registered[parameter.storage().unsafeGetStorageImpl()].insert(parameter.unsafeGetTensorImpl()).second)
      parameters.push_back(parameter);
  for (const Tensor& buffer : module.buffers())
    if (log->has(buffer)) registered[buffer.storage().unsafeGetStorageImpl()].insert(buffer.unsafeGetTensorImpl());
  for (const auto& [memory, tensors] : log->memory_in_use()) {
    const auto found = registered.find(memory);
    if (tensors > (found == registered.end() ? 0 : found->second.size()))
      throw detail::CannotDefer(
          cat("a tensor of ", memory->nbytes(), " bytes is kept that is neither a parameter nor a buffer"));
  }
  for (const Tensor& parameter : parameters) {
    if (!parameter.is_non_overlapping_and_dense())
      throw detail::CannotDefer("a parameter is a view with gaps or overlaps");
    set_stored_values(parameter, c10::make_intrusive<CreatedValues>(log, log->in_log(parameter)));
  }
  for (Tensor& buffer : module.buffers())
    if (log->has(buffer)) replace_data(buffer, log->read(buffer));
}

}  // namespace

std::shared_ptr<LightningModule> deferred_init(const std::function<std::shared_ptr<LightningModule>()>& make) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const Tensor before = generator.get_state();
  std::string reason;
  bool is_kept = false;
  try {
    const detail::DeferredCalls calls(kLeastBytes);
    std::shared_ptr<LightningModule> module = make();
    if (module) complete(*module, calls.log());
    return module;
  } catch (const detail::CannotDefer& error) {
    reason = error.what();
    is_kept = true;
  } catch (const c10::Error& error) {
    reason = first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    // It may have nothing to do with the memory; then it is thrown again.
    reason = error.what();
  }
  generator.set_state(before);
  std::shared_ptr<LightningModule> module;
  try {
    module = make();
  } catch (const c10::Error& error) {
    // Something that the first call has kept, such as a static tensor, has no memory.
    if (is_kept)
      throw Error(cat("[strategies.deferred_init] the constructor of the module was called twice, since ", reason,
                      ", and the second call failed: ", first_line(error.what_without_backtrace()),
                      ". Set trainer.strategy.deferred_init: false."));
    throw;
  }
  log::warn(
      "strategies.created_whole",
      cat("the module is created whole in the memory of each rank, since its constructor does what cannot be done "
          "before its parameters have memory: ",
          reason));
  return module;
}

}  // namespace fulgur
