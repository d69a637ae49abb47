#include "fulgur/checkpoint/module_state.h"

#include <ATen/core/grad_mode.h>

#include "fulgur/core/text.h"

namespace fulgur {
namespace {

std::string describe(const Tensor& tensor) { return cat(c10::toString(tensor.scalar_type()), " ", shape_text(tensor.sizes())); }

}  // namespace

NamedTensors module_state(const torch::nn::Module& module) {
  NamedTensors state;
  for (auto& [name, value] : unique_parameters(module)) state.emplace_back(name, value);
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) state.emplace_back(item.key(), item.value());
  return state;
}

std::map<std::string, std::string> parameter_aliases(const torch::nn::Module& module) {
  std::map<const void*, std::string> first;
  std::map<std::string, std::string> aliases;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined()) continue;
    const auto [place, is_new] = first.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!is_new) aliases.emplace(item.key(), place->second);
  }
  return aliases;
}

void load_module_state(torch::nn::Module& module, const NamedTensors& tensors) {
  std::map<std::string, const Tensor*> given;
  for (const auto& [name, tensor] : tensors) given.emplace(name, &tensor);
  std::vector<std::string> wrong;
  std::vector<std::pair<Tensor, const Tensor*>> copies;
  for (const auto& [name, target] : module_state(module)) {
    const auto found = given.find(name);
    if (found == given.end()) {
      wrong.push_back(cat("missing: ", name, " (the module has ", describe(target), ")"));
      continue;
    }
    const Tensor& source = *found->second;
    if (source.sizes() != target.sizes() || source.scalar_type() != target.scalar_type())
      wrong.push_back(cat("other shape or dtype: ", name, ": checkpoint ", describe(source), ", module ", describe(target)));
    else
      copies.emplace_back(target, &source);
    given.erase(found);
  }
  for (const auto& [name, tensor] : given) wrong.push_back(cat("unexpected: ", escape_controls(name), " (the checkpoint has ", describe(*tensor), ")"));
  if (!wrong.empty())
    throw CheckpointError(cat("[checkpoint.load_module_state] the checkpoint does not fit the module:\n  ", join(wrong, "\n  "),
                              "\nUse the config that the checkpoint was made with (it lies in its run folder)."));
  at::NoGradGuard no_grad;
  for (auto& [target, source] : copies) target.copy_(*source);
}

}  // namespace fulgur
