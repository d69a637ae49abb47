#include "fulgur/core/contracts/monitor.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "fulgur/core/contracts/monitor_direction.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

std::string_view first_word(std::string_view name) { return name.substr(0, name.find_first_of("_/.-")); }

// `shorter` with one more letter, which is not a digit.
bool one_letter_more(std::string_view shorter, std::string_view longer) {
  if (longer.size() != shorter.size() + 1) return false;
  const auto [there, more] = std::mismatch(shorter.begin(), shorter.end(), longer.begin());
  return std::isalpha(static_cast<unsigned char>(*more)) != 0 && std::equal(there, shorter.end(), more + 1);
}

bool two_letters_swapped(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin());
  return a.end() - in_a >= 2 && in_a[0] == in_b[1] && in_a[1] == in_b[0] && std::equal(in_a + 2, a.end(), in_b + 2);
}

constexpr std::array<std::string_view, 23> kGreaterIsBetter{
    "acc",   "accuracy",  "top1",   "top5",        "auroc", "auc",  "auprc", "f1",
    "fbeta", "precision", "recall", "specificity", "iou",   "miou", "dice",  "jaccard",
    "bleu",  "chrf",      "psnr",   "ssim",        "r2",    "mcc",  "kappa"};
constexpr std::array<std::string_view, 14> kSmallerIsBetter{"loss", "error", "err", "mse",        "rmse", "mae", "mape",
                                                            "nll",  "bpc",   "ppl", "perplexity", "wer",  "cer", "fid"};

// Which values the name of a metric promises to be better; nullopt if it is no word that is known.
std::optional<MonitorMode> direction_of(std::string_view monitor) {
  std::string word;
  const auto is_in = [&](const auto& words) { return std::ranges::find(words, word) != words.end(); };
  std::optional<MonitorMode> direction;
  for (size_t i = 0; i <= monitor.size(); ++i) {
    const auto c = static_cast<unsigned char>(i < monitor.size() ? monitor[i] : '_');
    if (std::isalnum(c) != 0) {
      word += static_cast<char>(std::tolower(c));
      continue;
    }
    if (is_in(kGreaterIsBetter)) direction = MonitorMode::max;
    if (is_in(kSmallerIsBetter)) direction = MonitorMode::min;
    word.clear();
  }
  return direction;
}

}  // namespace

std::string detail::doubtful_mode(std::string_view monitor, MonitorMode mode) {
  const auto direction = direction_of(monitor);
  if (!direction || *direction == mode) return {};
  return cat("a ", *direction == MonitorMode::max ? "large" : "small", " value of '", monitor,
             "' is usually better, but mode is ", enum_text(mode), ": write mode: ", enum_text(*direction));
}

MonitorError::MonitorError(const std::string& message) : ConfigError(message) {}
MonitorError::~MonitorError() = default;

std::string monitor_not_logged(std::string_view monitor, const std::vector<std::string>& names) {
  const std::string hint = did_you_mean(monitor, names);
  return cat("monitor '", monitor, "' was not logged; the logged metrics are: ", names.empty() ? "none" : join(names),
             hint.empty() ? "." : hint);
}

std::string monitor_not_logged(std::string_view monitor, const RunContext& run) {
  std::string text = monitor_not_logged(monitor, run.logged_metrics().metric_names());
  if (!run.has_validation())
    text +=
        " No validation runs in this fit: there is no validation data, no validation_step, or limit_val_batches is 0.";
  else if (run.progress().validations == 0 && !run.sanity_checking())
    text += " No validation has run yet.";
  return text;
}

bool misspells_validation_metric(std::string_view monitor, const std::vector<std::string>& names) {
  if (std::ranges::find(names, monitor) != names.end()) return false;
  return std::ranges::any_of(names, [&](const std::string& name) {
    const bool prefixed = first_word(name) == first_word(monitor) && first_word(name).size() < monitor.size();
    return prefixed &&
           (one_letter_more(monitor, name) || one_letter_more(name, monitor) || two_letters_swapped(name, monitor));
  });
}

}  // namespace fulgur
