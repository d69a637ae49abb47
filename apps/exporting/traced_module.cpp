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

// The size of dimension 1 in two recordings: of texts and series, the length.
struct Lengths {
  int64_t one, other;
};

// A number that follows the size of the batch: factor * samples * length, or factor * length + offset.
struct SizeRule {
  int64_t factor = 0, offset = 0;
  bool by_samples = false, by_length = false;
};

// From the values in the recordings of (kSamples, lengths.one), (kOtherSamples, lengths.one) and (kSamples,
// lengths.other), which are not all equal.
std::optional<SizeRule> rule_of(int64_t value, int64_t of_samples, int64_t of_length, const Lengths& lengths) {
  if (value == of_samples) {
    const int64_t change = lengths.other - lengths.one;
    if ((of_length - value) % change != 0) return std::nullopt;
    const int64_t factor = (of_length - value) / change;
    return SizeRule{.factor = factor, .offset = value - factor * lengths.one, .by_length = true};
  }
  const bool by_length = value != of_length;
  const int64_t one = by_length ? lengths.one : 1, other = by_length ? lengths.other : 1;
  const int64_t factor = value / (kSamples * one);
  if (value != factor * kSamples * one || of_samples != factor * kOtherSamples * one ||
      of_length != factor * kSamples * other)
    return std::nullopt;
  return SizeRule{.factor = factor, .by_samples = true, .by_length = by_length};
}

bool same_constant(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() != b.isTensor()) return false;
  if (!a.isTensor()) return a == b;
  const Tensor &first = a.toTensor(), &second = b.toTensor();
  return first.sizes() == second.sizes() && first.scalar_type() == second.scalar_type() && at::equal(first, second);
}

std::vector<Node*> nodes_of(Graph& graph) {
  std::vector<Node*> nodes;
  for (Node* const node : graph.nodes()) nodes.push_back(node);
  return nodes;
}

bool same_operation(const Node& a, const Node& b) {
  return a.kind() == b.kind() && a.inputs().size() == b.inputs().size() && a.outputs().size() == b.outputs().size();
}

// The constants of `graph` that differ between the recordings, with their rules; nullopt if the recordings differ in
// another way.
std::optional<std::vector<std::pair<Node*, SizeRule>>> numbers_of_size(Graph& graph, Graph& of_samples,
                                                                       Graph& of_length, const Lengths& lengths) {
  const std::vector<Node*> nodes = nodes_of(graph), by_samples = nodes_of(of_samples), by_length = nodes_of(of_length);
  if (nodes.size() != by_samples.size() || nodes.size() != by_length.size()) return std::nullopt;
  std::vector<std::pair<Node*, SizeRule>> found;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!same_operation(*nodes[i], *by_samples[i]) || !same_operation(*nodes[i], *by_length[i])) return std::nullopt;
    if (nodes[i]->kind() != c10::prim::Constant) continue;
    const auto value = torch::jit::toIValue(nodes[i]->output());
    const auto of_other_samples = torch::jit::toIValue(by_samples[i]->output());
    const auto of_other_length = torch::jit::toIValue(by_length[i]->output());
    if (!value || !of_other_samples || !of_other_length) return std::nullopt;
    if (same_constant(*value, *of_other_samples) && same_constant(*value, *of_other_length)) continue;
    if (!value->isInt() || !of_other_samples->isInt() || !of_other_length->isInt()) return std::nullopt;
    const auto rule = rule_of(value->toInt(), of_other_samples->toInt(), of_other_length->toInt(), lengths);
    if (!rule) return std::nullopt;
    found.emplace_back(nodes[i], *rule);
  }
  return found;
}

// Computes the numbers from the sizes of two inputs: dimension 0 of `sized`, and dimension 1 of `long_input`, which is
// null if no number follows it.
void follow_sizes(Graph& graph, const std::vector<std::pair<Node*, SizeRule>>& numbers, torch::jit::Value* sized,
                  torch::jit::Value* long_input) {
  if (numbers.empty()) return;
  const torch::jit::WithInsertPoint at_the_beginning(*graph.nodes().begin());
  const int64_t first_dimension = 0, second_dimension = 1;
  torch::jit::Value* const samples = graph.insert(c10::aten::size, {sized, first_dimension});
  torch::jit::Value* const length =
      long_input != nullptr ? graph.insert(c10::aten::size, {long_input, second_dimension}) : nullptr;
  for (const auto& [node, rule] : numbers) {
    torch::jit::Value* number = rule.by_samples ? samples : length;
    if (rule.by_samples && rule.by_length) number = graph.insert(c10::aten::mul, {number, length});
    if (rule.factor != 1) number = graph.insert(c10::aten::mul, {number, rule.factor});
    if (rule.offset != 0) number = graph.insert(c10::aten::add, {number, rule.offset});
    node->output()->replaceAllUsesWith(number);
  }
}

// Drops arguments that nothing uses, such as labels, and gives the program its method.
TracedModule finished(Recording recording, const Batch& batch) {
  TracedModule traced{std::move(recording.script), {}, false, 0};
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

// The batch with another size of dimension 1, in the entries that have the size `length`: elements from the beginning
// again after the last one.
Batch with_length(const Batch& batch, int64_t length, int64_t wanted) {
  const int64_t size = batch.size();
  Batch resized;
  for (const auto& [name, value] : batch) {
    const auto* const tensor = std::get_if<Tensor>(&value);
    if (tensor == nullptr || tensor->dim() < 2 || tensor->size(0) != size || tensor->size(1) != length) {
      resized.add(name, value);
      continue;
    }
    resized.add(name, tensor->index_select(1, at::arange(wanted, at::kLong).remainder(length)));
  }
  return resized;
}

bool can_compute(LightningModule& module, const Batch& batch) {
  try {
    static_cast<void>(exported_outputs(module, batch));
    return true;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;
  }
}

// The lengths to be recorded, if the model takes samples of different lengths. Dimension 1 of most other inputs, such
// as channels and features, has a size that the weights determine.
std::optional<Lengths> lengths_of(LightningModule& module, const Batch& batch) {
  constexpr int64_t kShortest = 3;  // 1 and 2 are needed for comparisons
  for (const std::string& name : tensor_entries(batch)) {
    const Tensor& tensor = batch[name];
    if (tensor.dim() < 2 || tensor.size(0) != batch.size()) continue;
    const int64_t length = tensor.size(1);
    if (length < kShortest || !can_compute(module, with_length(samples_of(batch, 0, kSamples), length, length - 1)))
      return std::nullopt;
    return Lengths{.one = length, .other = length - 1};
  }
  return std::nullopt;
}

// The first used input of the recording with this size.
torch::jit::Value* used_input(Graph& graph, const Batch& batch, size_t dimension, int64_t size) {
  const std::vector<std::string> names = tensor_entries(batch);
  for (size_t i = 0; i < names.size(); ++i) {
    const Tensor& tensor = batch[names[i]];
    torch::jit::Value* const input = graph.inputs()[i + 1];  // the first is the module
    if (tensor.dim() > static_cast<int64_t>(dimension) && tensor.size(0) == batch.size() &&
        tensor.size(static_cast<int64_t>(dimension)) == size && !input->uses().empty())
      return input;
  }
  return nullptr;
}

// A program for any number of samples and, with `lengths`, for any length; nullopt if there is none.
std::optional<TracedModule> trace_for_any_size(LightningModule& module, const Batch& batch,
                                               const std::optional<Lengths>& lengths) {
  const Batch one = samples_of(batch, 0, kSamples), other = samples_of(batch, kSamples, kOtherSamples);
  try {
    Recording recording = record(module, one);
    const Recording of_samples = record(module, other);
    std::optional<Recording> of_length;
    if (lengths) of_length = record(module, with_length(one, lengths->one, lengths->other));
    torch::jit::Value* const sized = used_input(*recording.graph, one, 0, kSamples);
    torch::jit::Value* const long_input = lengths ? used_input(*recording.graph, one, 1, lengths->one) : nullptr;
    if (sized == nullptr || (lengths && long_input == nullptr)) return std::nullopt;
    const auto numbers =
        numbers_of_size(*recording.graph, *of_samples.graph, of_length ? *of_length->graph : *recording.graph,
                        lengths.value_or(Lengths{.one = 1, .other = 1}));
    if (!numbers) return std::nullopt;
    follow_sizes(*recording.graph, *numbers, sized, long_input);
    TracedModule traced = finished(std::move(recording), one);
    for (const Batch& samples : {one, other, samples_of(batch, 1, kOneSample)})
      check_script(traced.script, traced.inputs, module, samples);
    if (lengths)
      for (const int64_t length : {lengths->one - 2, lengths->one - 1, lengths->one + 1}) {
        const Batch resized = with_length(other, lengths->one, length);
        // The model may not take longer ones.
        if (can_compute(module, resized)) check_script(traced.script, traced.inputs, module, resized);
      }
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
  const std::optional<Lengths> lengths = lengths_of(module, batch);
  if (lengths)
    if (auto traced = trace_for_any_size(module, batch, lengths)) return std::move(*traced);
  const int64_t only_length = lengths ? lengths->one : 0;
  if (auto traced = trace_for_any_size(module, batch, std::nullopt)) {
    traced->only_length = only_length;
    return std::move(*traced);
  }
  try {
    TracedModule traced = finished(record(module, batch), batch);
    traced.only_length = only_length;
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
