#include "fulgur/nn/saved_tensors_hooks.h"

#include "saved_tensor_engine.h"

namespace fulgur::nn {
namespace {

struct Functions {
  SavedTensorsHooks::Pack pack;
  SavedTensorsHooks::Unpack unpack;
};

class UserHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit UserHooks(std::shared_ptr<const Functions> functions) : functions_(std::move(functions)) {}
  void call_pack_hook(const Tensor& tensor) override { packed_ = functions_->pack(tensor); }
  Tensor call_unpack_hook() override { return functions_->unpack(packed_); }

 private:
  std::shared_ptr<const Functions> functions_;
  std::any packed_;
};

}  // namespace

struct SavedTensorsHooks::Impl final : SaveScope {
  Impl(Pack pack, Unpack unpack)
      : functions(std::make_shared<const Functions>(Functions{std::move(pack), std::move(unpack)})) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override {
    return std::make_unique<UserHooks>(functions);
  }
  std::shared_ptr<const Functions> functions;
};

SavedTensorsHooks::SavedTensorsHooks(Pack pack, Unpack unpack)
    : impl_(std::make_unique<Impl>(std::move(pack), std::move(unpack))) {}
SavedTensorsHooks::~SavedTensorsHooks() = default;

}  // namespace fulgur::nn
