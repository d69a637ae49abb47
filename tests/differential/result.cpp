#include "result.h"

#include <ATen/ops/isnan.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/text.h"

namespace fulgur::test {
namespace fs = std::filesystem;

namespace {

void flatten(const StateTree& tree, const std::string& name, Result& out) {
  if (tree.is_tensor()) {
    out.tensors[name] = tree.tensor();
  } else if (tree.is_map()) {
    for (const auto& [key, value] : tree.as_map()) flatten(value, name.empty() ? key : cat(name, ".", key), out);
  } else if (tree.is_list()) {
    size_t index = 0;
    for (const StateTree& value : tree.as_list()) flatten(value, cat(name, ".", index++), out);
  } else if (tree.holds<int64_t>() || tree.holds<double>()) {
    out.numbers[name] = tree.as_double();
  } else if (tree.holds<bool>()) {
    out.numbers[name] = tree.as_bool() ? 1 : 0;
  }
}

bool same_number(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (a == b) return true;
  return tolerance > 0 && std::abs(a - b) <= tolerance * (1 + std::abs(a));
}

// The largest difference, relative to 1 + the value; 0 if the bits agree, infinite for NaN in one of them.
double furthest(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0) return 0;
  const Tensor x = a.to(at::kDouble), y = b.to(at::kDouble), no_number = at::isnan(x);
  if (!no_number.equal(at::isnan(y))) return std::numeric_limits<double>::infinity();
  return ((x - y).abs() / (x.abs() + 1)).masked_fill(no_number, 0).nan_to_num(0).max().item().toDouble();
}

}  // namespace

std::optional<Result> result_in(const fs::path& folder, int64_t rank) {
  const fs::path path = folder / cat("result.", rank, ".ckpt");
  if (!fs::exists(path)) return std::nullopt;
  const CheckpointContent content = read_checkpoint(path);
  Result result;
  for (const auto& [name, value] : content.module) result.tensors["weights." + name] = value;
  flatten(content.optimizers, "optimizers", result);
  flatten(content.state, "", result);
  return result;
}

std::optional<std::string> difference(const Result& a, const Result& b, double tolerance,
                                      const std::set<std::string>& without) {
  const auto counts = [&](const std::string& name) {
    for (const std::string& prefix : without)
      if (name.starts_with(prefix)) return false;
    return true;
  };
  std::string out;
  const auto both = [&](const auto& first, const auto& second, const auto& compare) {
    for (const auto& [name, value] : first) {
      if (!counts(name)) continue;
      const auto other = second.find(name);
      if (other == second.end())
        out += cat(name, " is in the first only\n");
      else
        compare(name, value, other->second);
    }
    for (const auto& [name, value] : second)
      if (counts(name) && !first.contains(name)) out += cat(name, " is in the second only\n");
  };
  both(a.tensors, b.tensors, [&](const std::string& name, const Tensor& x, const Tensor& y) {
    if (x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type()) {
      out += cat(name, " has other shapes or dtypes\n");
    } else if (const double most = furthest(x, y); most > tolerance) {
      out += cat(name, " differs by ", most, "\n");
    }
  });
  both(a.numbers, b.numbers, [&](const std::string& name, double x, double y) {
    if (!same_number(x, y, tolerance)) out += cat(name, ": ", x, " and ", y, "\n");
  });
  return out.empty() ? std::nullopt : std::optional(out);
}

std::map<int64_t, int64_t> seen_in(const fs::path& folder) {
  std::map<int64_t, int64_t> from;  // of each process
  for (const auto& entry : fs::directory_iterator(folder / "from"))
    std::ifstream(entry.path()) >> from[std::stoll(entry.path().filename().string())];
  std::map<int64_t, int64_t> seen;
  for (const auto& entry : fs::directory_iterator(folder / "seen")) {
    const int64_t life = std::stoll(entry.path().stem().string());
    // The next process has done again what this one did after that.
    const auto next = from.find(life + 1);
    const int64_t until = next == from.end() ? std::numeric_limits<int64_t>::max() : next->second;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      std::istringstream fields(line);
      int64_t batch = 0;
      fields >> batch;
      if (batch >= until) continue;
      for (int64_t sample = 0; fields >> sample;) ++seen[sample];
    }
  }
  return seen;
}

std::string lives_in(const fs::path& folder) {
  std::string text;
  for (const char* part : {"from", "seen"}) {
    std::set<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder / part)) files.insert(entry.path());
    for (const fs::path& path : files) {
      std::ifstream file(path);
      text += cat("  ", part, ' ', path.filename().string(), ':');
      for (std::string line; std::getline(file, line);) text += cat(' ', line, ';');
      text += '\n';
    }
  }
  return text;
}

}  // namespace fulgur::test
