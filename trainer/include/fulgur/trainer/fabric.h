#pragma once

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/contracts/loader.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/contracts/precision.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/contracts/strategy.h"
#include "fulgur/core/options/options.h"
#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/clip.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/trainer/trainer_options.h"

namespace torch::nn {
class Module;
}

namespace fulgur {

/// Where a hand-written loop computes; the options of the Trainer with the same names.
struct FULGUR_API FabricOptions {
  std::string accelerator = "auto";
  DeviceChoice devices = {};
  int64_t num_nodes = 1;
  Spec<Strategy> strategy{"single_device"};
  Spec<Precision> precision{"32-true"};
  Auto<int64_t> num_threads = {};
};

/// What the batches of a loader are for: ranks train in lockstep, so each gets the same number of samples; in an
/// evaluation each sample is read once.
enum class LoaderUse { train, evaluate };

/// The batches of a loader on the device, in the run's number format. Not used after its Fabric has ended.
class FULGUR_API FabricLoader {
 public:
  struct Impl;
  explicit FabricLoader(std::unique_ptr<Impl> impl);
  ~FabricLoader();
  FabricLoader(const FabricLoader&) = delete;
  FabricLoader& operator=(const FabricLoader&) = delete;

  class Iterator {
   public:
    explicit Iterator(FabricLoader& loader) : loader_(&loader), more_(loader.advance()) {}
    const Batch& operator*() const { return loader_->batch(); }
    Iterator& operator++() {
      more_ = loader_->advance();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return !more_; }

   private:
    FabricLoader* loader_;
    bool more_;
  };
  struct Epoch {
    FabricLoader& loader;
    Iterator begin() const { return Iterator(loader); }
    std::default_sentinel_t end() const { return {}; }
  };
  /// The batches of an epoch, for a range-for loop. A loader of training begins where `Fabric::load` found it, if that
  /// was inside this epoch. A batch is valid until the next one.
  Epoch epoch(int64_t epoch);
  /// Batches per epoch on this rank; nullopt if unknown.
  std::optional<int64_t> size() const;

 private:
  bool advance();
  const Batch& batch() const;
  friend class Fabric;
  std::unique_ptr<Impl> impl_;
};

/// Strategy, precision, loaders and checkpoints for a loop that you write yourself, as Lightning's Fabric does.
/// docs/own_loop.md has an example. It has no callbacks, loggers, schedules or signals: those are the loop's, or the
/// Trainer's. All ranks must make the same calls in the same order. Used by one thread.
class FULGUR_API Fabric {
 public:
  explicit Fabric(FabricOptions options = {});
  /// Ends the exchanges with other ranks. During an exception it does not wait for them.
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  /// Starts the processes of a strategy that needs several, each as this program with these arguments, and waits for
  /// them: then the exit code that `main` should return. nullopt in the processes that compute. Call it first in
  /// `main`.
  std::optional<int> launch(int argc, char** argv);

  /// Seeds the generators of this rank, which differ between ranks, and the order of loaders that are set up later,
  /// which does not. Without it rank 0 draws the seed of the loaders.
  void seed_everything(uint64_t seed);
  at::Device device();
  int64_t rank();
  int64_t world_size();
  bool is_global_zero() { return rank() == 0; }
  Strategy& strategy();
  Collectives& collectives() { return strategy().collectives(); }
  /// The reduced value; on one rank the value itself.
  Tensor all_reduce(const Tensor& value, ReduceOp op = ReduceOp::mean) { return collectives().all_reduce(value, op); }
  /// Writes a line to stdout, on rank 0.
  void print(std::string_view line);

  /// Converts the module to the precision, moves it to the device, and gives all ranks the weights of rank 0. An
  /// optimizer without parameters gets all that require gradients. Call it once; several networks are parts of one
  /// module. A module that is a LightningModule is passed to the strategy as it is. Throws a ConfigError for strategies
  /// that split batches or copy the module (dp, model_parallel and hybrid with micro-batches), for which only the
  /// Trainer can compute.
  void setup(std::shared_ptr<torch::nn::Module> module, std::vector<std::shared_ptr<Optimizer>> optimizers = {});
  /// Gives the loader its seed and this rank's share. Throws what `Loader::configure` does.
  std::shared_ptr<FabricLoader> setup_loader(std::shared_ptr<Loader> loader, LoaderUse use = LoaderUse::train);

  /// Calls `compute`, which computes the loss, in the number formats of the precision. With GradSync::deferred the
  /// backward of this loss exchanges no gradients: for all batches of an accumulation window except the last. The loss
  /// is not divided by the length of the window.
  template <class Compute>
  Tensor forward(Compute&& compute, GradSync sync = GradSync::now) {
    before_forward(sync);
    const auto formats = autocast();
    return compute();
  }
  /// What `forward` holds while it computes; nullptr if there is nothing to enter.
  std::unique_ptr<Precision::Guard> autocast();
  /// Scales the loss and computes the gradients, which ranks exchange as the last `forward` said.
  void backward(const Tensor& loss);
  /// Clips the gradients of the optimizer to a joint 2-norm, and returns the norm before; does not wait for the device.
  Tensor clip_gradients(Optimizer& optimizer, double max_norm);
  /// Clamps each gradient to [-clip_value, clip_value].
  void clip_gradients_by_value(Optimizer& optimizer, double clip_value);
  /// Makes the optimizer's step and sets its gradients to undefined. A closure, only for optimizers that need one
  /// (LBFGS), calls `forward` and `backward` and returns the loss; each evaluation begins without gradients.
  void step(Optimizer& optimizer, const Closure& closure = {});

  /// While it lives, the module is in eval mode and no graph is recorded. At its end, modes and random numbers are as
  /// before.
  class FULGUR_API Evaluation {
   public:
    struct Impl;
    explicit Evaluation(std::unique_ptr<Impl> impl);
    ~Evaluation();
    Evaluation(Evaluation&&) noexcept;
    Evaluation& operator=(Evaluation&&) = delete;

   private:
    std::unique_ptr<Impl> impl_;
  };
  [[nodiscard]] Evaluation evaluation();

  /// Writes a checkpoint folder (`NAME.ckpt`): module, optimizers, precision, positions of the loaders, random numbers
  /// of all ranks, and `state`, which is the loop's own. It is complete or absent. Returns its path on all ranks, with
  /// `-v1` if the name is taken. Throws a ConfigError if the name does not end in .ckpt, and a CheckpointError on all
  /// ranks if it cannot be written.
  std::filesystem::path save(const std::filesystem::path& folder, const StateTree& state = {});
  /// Loads a checkpoint into everything that is set up, and returns the loop's own state: the loop then continues to
  /// the bit. Call it after `setup` and `setup_loader`, before the first `forward`. Throws a CheckpointError for
  /// damage, for other parameters, optimizers, loaders or number of ranks, and for a checkpoint that `save` has not
  /// written.
  StateTree load(const std::filesystem::path& folder);

 private:
  void before_forward(GradSync sync);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
