#include "checkpoint_frame.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "saved_tensor_engine.h"

namespace fulgur::nn {
namespace {

constexpr const char* kRule =
    " The function must be deterministic: it may not change its own state, and its mode and flags must be the same in "
    "backward.";

thread_local int recomputes = 0;

/// Not a std::exception, so that a function's own `catch` lets it pass.
struct RecomputeIsDone {};

std::vector<at::Device> devices_of(const std::vector<Tensor>& inputs) {
  std::vector<at::Device> devices;
  for (const Tensor& input : inputs)
    if (input.defined() && std::ranges::find(devices, input.device()) == devices.end())
      devices.push_back(input.device());
  return devices;
}

/// Used in the recompute: stores the tensor in its slot. The recomputed graph keeps it too, for a backward inside the
/// function.
class KeepHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit KeepHooks(CheckpointFrame& frame) : frame_(&frame) {}
  void call_pack_hook(const Tensor& tensor) override {
    tensor_ = tensor.requires_grad() ? tensor.detach() : tensor;
    std::exchange(frame_, nullptr)->keep(tensor);
  }
  Tensor call_unpack_hook() override { return tensor_; }

 private:
  CheckpointFrame* frame_;
  Tensor tensor_;
};

class KeepScope final : public SaveScope {
 public:
  explicit KeepScope(CheckpointFrame& frame) : frame_(frame) { ++recomputes; }
  ~KeepScope() override { --recomputes; }
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return std::make_unique<KeepHooks>(frame_); }

 private:
  CheckpointFrame& frame_;
};

}  // namespace

bool in_recompute() { return recomputes > 0; }

RecomputeMark::RecomputeMark(bool recomputing) : recomputing_(recomputing) { recomputes += recomputing_; }
RecomputeMark::~RecomputeMark() { recomputes -= recomputing_; }

CheckpointFrame::CheckpointFrame(const CheckpointOptions& options, const std::vector<Tensor>& inputs,
                                 detail::CheckpointRegion::Run run)
    : options_(options), run_(std::move(run)), devices_(devices_of(inputs)), autocast_(devices_) {
  if (options.preserve_rng_state) generators_.emplace(devices_);
  // Saved like an operation's inputs: a checkpoint around this one drops them, and they are checked for changes.
  for (const Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
}

CheckpointFrame::Kind CheckpointFrame::kind_of(const Tensor& tensor) {
  Kind kind{at::DimVector(tensor.sizes()), tensor.scalar_type(), tensor.device(), std::nullopt};
  if (tensor.requires_grad() && tensor.is_leaf()) kind.version = tensor._version();
  return kind;
}

std::string CheckpointFrame::text(const Kind& kind) {
  return cat(c10::toString(kind.dtype), " ", shape_text(kind.shape), " on ", kind.device.str());
}

std::shared_ptr<Holder> CheckpointFrame::drop(const Tensor& tensor) {
  auto holder = std::make_shared<Holder>();
  const std::lock_guard lock(mutex_);
  holders_.push_back(holder);
  kinds_.push_back(kind_of(tensor));
  return holder;
}

void CheckpointFrame::complete() noexcept {
  const std::lock_guard lock(mutex_);
  complete_ = true;
  if (generators_) generators_->keep_moved();
}

void CheckpointFrame::compare(size_t index, const Kind& found) {
  const Kind& known = kinds_[index];
  if (!difference_.empty()) return;
  if (found.shape != known.shape || found.dtype != known.dtype || found.device != known.device)
    difference_ =
        cat("[nn.checkpoint] the recompute must save the same tensors as forward; number ", index, " of ",
            kinds_.size(), " was ", text(known), " in forward and is ", text(found), " in the recompute.", kRule);
  else if (known.version && found.version && *known.version != *found.version)
    difference_ =
        cat("[nn.checkpoint] a parameter must not change between forward and backward; tensor number ", index, " of ",
            kinds_.size(), ", ", text(known), ", was changed in place. Call backward before the optimizer's step.");
}

void CheckpointFrame::keep(const Tensor& tensor) {
  const size_t index = saved_++;
  if (index >= holders_.size()) return;
  if (options_.determinism_check) compare(index, kind_of(tensor));
  // Detached from the recomputed graph, which could otherwise own itself; the version is still that of `tensor`.
  if (const auto holder = holders_[index].lock())
    holder->values.insert_or_assign(
        pass_, Holder::Value{tensor.requires_grad() ? tensor.detach() : tensor, tensor._version()});
  if (saved_ == holders_.size() && (options_.early_stop || !complete_)) throw RecomputeIsDone();
}

void CheckpointFrame::run_again() {
  std::vector<Tensor> inputs;
  for (const auto& input : inputs_) inputs.push_back(input.unpack());
  const at::AutoGradMode with_graph(true);
  const AutocastState::Guard autocast(autocast_);
  std::optional<c10::impl::IncludeDispatchKeyGuard> seen;
  if (is_seen_) seen.emplace(c10::DispatchKey::DeferredInit);
  std::optional<GeneratorStates::Guard> generators;
  if (generators_) generators.emplace(*generators_);
  const KeepScope scope(*this);
  try {
    run_(inputs);
  } catch (const RecomputeIsDone&) {
  }
}

void CheckpointFrame::check() const {
  // A function that runs a backward itself reaches its frame before everything is saved.
  if (complete_ && saved_ != holders_.size())
    throw Error(cat("[nn.checkpoint] the recompute must save as many tensors as forward, ", holders_.size(),
                    "; it saved ", saved_, ".", kRule));
  if (!difference_.empty()) throw Error(difference_);
}

void CheckpointFrame::recompute() {
  if (recomputing_)
    throw Error(
        "[nn.checkpoint] the recompute must not need tensors that the function saved, since it computes them; it "
        "needed one of them.");
  recomputing_ = true;
  saved_ = 0;
  difference_.clear();
  try {
    run_again();
    recomputing_ = false;
    check();
  } catch (...) {
    recomputing_ = false;
    forget(pass_);
    throw;
  }
}

void CheckpointFrame::forget(int pass) {
  const std::lock_guard lock(mutex_);
  for (const auto& known : holders_)
    if (const auto holder = known.lock()) holder->values.erase(pass);
}

Tensor CheckpointFrame::take(Holder& holder) {
  const int pass = torch::autograd::get_current_graph_task_id();
  const std::lock_guard lock(mutex_);
  auto found = holder.values.find(pass);
  if (found == holder.values.end()) {
    pass_ = pass;
    recompute();
    // A pass through a part of a retained graph leaves values that are never taken.
    if (pass != -1)
      torch::autograd::Engine::get_default_engine().queue_callback([frame = weak_from_this(), pass] {
        if (const auto living = frame.lock()) living->forget(pass);
      });
    found = holder.values.find(pass);
    if (found == holder.values.end())
      throw Error(
          cat("[nn.checkpoint] the recompute must save the same tensors as forward; it did not reach a tensor that "
              "backward needs.",
              kRule));
  }
  const Holder::Value value = std::move(found->second);
  holder.values.erase(found);
  if (pass == -1) forget(pass);
  if (value.tensor._version() != value.version)
    throw Error(cat("[nn.checkpoint] a tensor that backward needs must not be changed in place; ",
                    text(kind_of(value.tensor)), " is at version ", value.tensor._version(), ", expected ",
                    value.version, ". Use the operation that is not in place."));
  return value.tensor;
}

}  // namespace fulgur::nn
