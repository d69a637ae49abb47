#include "distributed/gradient_reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <algorithm>
#include <sstream>
#include <torch/csrc/distributed/c10d/default_comm_hooks.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "distributed/process_group_impl.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

/// Sends and averages gradients as bfloat16: half the bytes, eight bits of precision.
class Bf16CompressHook final : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  using CppCommHookInterface::CppCommHookInterface;
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    Tensor small = bucket.getBufferRef().to(at::kBFloat16);
    small.div_(state_->getSize());
    std::vector<Tensor> tensors{small};
    const Tensor target = bucket.getBufferRef();
    return state_->allreduce(tensors)->getFuture()->then(
        [target](c10::ivalue::Future& done) {
          const auto list = done.value().toTensorVector();
          target.copy_(list.at(0));
          return c10::IValue(target);
        },
        c10::TensorType::get());
  }
};

// LibTorch fills buckets from the last layer on, the first of them small, so that communication starts early.
std::vector<std::vector<size_t>> assign_by_size(const std::vector<Tensor>& parameters, int64_t cap_bytes) {
  const std::vector<size_t> limits{static_cast<size_t>(std::min<int64_t>(c10d::kDefaultFirstBucketBytes, cap_bytes)),
                                   static_cast<size_t>(cap_bytes)};
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits));
  std::ranges::reverse(buckets);
  return buckets;
}

}  // namespace

struct GradientReducer::Impl {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::shared_ptr<c10d::Reducer> reducer;
  // The Reducer holds it weakly, and crashes without it if the set of unused parameters changes.
  std::shared_ptr<c10d::Logger> logger;
};

GradientReducer::GradientReducer(C10dCollectives& ranks, std::vector<NamedParameter> parameters,
                                 const DDPStrategy::Options& options, const Buckets& buckets)
    : GradientExchange(std::move(parameters)),
      rank_(ranks.rank_in_run()),
      find_unused_(options.find_unused_parameters || options.static_graph),
      static_graph_(options.static_graph),
      impl_(std::make_unique<Impl>()) {
  std::vector<Tensor> tensors;
  std::unordered_map<size_t, std::string> names;
  for (const NamedParameter& parameter : this->parameters()) {
    names.emplace(tensors.size(), parameter.name);
    tensors.push_back(parameter.value);
  }
  const auto cap_bytes = static_cast<int64_t>(options.bucket_cap_mb.value.value() * 1024 * 1024);
  std::vector<std::vector<size_t>> assignment;
  for (const auto& bucket : buckets) assignment.emplace_back(bucket.begin(), bucket.end());
  if (assignment.empty()) assignment = assign_by_size(tensors, cap_bytes);
  impl_->group = ranks.group();
  impl_->reducer = std::make_shared<c10d::Reducer>(
      tensors, std::move(assignment), impl_->group, std::vector<bool>(tensors.size(), false), cap_bytes,
      options.find_unused_parameters, options.gradient_as_bucket_view, std::move(names),
      std::min<int64_t>(c10d::kDefaultFirstBucketBytes, cap_bytes), /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, std::vector<int64_t>{});
  impl_->logger = std::make_shared<c10d::Logger>(impl_->reducer);
  impl_->reducer->set_logger(impl_->logger);
  if (options.static_graph) impl_->reducer->set_static_graph();
  if (options.compression == DDPStrategy::Compression::fp16)
    impl_->reducer->register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);
  if (options.compression == DDPStrategy::Compression::bf16)
    impl_->reducer->register_comm_hook(std::make_unique<Bf16CompressHook>(impl_->group));
}

GradientReducer::~GradientReducer() {
  try {
    impl_->reducer->remove_autograd_hooks();
  } catch (const std::exception&) {
    // The parameters keep hooks of a reducer that is no longer active.
  }
}

void GradientReducer::before_forward() { impl_->reducer->prepare_for_forward(); }

void GradientReducer::call_before_wait(const Tensor& loss, std::function<void()> awaited) {
  // The engine calls what was queued during backward at its end, in this order, and the Reducer waits in such a call.
  loss.register_hook([awaited = std::move(awaited)](const Tensor&) {
    torch::autograd::Engine::get_default_engine().queue_callback(awaited);
  });
}

void GradientReducer::before_backward(const Tensor& loss) {
  if (static_graph_ && !std::exchange(began_, true)) {
    // What the graph uses is known only at the end of the first backward; its gradients are exchanged then, within that
    // backward.
    loss.register_hook([reducer = impl_->reducer](const Tensor&) {
      torch::autograd::Engine::get_default_engine().queue_callback([reducer] { reducer->delay_all_reduce(); });
    });
  }
  // The graph is traversed only to find unused parameters.
  impl_->reducer->prepare_for_backward(find_unused_ ? std::vector<Tensor>{loss} : std::vector<Tensor>{});
}

void GradientReducer::after_backward() {
  // After the first exchange LibTorch rebuilds its buckets in the order in which gradients arrived. Do this now and not
  // before the next forward, so that a checkpoint in between has the buckets of the next step: with three or more
  // ranks, sums depend on them. It also throws if a parameter did not take part in the exchange, even if an earlier
  // batch of the window gave it a gradient.
  try {
    impl_->reducer->rebuild_buckets();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("Expected to have finished reduction") == text.npos) throw;
    throw no_gradient_error(without_gradient(text), rank_);
  }
}

// LibTorch's message ends with the parameters' indices, or with their names if TORCH_DISTRIBUTED_DEBUG is set.
std::vector<std::string> GradientReducer::without_gradient(const std::string& message) const {
  const size_t list = message.find("did not receive grad for rank");
  const size_t begin = list == message.npos ? message.npos : message.find(':', list);
  if (begin == message.npos) return {"(unknown)"};
  std::istringstream words(message.substr(begin + 1, message.find('\n', begin) - begin - 1));
  std::vector<std::string> names;
  for (std::string word; words >> word;) {
    const bool index =
        word.find_first_not_of("0123456789") == word.npos && word.size() < 10 && std::stoul(word) < parameters().size();
    names.push_back(index ? parameters()[std::stoul(word)].name : word);
  }
  return names;
}

Buckets GradientReducer::buckets() const {
  Buckets buckets;
  for (const auto& bucket : impl_->reducer->get_grad_buckets()) {
    auto& indices = buckets.emplace_back();
    for (const Tensor& parameter : bucket.getParameters()) {
      const auto found = std::ranges::find_if(parameters(), [&](const auto& p) { return p.value.is_same(parameter); });
      if (found != parameters().end()) indices.push_back(found - parameters().begin());
    }
  }
  return buckets;
}

}  // namespace fulgur::detail
