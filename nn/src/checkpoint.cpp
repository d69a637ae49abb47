#include "fulgur/nn/checkpoint.h"

#include <torch/nn/modules/container/sequential.h>

#include "checkpoint_frame.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "saved_tensor_engine.h"

namespace fulgur::nn {
namespace {

/// Used in forward: the graph keeps the frame instead of the tensor.
class DropHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit DropHooks(std::shared_ptr<CheckpointFrame> frame) : frame_(std::move(frame)) {}
  void call_pack_hook(const Tensor& tensor) override { holder_ = frame_->drop(tensor); }
  Tensor call_unpack_hook() override { return frame_->take(*holder_); }

 private:
  std::shared_ptr<CheckpointFrame> frame_;
  std::shared_ptr<Holder> holder_;
};

}  // namespace

struct detail::CheckpointRegion::Impl final : SaveScope {
  explicit Impl(std::shared_ptr<CheckpointFrame> of) : frame(std::move(of)) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return std::make_unique<DropHooks>(frame); }
  std::shared_ptr<CheckpointFrame> frame;
};

detail::CheckpointRegion::CheckpointRegion(const CheckpointOptions& options, const std::vector<Tensor>& inputs, Run run)
    : impl_(std::make_unique<Impl>(std::make_shared<CheckpointFrame>(options, inputs, std::move(run)))) {}

detail::CheckpointRegion::~CheckpointRegion() { impl_->frame->complete(); }

Tensor checkpoint_sequential(const torch::nn::Sequential& modules, int64_t segments, const Tensor& input,
                             const CheckpointOptions& options) {
  const auto count = static_cast<int64_t>(modules->size());
  if (segments < 1 || segments > count)
    throw Error(cat("[nn.checkpoint_sequential] segments must be between 1 and the number of modules, ", count,
                    "; got ", segments, "."));
  const auto part = [list = modules.ptr()](int64_t begin, int64_t end) {
    return [list, begin, end](const Tensor& given) {
      Tensor x = given;
      for (int64_t i = begin; i < end; ++i) x = (list->begin() + i)->any_forward(x).get<Tensor>();
      return x;
    };
  };
  const int64_t length = count / segments;
  Tensor x = input;
  for (int64_t i = 0; i + 1 < segments; ++i) x = checkpoint(options, part(i * length, (i + 1) * length), x);
  return part((segments - 1) * length, count)(x);
}

}  // namespace fulgur::nn
