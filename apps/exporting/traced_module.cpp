#include "exporting/traced_module.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <algorithm>
#include <cctype>
#include <new>
#include <optional>
#include <set>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/models/classifier.h"

namespace fulgur::cli {
namespace {

using torch::jit::Graph;
using torch::jit::Node;

// The numbers of samples of the two recordings, and one with which the result is also compared.
constexpr int64_t kSamples = 3, kOtherSamples = 5, kOneSample = 1;

std::string first_line_of(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  return first_line(torch_error ? torch_error->what_without_backtrace() : error.what());
}

// The same tensors under the same names, without code.
torch::jit::Module script_of(const torch::nn::Module& module, const std::shared_ptr<torch::jit::CompilationUnit>& unit,
                             const std::string& class_name) {
  torch::jit::Module script(c10::QualifiedName(class_name), unit, /*shouldMangle=*/true);
  script.register_attribute("training", c10::BoolType::get(), false);
  for (const auto& parameter : module.named_parameters(/*recurse=*/false))
    if (parameter.value().defined()) script.register_parameter(parameter.key(), parameter.value(), /*is_buffer=*/false);
  for (const auto& buffer : module.named_buffers(/*recurse=*/false))
    if (buffer.value().defined()) script.register_buffer(buffer.key(), buffer.value());
  for (const auto& child : module.named_children())
    script.register_module(child.key(), script_of(*child.value(), unit, cat(class_name, "_", "Layer")));
  return script;
}

// Names of arguments in Python.
std::string argument_name(const std::string& entry, size_t index) {
  static const std::set<std::string> kTaken{
      "self",   "and",  "as",     "assert",  "break",    "class", "continue", "def",   "del",
      "elif",   "else", "except", "finally", "for",      "from",  "global",   "if",    "import",
      "in",     "is",   "lambda", "None",    "nonlocal", "not",   "or",       "pass",  "raise",
      "return", "try",  "while",  "with",    "yield",    "True",  "False",    "async", "await"};
  const bool fits = !entry.empty() && !std::isdigit(static_cast<unsigned char>(entry.front())) &&
                    std::all_of(entry.begin(), entry.end(), [](unsigned char letter) {
                      return letter < 128 && (std::isalnum(letter) || letter == '_');
                    });
  return fits && !kTaken.contains(entry) ? entry : cat("input", index);
}

std::vector<std::string> tensor_entries(const Batch& batch) {
  std::vector<std::string> names;
  for (const auto& [name, value] : batch)
    if (std::holds_alternative<Tensor>(value)) names.push_back(name);
  return names;
}

struct Recording {
  torch::jit::Module script;
  std::shared_ptr<Graph> graph;
};

Recording record(LightningModule& module, const Batch& batch) {
  const std::vector<std::string> names = tensor_entries(batch);
  Recording recording;
  recording.script = script_of(module, std::make_shared<torch::jit::CompilationUnit>(), "__torch__.Fulgur");
  torch::jit::Stack inputs;
  std::vector<std::string> arguments;
  for (const std::string& name : names) {
    inputs.emplace_back(batch[name]);
    arguments.push_back(argument_name(name, arguments.size()));
  }
  const auto compute = [&](const torch::jit::Stack& traced) {
    Batch replaced;
    size_t next = 0;
    for (const auto& [name, value] : batch)
      replaced.add(name, std::holds_alternative<Tensor>(value) ? Batch::Value(traced[next++].toTensor()) : value);
    return torch::jit::Stack{exported_outputs(module, replaced)};
  };
  const auto no_name = [](const torch::autograd::Variable&) { return std::string(); };
  const auto recorded = torch::jit::tracer::trace(std::move(inputs), compute, no_name, /*strict=*/false,
                                                  /*force_outplace=*/false, &recording.script, arguments);
  recording.graph = recorded.first->graph;
  torch::jit::EliminateDeadCode(recording.graph);
  return recording;
}

// The number that follows the number of samples: 0 if it does not.
int64_t samples_factor(int64_t value, int64_t other) {
  return value % kSamples == 0 && other % kOtherSamples == 0 && value / kSamples == other / kOtherSamples
             ? value / kSamples
             : 0;
}

bool same_constant(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() != b.isTensor()) return false;
  if (!a.isTensor()) return a == b;
  const Tensor &first = a.toTensor(), &second = b.toTensor();
  return first.sizes() == second.sizes() && first.scalar_type() == second.scalar_type() && at::equal(first, second);
}

// Replaces constants that differ between the recordings of kSamples and kOtherSamples by multiples of the size of
// `input`. False if the recordings differ in another way.
bool follow_samples(Graph& graph, const Graph& other, torch::jit::Value* input) {
  std::vector<std::pair<Node*, int64_t>> found;
  auto theirs = other.nodes().begin();
  for (Node* const node : graph.nodes()) {
    if (theirs == other.nodes().end()) return false;
    const Node* const counterpart = *theirs;
    ++theirs;
    if (node->kind() != counterpart->kind() || node->inputs().size() != counterpart->inputs().size() ||
        node->outputs().size() != counterpart->outputs().size())
      return false;
    if (node->kind() != c10::prim::Constant) continue;
    const auto value = torch::jit::toIValue(node->output()), other_value = torch::jit::toIValue(counterpart->output());
    if (!value || !other_value) return false;
    if (value->isInt() && other_value->isInt() && value->toInt() != other_value->toInt()) {
      const int64_t factor = samples_factor(value->toInt(), other_value->toInt());
      if (factor == 0) return false;
      found.emplace_back(node, factor);
    } else if (!same_constant(*value, *other_value)) {
      return false;
    }
  }
  if (theirs != other.nodes().end()) return false;
  if (found.empty()) return true;
  const torch::jit::WithInsertPoint at_the_beginning(*graph.nodes().begin());
  const int64_t dimension = 0;
  torch::jit::Value* const samples = graph.insert(c10::aten::size, {input, dimension});
  for (const auto& [node, factor] : found) {
    torch::jit::Value* const number = factor == 1 ? samples : graph.insert(c10::aten::mul, {samples, factor});
    node->output()->replaceAllUsesWith(number);
  }
  return true;
}

// Drops arguments that nothing uses, such as labels, and gives the program its method.
TracedModule finished(Recording recording, const Batch& batch) {
  TracedModule traced{std::move(recording.script), {}, false};
  const std::vector<std::string> names = tensor_entries(batch);
  Graph& graph = *recording.graph;
  for (size_t i = names.size(); i > 0; --i) {
    if (graph.inputs()[i]->uses().empty())
      graph.eraseInput(i);
    else
      traced.inputs.insert(traced.inputs.begin(), names[i - 1]);
  }
  const c10::QualifiedName method(*traced.script.type()->name(), "forward");
  traced.script.type()->addMethod(
      traced.script._ivalue()->compilation_unit()->create_function(method, std::move(recording.graph)));
  return traced;
}

std::optional<TracedModule> trace_for_any_size(LightningModule& module, const Batch& batch) {
  const Batch one = samples_of(batch, 0, kSamples), other = samples_of(batch, kSamples, kOtherSamples);
  try {
    Recording recording = record(module, one);
    const Recording second = record(module, other);
    const std::vector<std::string> names = tensor_entries(one);
    torch::jit::Value* sized = nullptr;
    for (size_t i = names.size(); i > 0; --i)
      if (one[names[i - 1]].dim() > 0 && one[names[i - 1]].size(0) == kSamples &&
          !recording.graph->inputs()[i]->uses().empty())
        sized = recording.graph->inputs()[i];
    if (sized == nullptr || !follow_samples(*recording.graph, *second.graph, sized)) return std::nullopt;
    TracedModule traced = finished(std::move(recording), one);
    for (const Batch& samples : {one, other, samples_of(batch, 1, kOneSample)})
      check_script(traced.script, traced.inputs, module, samples);
    traced.any_batch_size = true;
    return traced;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return std::nullopt;  // the recording for one size says what is wrong
  }
}

bool close(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (!a.is_floating_point()) return at::equal(a, b);
  return at::allclose(a, b, /*rtol=*/1e-5, /*atol=*/1e-6, /*equal_nan=*/true);
}

bool close_values(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() && b.isTensor()) return close(a.toTensor(), b.toTensor());
  if (!a.isGenericDict() || !b.isGenericDict()) return false;
  const auto expected = a.toGenericDict(), got = b.toGenericDict();
  if (expected.size() != got.size()) return false;
  return std::all_of(expected.begin(), expected.end(), [&](const auto& entry) {
    const auto other = got.find(entry.key());
    return other != got.end() && close(entry.value().toTensor(), other->value().toTensor());
  });
}

}  // namespace

c10::IValue exported_outputs(LightningModule& module, const Batch& batch) {
  if (auto* const classifier = dynamic_cast<Classifier*>(&module)) return classifier->forward(batch[0]);
  const Outputs outputs = module.predict_step(batch, 0, 0);
  if (outputs.empty()) throw ConfigError("[cli.export] predict_step of the model returns no tensor to be exported.");
  if (outputs.size() == 1) return outputs.begin()->second;
  c10::Dict<std::string, Tensor> named;
  for (const auto& [name, value] : outputs) named.insert(name, value);
  return named;
}

Batch samples_of(const Batch& batch, int64_t first, int64_t count) {
  const int64_t size = batch.size();
  Batch chosen;
  for (const auto& [name, value] : batch) {
    const auto* const tensor = std::get_if<Tensor>(&value);
    if (tensor == nullptr || tensor->dim() == 0 || tensor->size(0) != size) {
      chosen.add(name, value);
      continue;
    }
    const Tensor numbers = (at::arange(count, at::kLong) + first).remainder(size);
    chosen.add(name, tensor->index_select(0, numbers));
  }
  return chosen;
}

void check_script(torch::jit::Module& script, const std::vector<std::string>& inputs, LightningModule& module,
                  const Batch& batch) {
  const at::NoGradGuard no_grad;
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  std::vector<c10::IValue> arguments;
  for (const std::string& name : inputs) arguments.emplace_back(batch[name]);
  const c10::IValue got = script.forward(std::move(arguments));
  if (!close_values(exported_outputs(module, batch), got))
    throw ConfigError(
        "[cli.export] the recorded program computes other outputs than the model: its forward depends on the values of "
        "its input, or draws random numbers. Export the weights instead (--format safetensors), and load them into "
        "the model in C++ or into its twin in Python.");
}

TracedModule trace_module(LightningModule& module, const Batch& batch) {
  const at::NoGradGuard no_grad;
  if (auto traced = trace_for_any_size(module, batch)) return std::move(*traced);
  try {
    TracedModule traced = finished(record(module, batch), batch);
    check_script(traced.script, traced.inputs, module, batch);
    check_script(traced.script, traced.inputs, module, samples_of(batch, 1, batch.size()));
    return traced;
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw ConfigError(
        cat("[cli.export] the forward of the model cannot be recorded as TorchScript. Export the weights "
            "instead (--format safetensors). LibTorch says: ",
            first_line_of(error)));
  }
}

}  // namespace fulgur::cli
