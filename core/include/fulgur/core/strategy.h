#pragma once

#include <memory>
#include <vector>

#include "fulgur/core/collectives.h"
#include "fulgur/core/data_module.h"
#include "fulgur/core/module.h"
#include "fulgur/core/precision.h"

namespace fulgur {

/// Whether a backward exchanges gradients between ranks; inside an accumulation window it need not.
enum class GradSync { now, deferred };

/// Where a run computes: devices, ranks, communication, placement. A service that the one loop calls.
class FULGUR_API Strategy {
 public:
  static constexpr const char* kRegistryKind = "strategy";

  virtual ~Strategy();
  virtual std::string name() const = 0;
  /// Devices this process uses (the accelerator has chosen them) and the precision, told once before `attach`.
  virtual void configure(std::vector<at::Device> devices, std::shared_ptr<Precision> precision) = 0;
  /// The device of batches and losses.
  virtual at::Device device() const = 0;
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  virtual Collectives& collectives() = 0;
  virtual Precision& precision() = 0;

  /// Converts the module's precision and places it; before optimizers are made.
  virtual void attach(LightningModule& module) = 0;
  /// Brings the batch to its device, through the transfer hooks: those of `data` where there is a data module, which by
  /// default call the module's.
  virtual void batch_to_device(LightningModule& module, DataModule* data, Batch& batch, int64_t loader_idx) = 0;
  /// Micro-batches that one batch is cut into; 1 for most.
  virtual int64_t micro_batches() const { return 1; }
  /// Runs the module's `backward` hook; with GradSync::now, gradients are exchanged where there are several ranks.
  virtual void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) = 0;
  /// The loop calls this, it calls precision.step, that calls the optimizer. `closure` is empty but for optimizers that
  /// need one.
  virtual void optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf) = 0;
  virtual void teardown() noexcept {}
};

}  // namespace fulgur
