#include "fulgur/core/contracts/layer_chain.h"

#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void LayerChain::add(std::string name, std::vector<std::string> modules, std::function<Tensor(const Tensor&)> forward) {
  auto of_one = [name, f = std::move(forward)](const Values& values) {
    if (values.size() != 1)
      throw Error(cat("[core.LayerChain] the layer '", escape_controls(name),
                      "' was added with add(), so it takes one tensor; it was given ", values.size(),
                      ". Append a layer that takes several to LayerChain::layers."));
    return Values{f(values[0])};
  };
  layers.push_back({std::move(name), std::move(modules), std::move(of_one)});
}

}  // namespace fulgur
