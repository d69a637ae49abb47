// C10 and C16: a rank that trains through Fulgur's strategy.
#pragma once

#include <functional>

#include "ddp_net.h"
#include "fulgur/optim/sgd.h"
#include "fulgur/strategies/ddp.h"

namespace bench {

/// What happens with the gradients of a window of `accumulated` steps.
struct Way {
  std::string name;
  bool strategy_exchanges = true;
  int64_t accumulated = 1;
  std::function<void(fulgur::Collectives&, const std::vector<Tensor>&)> reduce = {};
};

/// One of several ranks that train the network. It begins with the weights of the inputs.
class Rank {
 public:
  Rank(const Inputs& inputs, fulgur::DDPStrategy& strategy, bool norm)
      : inputs_(inputs), strategy_(strategy), net_(norm) {
    net_.load(inputs_.weights);
    strategy_.attach(net_);
    fulgur::ParamGroup group;
    for (const auto& parameter : net_.named_parameters()) {
      group.params.push_back(parameter.value());
      group.names.push_back(parameter.key());
    }
    optimizer_.attach({group});
    strategy_.start_training(net_, {&optimizer_});
  }

  void reset() {
    net_.load(inputs_.weights);
    number_ = 0;
  }

  Tensor step(const Way& way) {
    const fulgur::Batch batch = inputs_.batch(number_, strategy_.rank());
    ++number_;
    const bool last = number_ % way.accumulated == 0;
    const fulgur::GradSync sync = last && way.strategy_exchanges ? fulgur::GradSync::now : fulgur::GradSync::deferred;
    strategy_.before_forward(net_, sync);
    const Tensor loss = net_.training_step(batch, 0).loss;
    strategy_.backward(net_, way.accumulated > 1 ? loss / way.accumulated : loss, sync, {});
    if (last) {
      if (way.reduce) way.reduce(strategy_.collectives(), optimizer_.gradients());
      strategy_.optimizer_step(optimizer_, {}, std::nullopt);
      optimizer_.zero_grad();
    }
    return loss;
  }

 private:
  const Inputs& inputs_;
  fulgur::DDPStrategy& strategy_;
  Net net_;
  fulgur::SGD optimizer_{fulgur::SGD::Options{.lr = kRate}};
  int64_t number_ = 0;
};

}  // namespace bench
