#include "fulgur/callbacks/model_summary.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "type_name.h"

namespace fulgur {
namespace {

struct Row {
  std::string name, type, params, mode;
};

// `12,345.678`.
std::string with_commas(const std::string& number) {
  std::string out = number;
  for (auto at = static_cast<int64_t>(std::min(number.find('.'), number.size())) - 3; at > 0; at -= 3)
    out.insert(static_cast<size_t>(at), 1, ',');
  return out;
}

// The number of values of a parameter.
using Count = std::function<int64_t(const Tensor&)>;

// That of all ranks together.
Count count_of(RunContext& run) {
  return [&run](const Tensor& parameter) { return c10::multiply_integers(run.run_weights().whole_sizes(parameter)); };
}

class Summary {
 public:
  Summary(const torch::nn::Module& module, int64_t max_depth, const Count& count_values) : max_depth_(max_depth) {
    for (const NamedParameter& parameter : unique_parameters(module)) {
      const int64_t count = count_values(parameter.value);
      counts_.emplace_back(parameter.name, count);
      total_ += count;
      if (parameter.value.requires_grad()) trainable_ += count;
      if (parameter.name.find('.') == std::string::npos) outside_ += count;
      bytes_[parameter.value.scalar_type()] += count * parameter.value.element_size();
    }
    visit(module, "", 1);
    if (outside_ > 0 && max_depth_ != 0) rows_.push_back({"other params", "n/a", format_count(outside_), "n/a"});
  }

  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    if (!rows_.empty()) add_table(lines);
    const auto total = [&](const std::string& value, const std::string& what) {
      lines.push_back(cat(padded(value, 10), columns_of(value) < 10 ? "" : " ", what));
    };
    total(format_count(trainable_), "Trainable params");
    total(format_count(total_ - trainable_), "Non-trainable params");
    total(format_count(total_), "Total params");
    int64_t bytes = 0;
    for (const auto& [dtype, count] : bytes_) bytes += count;
    total(with_commas(format_fixed(static_cast<double>(bytes) / 1e6, 3)), "Total estimated model params size (MB)");
    for (const auto& [dtype, count] : bytes_)
      total(with_commas(cat(count)), cat("Bytes of params in ", name_of(dtype)));
    total(cat(train_mode_), "Modules in train mode");
    total(cat(eval_mode_), "Modules in eval mode");
    lines.insert(lines.end(), notes_.begin(), notes_.end());
    return lines;
  }

 private:
  int64_t params_below(const std::string& prefix) const {
    int64_t below = 0;
    for (const auto& [name, count] : counts_)
      if (name.starts_with(prefix)) below += count;
    return below;
  }

  void visit(const torch::nn::Module& module, const std::string& prefix, int64_t depth) {
    std::string conv, conv_type;  // the previous sibling, if it is a convolution with a bias
    for (const auto& item : module.named_children()) {
      const torch::nn::Module& child = *item.value();
      const std::string name = prefix + item.key();
      const std::string type = detail::short_type_name(child.name());
      ++(child.is_training() ? train_mode_ : eval_mode_);
      if (max_depth_ < 0 || depth <= max_depth_)
        rows_.push_back({name, type, format_count(params_below(name + ".")), child.is_training() ? "train" : "eval"});
      if (!conv.empty() && type.starts_with("BatchNorm"))
        notes_.push_back(cat("note: ", conv, " (", conv_type, ") has a bias, which the following ", name, " (", type,
                             ") cancels. Create it with .bias(false)."));
      conv = type.starts_with("Conv") && has_bias(child) ? name : "";
      conv_type = type;
      visit(child, name + ".", depth + 1);
    }
  }

  // PyTorch's name: `float32`, not `Float`.
  static std::string name_of(at::ScalarType dtype) {
    switch (dtype) {
      case at::kFloat:
        return "float32";
      case at::kDouble:
        return "float64";
      case at::kHalf:
        return "float16";
      case at::kBFloat16:
        return "bfloat16";
      default:
        return c10::toString(dtype);
    }
  }

  static bool has_bias(const torch::nn::Module& module) {
    const auto own = module.named_parameters(/*recurse=*/false);
    const Tensor* bias = own.find("bias");
    return bias != nullptr && bias->defined();
  }

  void add_table(std::vector<std::string>& lines) const {
    std::vector<TextRow> table{{"", "Name", "Type", "Params", "Mode"}};
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      table.push_back({row.type == "n/a" ? "" : cat(i), row.name, row.type, row.params, row.mode});
    }
    // The column of indices is as wide as the index of the last row would be.
    std::vector<int64_t> widths = column_widths(table);
    widths[0] = columns_of(cat(rows_.size() - 1));
    const std::string rule(static_cast<size_t>(std::accumulate(widths.begin(), widths.end(), int64_t{4 * 3})), '-');
    lines.push_back(aligned(table.front(), widths, " | "));
    lines.push_back(rule);
    for (size_t i = 1; i < table.size(); ++i) lines.push_back(aligned(table[i], widths, " | "));
    lines.push_back(rule);
  }

  int64_t max_depth_;
  std::vector<std::pair<std::string, int64_t>> counts_;  // by parameter
  std::vector<Row> rows_;
  std::vector<std::string> notes_;
  int64_t total_ = 0, trainable_ = 0, outside_ = 0, train_mode_ = 0, eval_mode_ = 0;
  std::map<at::ScalarType, int64_t> bytes_;
};

// Training memory per trainable parameter; empty if there are no such parameters, or an optimizer does not report its
// state.
std::string bytes_per_parameter(RunContext& run) {
  const Count count_values = count_of(run);
  double count = 0, weights = 0, kept = 0, copies = static_cast<double>(run.meters().master_weight_bytes());
  for (const auto& [name, value] : unique_parameters(run.module())) {
    if (!value.requires_grad()) continue;
    count += static_cast<double>(count_values(value));
    weights += static_cast<double>(value.nbytes());
  }
  kept = weights;
  double states = 0, gradients = weights, on_host = 0;
  for (const Optimizer* optimizer : run.optimizers()) {
    for (const ParamGroup& group : optimizer->groups())
      for (size_t i = 0; group.are_shards && i < group.params.size(); ++i)
        if (const Tensor& whole = group.module_params[i]; whole.requires_grad()) {
          const Tensor& own = group.params[i];
          const bool is_on_host = own.device() != whole.device();
          if (is_on_host) on_host += static_cast<double>(own.nbytes());
          if (!optimizer->gradients_are_shards()) continue;
          const auto there = static_cast<double>(own.numel()) * static_cast<double>(whole.element_size()),
                     elsewhere = static_cast<double>(whole.nbytes()) - there;
          // Those of copies are in another number of the line.
          gradients -= elsewhere + (own.scalar_type() == whole.scalar_type() && !is_on_host ? 0 : there);
          if (run.meters().divides_parameters()) kept -= elsewhere;
        }
    const auto bytes = optimizer->full_state_bytes();
    if (!bytes) return "";
    states += static_cast<double>(*bytes);
  }
  if (count == 0) return "";
  const auto each = [&](double bytes) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.4g", std::round(bytes / count * 100) / 100);
    return std::string(text.data());
  };
  std::string line = cat("bytes per trainable parameter: weights ", each(kept), " + gradients ", each(gradients));
  if (on_host > 0)
    return cat(line, " = ", each(kept + gradients), "; in host memory: weights ", each(on_host), " + gradients ",
               each(on_host), " + optimizer ", each(states), " = ", each(2 * on_host + states));
  if (copies > 0) line += cat(" + master weights ", each(copies), " + their gradients ", each(copies));
  return cat(line, " + optimizer ", each(states), " = ", each(kept + gradients + 2 * copies + states));
}

// A strategy may give parameters other sizes.
std::set<std::string> trained_names(const LightningModule& module) {
  std::set<std::string> names;
  for (const auto& [name, value] : unique_parameters(module))
    if (value.requires_grad()) names.insert(name);
  return names;
}

// Numbers of values of the parameters.
std::pair<int64_t, int64_t> trainable_and_all(RunContext& run) {
  const Count count_values = count_of(run);
  int64_t trainable = 0, all = 0;
  for (const NamedParameter& parameter : unique_parameters(run.module())) {
    const int64_t count = count_values(parameter.value);
    all += count;
    if (parameter.value.requires_grad()) trainable += count;
  }
  return {trainable, all};
}

}  // namespace

std::vector<std::string> summarize(const torch::nn::Module& module, int64_t max_depth) {
  return Summary(module, max_depth, [](const Tensor& parameter) { return parameter.numel(); }).lines();
}

void ModelSummary::Options::fields(Fields& f) {
  f(max_depth, "max_depth", "Levels of layers that get a row; -1: all, 0: only the totals.").at_least(-1);
}

ModelSummary::ModelSummary(Options options) : options_(options) {}

void ModelSummary::on_fit_start(RunContext& run) {
  if (!run.is_global_zero()) return;
  for (const std::string& line : Summary(run.module(), options_.max_depth, count_of(run)).lines()) run.print(line);
  trained_ = trained_names(run.module());
  if (const std::string line = bytes_per_parameter(run); !line.empty()) run.print(line);
}

// Callbacks such as Finetuning freeze parameters after the fit has begun.
void ModelSummary::on_train_start(RunContext& run) {
  if (!run.is_global_zero()) return;
  std::set<std::string> trained = trained_names(run.module());
  if (trained == trained_) return;
  trained_ = std::move(trained);
  const auto [trainable, total] = trainable_and_all(run);
  run.print(cat("callbacks have changed which parameters are trained: now ", format_count(trainable),
                " trainable params, ", format_count(total - trainable), " non-trainable params"));
}

[[maybe_unused]] static const bool registered_model_summary =
    Registry<Callback>::add<ModelSummary>("ModelSummary", "Prints the layers and their parameters when a fit begins.");

}  // namespace fulgur
