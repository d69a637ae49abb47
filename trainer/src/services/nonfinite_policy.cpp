#include "services/nonfinite_policy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/ScopeExit.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/state/clip.h"
#include "fulgur/core/state/cpu_scalar.h"
#include "fulgur/core/state/late_number.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "services/loss_leaves.h"

namespace fulgur::detail {
namespace {

constexpr int64_t kMostRollbacks = 3;

bool is_finite(const Tensor& value) {
  return !value.defined() || !value.is_floating_point() || at::isfinite(value).all().item<bool>();
}

}  // namespace

bool NonFinitePolicy::judges_gradients() const {
  return settings_.policy == OnNonFinite::skip ||
         (run_.world_size() > 1 &&
          (settings_.policy == OnNonFinite::stop || settings_.policy == OnNonFinite::rollback));
}

void NonFinitePolicy::begin_window() {
  own_loss_is_bad_ = loss_is_bad_ = false;
  if (saves_buffers()) buffers_.save(run_.module());
}

void NonFinitePolicy::restore_buffers() {
  const at::NoGradGuard no_grad;
  buffers_.restore(run_.module());
}

void NonFinitePolicy::begin_manual_batch() {
  in_manual_batch_ = true;
  steps_of_batch_ = skips_of_batch_ = 0;
  skips_of_batch_on_device_.reset();
  if (!manual_window_open_) begin_window();
}

// Inside training_step there may be graphs that still need the old weights.
NonFiniteDecision NonFinitePolicy::end_manual_batch(bool stepped) {
  in_manual_batch_ = false;
  manual_window_open_ = !stepped;
  count_skipped_batch();
  const auto what = std::exchange(rolls_back_for_, std::nullopt);
  if (!what) return NonFiniteDecision::proceed;
  keep_finding(*what);
  return NonFiniteDecision::roll_back;
}

NonFiniteDecision NonFinitePolicy::check_loss(const Tensor& loss) {
  if (settings_.policy == OnNonFinite::off) return NonFiniteDecision::proceed;
  if (rolls_back_for_) return NonFiniteDecision::skip;
  if (first_batch_ < 0) first_batch_ = run_.batch_idx();
  // A recorded step is judged like one on a device.
  if (loss.is_cpu() && logs_.is_recording()) watches_on_cpu_ = true;
  if (loss.is_cpu() && !logs_.is_recording()) {
    if (std::isfinite(cpu_scalar(loss))) {
      // The losses of ranks differ, so ranks agree by means of the gradients.
      finite_since_rollback_ |= run_.world_size() == 1;
      return NonFiniteDecision::proceed;
    }
    own_loss_is_bad_ = true;
    // The gradients decide what is skipped: they identify the step, and are the same on all ranks.
    loss_is_bad_ = judges_gradients();
    return loss_is_bad_ && run_.world_size() > 1 ? NonFiniteDecision::proceed : decide("the loss");
  }
  logs_.watch(loss);
  return NonFiniteDecision::proceed;
}

// Cross entropy without any label is NaN, and its gradients are 0.
Tensor NonFinitePolicy::shown_in_gradients(const Tensor& loss, const std::vector<Tensor>& inputs) {
  // Without a branch, which a recording would keep.
  if (loss.is_cpu() && logs_.is_recording()) return shown_unchecked(loss);
  if (!std::exchange(loss_is_bad_, false)) return loss;
  return with_nan_gradients(loss, inputs.empty() ? leaves_of(loss) : inputs);
}

Tensor NonFinitePolicy::shown_unchecked(const Tensor& loss) const {
  if (!judges_gradients()) return loss;
  // A gradient of 0 becomes NaN, too.
  return loss * (loss.detach() - loss.detach()).add(1);
}

NonFiniteDecision NonFinitePolicy::check_gradients(Optimizer& optimizer, const Tensor& norm) {
  const NonFiniteDecision decision = decide_by_gradients(optimizer, norm);
  if (in_manual_batch_ && counts_batches_) note_manual_step(decision);
  return decision;
}

void NonFinitePolicy::note_manual_step(NonFiniteDecision decision) {
  const at::NoGradGuard no_grad;
  ++steps_of_batch_;
  if (found_inf_ && !found_inf_->is_cpu()) {
    const Tensor skips = found_inf_->to(at::kDouble);
    skips_of_batch_on_device_ = skips_of_batch_on_device_.defined() ? skips_of_batch_on_device_ + skips : skips.clone();
  } else if (decision != NonFiniteDecision::proceed || (found_inf_ && *found_inf_->const_data_ptr<float>() != 0)) {
    ++skips_of_batch_;
  }
}

void NonFinitePolicy::count_skipped_batch() {
  if (steps_of_batch_ == 0) return;
  const at::NoGradGuard no_grad;
  Tensor& on_device = skipped_batches_on_device_;
  if (skips_of_batch_on_device_.defined()) {
    const Tensor all = (skips_of_batch_on_device_ + skips_of_batch_).ge(steps_of_batch_).to(at::kDouble);
    on_device = on_device.defined() ? on_device + all : all + std::exchange(skipped_batches_, 0);
  } else if (skips_of_batch_ == steps_of_batch_) {
    if (on_device.defined())
      on_device = on_device + 1;
    else
      ++skipped_batches_;
  }
}

NonFiniteDecision NonFinitePolicy::decide_by_gradients(Optimizer& optimizer, const Tensor& known_norm) {
  found_inf_ = settings_.precision->found_inf(optimizer);
  if (found_inf_) return check_scaled_gradients(optimizer);
  if (settings_.policy == OnNonFinite::off) return NonFiniteDecision::proceed;
  if (rolls_back_for_) return NonFiniteDecision::skip;
  bool steps = true;
  const int64_t every = settings_.check_every;
  if (every > 0 && (run_.progress().global_step + 1) % every == 0) {
    if (const std::string bad = find_on_all_ranks(optimizer); !bad.empty()) {
      if (const auto decision = decide(bad); decision != NonFiniteDecision::proceed) return decision;
      steps = false;
    }
  }
  at::NoGradGuard no_grad;
  Tensor norm = known_norm;
  if (!norm.defined() && judges_gradients()) norm = grad_norm(optimizer);
  if (norm.defined() && norm.is_cpu() && !logs_.is_recording()) {
    const bool finite = std::isfinite(cpu_scalar(norm));
    finite_since_rollback_ |= finite;
    if (!finite) {
      if (!reported_) {
        const std::string bad = find();
        const auto decision = decide(bad.empty() ? "the norm of the gradients" : bad);
        if (decision != NonFiniteDecision::proceed) return decision;
      }
      steps = false;
    }
  } else if (norm.defined() && settings_.policy == OnNonFinite::skip) {
    found_inf_ = at::isfinite(norm).logical_not().to(at::kFloat);
    count_skips(*found_inf_);
    put_back_if(*found_inf_);
  } else if (norm.defined()) {
    // The run will not continue with these weights, so the step need not be skipped.
    logs_.watch(norm);
  }
  const auto decision = steps ? NonFiniteDecision::proceed : NonFiniteDecision::skip;
  if (settings_.policy != OnNonFinite::skip) return decision;
  if (!steps) {
    count_skip();
    buffers_.restore(run_.module());
  }
  reported_ = false;
  counts_ = true;
  return decision;
}

// A scaled loss overflows now and then: that is how the scale is found. The device skips the step.
NonFiniteDecision NonFinitePolicy::check_scaled_gradients(const Optimizer& optimizer) {
  reported_ = false;
  at::NoGradGuard no_grad;
  const int64_t every = settings_.policy == OnNonFinite::off ? 0 : settings_.check_every;
  if (every > 0 && (run_.progress().global_step + 1) % every == 0 && found_inf_->item<float>() == 0) {
    if (const std::string bad = find_on_all_ranks(optimizer); !bad.empty())
      if (const auto decision = decide(bad); decision != NonFiniteDecision::proceed) return decision;
  }
  if (!found_inf_->is_cpu() || logs_.is_recording())
    count_skips(*found_inf_);
  else if (*found_inf_->const_data_ptr<float>() != 0)
    count_skip();
  put_back_if(*found_inf_);
  counts_ = true;
  return NonFiniteDecision::proceed;
}

// Buffer updates by the step's forwards are discarded with the step.
void NonFinitePolicy::put_back_if(const Tensor& found_inf) {
  if (settings_.policy != OnNonFinite::skip) return;
  if (!found_inf.is_cpu() || logs_.is_recording()) return buffers_.restore_if(found_inf, run_.module());
  if (*found_inf.const_data_ptr<float>() != 0) buffers_.restore(run_.module());
}

void NonFinitePolicy::count_skips(const Tensor& found_inf) {
  if (!skipped_on_device_.defined())
    skipped_on_device_ = at::full({}, static_cast<double>(std::exchange(skipped_, 0)), found_inf.options());
  skipped_on_device_.add_(found_inf);
}

void NonFinitePolicy::before_recording() {
  const bool counts = settings_.policy == OnNonFinite::skip || settings_.precision->loss_scale();
  if (!run_.device().is_cpu() || !counts || skipped_on_device_.defined()) return;
  skipped_on_device_ = at::full({}, static_cast<double>(std::exchange(skipped_, 0)), at::kDouble);
}

// Seen by the host, on the CPU. Captured steps have been counted by operations.
void NonFinitePolicy::count_skip() {
  if (!skipped_on_device_.defined()) {
    ++skipped_;
    return;
  }
  const at::NoGradGuard no_grad;
  skipped_on_device_.add_(1);
  ++noted_skips_;
}

void NonFinitePolicy::count_judged_skip() {
  const at::NoGradGuard no_grad;
  ++noted_skips_;  // it is reported by the callback
  if (found_inf_ && !found_inf_->is_cpu()) return count_skips(found_inf_->eq(0).to(found_inf_->scalar_type()));
  if (found_inf_ && *found_inf_->const_data_ptr<float>() != 0) return;
  if (skipped_on_device_.defined())
    skipped_on_device_.add_(1);
  else
    ++skipped_;
}

Tensor NonFinitePolicy::skipped_steps() const {
  if (!run_.module().automatic_optimization()) {
    counts_batches_ = true;
    if (skipped_batches_on_device_.defined()) return skipped_batches_on_device_;
    return at::full({}, static_cast<double>(skipped_batches_), at::kDouble);
  }
  if (skipped_on_device_.defined()) return skipped_on_device_;
  return at::full({}, static_cast<double>(skipped_), at::kDouble);
}

void NonFinitePolicy::log_counters() {
  const int64_t step = run_.progress().global_step;
  if (!counts_ || !settings_.logs_counters || std::exchange(counters_logged_at_, step) == step) return;
  const LogOptions last{.reduce_fx = Reduce::last};
  if (skipped_on_device_.defined())
    run_.log("skipped_steps", skipped_on_device_, last);
  else
    run_.log("skipped_steps", static_cast<double>(skipped_), last);
  if (const auto scale = settings_.precision->loss_scale()) run_.log("loss_scale", *scale, last);
}

void NonFinitePolicy::check_skipped_steps(int64_t skipped, const BatchRange& batches) {
  // A scaled loss overflows now and then, which is not an error; on the CPU each was recorded when it occurred.
  const bool decided_by_device =
      settings_.policy == OnNonFinite::skip && skipped_on_device_.defined() && !settings_.precision->loss_scale();
  if (!decided_by_device || skipped <= noted_skips_) return;
  const int64_t steps = skipped - std::exchange(noted_skips_, skipped);
  judged_ = batches;
  const auto judged = c10::make_scope_exit([this] { judged_.reset(); });
  const std::string what = "the norm of the gradients";
  bad_ranks_.clear();  // the device does not report it
  note(what);
  log::warn("trainer.nonfinite_skipped",
            cat(what, " is not finite: the optimizer's step is skipped (", position_(), ", ", counted(steps, "step"),
                batches.is_one() ? " in " : " ", describe_batches(), ")"));
}

void NonFinitePolicy::after_replay() {
  if (settings_.policy != OnNonFinite::off && first_batch_ < 0) first_batch_ = run_.batch_idx();
}

BatchRange NonFinitePolicy::close_window() {
  const BatchRange batches = suspects();
  first_batch_ = -1;
  return batches;
}

NonFiniteDecision NonFinitePolicy::judge(bool good, const BatchRange& batches) {
  if (settings_.policy == OnNonFinite::off) return NonFiniteDecision::proceed;
  const bool on_cpu = run_.device().is_cpu() && !watches_on_cpu_;
  if (!on_cpu) own_loss_is_bad_ = !good;
  // Losses on a CPU were checked one by one.
  if (run_.world_size() > 1 && !on_cpu) good = !run_.collectives().any(!good);
  finite_since_rollback_ |= good && !on_cpu && batches.first >= 0;
  // With skip, a bad loss has left no trace in the weights.
  if (good || settings_.policy == OnNonFinite::skip) return NonFiniteDecision::proceed;
  judged_ = batches;
  const auto judged = c10::make_scope_exit([this] { judged_.reset(); });
  return decide("a loss or the norm of the gradients");
}

NonFiniteDecision NonFinitePolicy::judge_running_window() {
  if (settings_.policy == OnNonFinite::off) return NonFiniteDecision::proceed;
  const bool good = logs_.watched_is_finite();
  // A non-finite loss may be the result of a failed exchange.
  run_.collectives().check();
  if (!good) logs_.forget_watched();
  return judge(good, close_window());
}

// One number shows whether anything is wrong; only then is each tensor checked.
Tensor NonFinitePolicy::weight_norm() const { return weight_norm(module_state(run_.module())); }

Tensor NonFinitePolicy::weight_norm(const NamedTensors& weights) const {
  if (settings_.policy == OnNonFinite::off) return {};
  at::NoGradGuard no_grad;
  std::vector<Tensor> floating;
  for (const auto& [name, value] : weights)
    if (value.is_floating_point() && value.numel() > 0) floating.push_back(value.detach());
  return floating.empty() ? Tensor() : grad_norm(floating);
}

std::optional<std::string> NonFinitePolicy::bad_weight(const Tensor& norm, const NamedTensors& weights) {
  if (is_finite(norm)) return std::nullopt;
  at::NoGradGuard no_grad;
  for (const auto& [name, value] : weights)
    if (!is_finite(value)) return name;
  return std::nullopt;  // only the sum of squares overflowed
}

std::optional<std::string> NonFinitePolicy::bad_weight(const NamedTensors& weights) const {
  return bad_weight(weight_norm(weights), weights);
}

std::vector<int64_t> NonFinitePolicy::find_ranks() const {
  std::vector<int64_t> ranks;
  if (run_.world_size() == 1) return ranks;
  if (settings_.policy == OnNonFinite::raise || ranks_capture_) {
    if (own_loss_is_bad_) ranks.push_back(run_.rank());
    return ranks;
  }
  // All ranks get here: they decide by gradients that are the same on all of them.
  const std::vector<std::string> bad = run_.collectives().gather_text(own_loss_is_bad_ ? "bad" : "");
  for (size_t rank = 0; rank < bad.size(); ++rank)
    if (!bad[rank].empty()) ranks.push_back(static_cast<int64_t>(rank));
  return ranks;
}

NonFiniteDecision NonFinitePolicy::decide(const std::string& what) {
  const OnNonFinite policy = settings_.policy;
  bad_ranks_ = policy == OnNonFinite::off ? std::vector<int64_t>() : find_ranks();
  note(what);
  keep_finding(what);
  switch (policy) {
    case OnNonFinite::off:
      return NonFiniteDecision::proceed;
    case OnNonFinite::raise: {
      const std::string bad = find();
      throw NonFiniteError(cat(
          "[trainer.on_nonfinite] ", what, " is not finite ", finding_.where,
          bad.empty() || bad == what ? "" : cat("; first ", bad),
          ". Lower the learning rate, clip gradients, or check the data; ",
          settings_.strategy && settings_.strategy->steps_apart() ? "" : "on_nonfinite: skip skips such steps, and ",
          "trainer.check_every: 1 finds the first bad gradient.",
          // Without a target that counts, cross entropy divides by 0.
          what == "the loss" ? " A loss is NaN too if all targets of a batch are ignored (-100)." : ""));
    }
    case OnNonFinite::skip:
      reported_ = true;
      log::warn("trainer.nonfinite_skipped", cat(what, " is not finite: the optimizer's step is skipped (", position_(),
                                                 bad_ranks_.empty() ? "" : cat(", ", describe_batches()), ")"));
      return NonFiniteDecision::proceed;
    case OnNonFinite::stop:
      stopped_ = true;
      log::error(cat("[trainer.on_nonfinite] ", what, " is not finite ", finding_.where,
                     ": the run ends here, and no further checkpoint is written."));
      return NonFiniteDecision::stop;
    case OnNonFinite::rollback:
      if (!in_manual_batch_) return NonFiniteDecision::roll_back;
      rolls_back_for_ = what;
      return NonFiniteDecision::skip;
  }
  return NonFiniteDecision::proceed;
}

void NonFinitePolicy::keep_finding(const std::string& what) {
  finding_ = {.what = what, .where = cat("(", position_(), ", ", describe_batches(), ")"), .text = {}};
  finding_.text = cat("[trainer.on_nonfinite] ", what, " is not finite ", finding_.where);
}

NonFiniteDecision NonFinitePolicy::roll_back_for(const std::string& what) {
  finding_ = {.what = what, .where = cat("(", position_(), ")"), .text = {}, .is_finite = true};
  finding_.text = cat("[trainer.rollback] ", what, " ", finding_.where);
  return NonFiniteDecision::roll_back;
}

void NonFinitePolicy::count_rollback(const StateTree& saved, const std::filesystem::path& path) {
  // Training has progressed only if all values were finite for a while between the last rollback and the save.
  const bool further = saved.at("rollbacks").as_int() == rollbacks_ && saved.at("finite_since_rollback").as_bool();
  rollbacks_in_a_row_ = further ? 1 : rollbacks_in_a_row_ + 1;
  finite_since_rollback_ = false;
  if (rollbacks_in_a_row_ > kMostRollbacks) {
    const std::string text = cat(finding_.text, ", after ", kMostRollbacks, " rollbacks to the same weights (", path,
                                 "). Lower the learning rate or check the data.");
    if (finding_.is_finite) throw Error(text);
    throw NonFiniteError(text);
  }
  ++rollbacks_;
  ++rollbacks_here_;
}

void NonFinitePolicy::note(const std::string& what) const {
  // A rank that raises does not notify the others.
  const bool alone = settings_.policy == OnNonFinite::raise && own_loss_is_bad_;
  if (run_.log_dir().empty() || (!run_.is_global_zero() && !alone)) return;
  try {
    check_replaceable(run_.log_dir() / "nonfinite.jsonl");
  } catch (const Error& error) {
    return log::error(error.what());
  }
  std::ofstream file(run_.log_dir() / "nonfinite.jsonl", std::ios::app);
  const BatchRange batches = suspects();
  nlohmann::ordered_json line{{"epoch", batches.epoch},
                              {"global_step", batches.global_step},
                              {"first_batch", batches.first},
                              {"last_batch", batches.last},
                              {"what", what},
                              {"policy", enum_text(settings_.policy)}};
  if (!bad_ranks_.empty()) line["ranks"] = bad_ranks_;
  file << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
}

// Also names an entry of the batch that may have caused the finding. It is not a finding itself: data may use NaN for
// missing values.
std::string NonFinitePolicy::find() const {
  for (const auto& [name, value] : batch_)
    if (const auto* tensor = std::get_if<Tensor>(&value); tensor && !is_finite(*tensor))
      return cat("'", escape_controls(name), "' of the batch");
  // One rank alone cannot gather divided parameters.
  return find_in_weights(/*reads_weights=*/!settings_.strategy || !settings_.strategy->divides_parameters());
}

// A parameter or a gradient that is not finite; empty if all are. The same on all ranks.
std::string NonFinitePolicy::find_in_weights(bool reads_weights) const {
  const auto parameters = unique_parameters(run_.module());
  for (const auto& [name, value] : parameters)
    if (reads_weights && !is_finite(value.detach())) return cat("the parameter '", name, "'");
  for (const auto& [name, value] : parameters)
    if (!is_finite(value.grad())) return cat("the gradient of '", name, "'");
  return "";
}

// `find_in_weights`, and gradients of which each rank has a part. All ranks must call it.
std::string NonFinitePolicy::find_on_all_ranks(const Optimizer& optimizer) const {
  {
    const auto whole = settings_.strategy ? settings_.strategy->whole_parameters() : nullptr;
    if (std::string bad = find_in_weights(/*reads_weights=*/true); !bad.empty() || !optimizer.gradients_are_shards())
      return bad;
  }
  std::vector<std::string> names;
  std::vector<double> counts;
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.params.size(); ++i) {
      names.push_back(group.names[i]);
      counts.push_back(is_finite(group.params[i].grad()) ? 0 : 1);
    }
  const Tensor anywhere = optimizer.sum_over_shards(at::tensor(counts, at::kDouble));
  for (size_t i = 0; i < names.size(); ++i)
    if (anywhere.const_data_ptr<double>()[i] > 0) return cat("the gradient of '", names[i], "'");
  return "";
}

BatchRange NonFinitePolicy::suspects() const {
  if (judged_) return *judged_;
  return {.first = first_batch_,
          .last = run_.batch_idx(),
          .epoch = run_.progress().epoch,
          .global_step = run_.progress().global_step};
}

std::string NonFinitePolicy::describe_batches() const {
  std::vector<std::string> ranks;
  for (const int64_t rank : bad_ranks_) ranks.push_back(std::to_string(rank));
  const std::string of = ranks.empty() ? "" : cat(ranks.size() == 1 ? " of rank " : " of ranks ", join(ranks));
  const BatchRange batches = suspects();
  if (batches.is_one()) return cat("batch ", batches.last, of);
  return cat("in batches ", batches.first, " to ", batches.last, of);
}

StateTree NonFinitePolicy::state(bool window_open) const {
  StateTree skipped = skipped_;
  if (skipped_on_device_.defined()) skipped = late_number(skipped_on_device_.to(at::kLong) + skipped_);
  StateTree tree = StateTree::map({{"skipped_steps", std::move(skipped)},
                                   {"rollbacks", rollbacks_},
                                   {"rollbacks_in_a_row", rollbacks_in_a_row_},
                                   {"finite_since_rollback", finite_since_rollback_},
                                   {"reported", reported_},
                                   {"counts", counts_},
                                   {"counters_logged_at", counters_logged_at_}});
  if (saves_buffers() && (window_open || manual_window_open_)) tree["window_buffers"] = buffers_.state();
  return tree;
}

void NonFinitePolicy::load_state(const StateTree& state, bool manual) {
  const int64_t skipped = state.at("skipped_steps").as_int(), rollbacks = state.at("rollbacks").as_int();
  skipped_ = noted_skips_ = skipped;
  rollbacks_ = rollbacks;
  rollbacks_in_a_row_ = state.at("rollbacks_in_a_row").as_int();
  finite_since_rollback_ = state.at("finite_since_rollback").as_bool();
  counts_ = state.at("counts").as_bool();
  counters_logged_at_ = state.at("counters_logged_at").as_int();
  reported_ = state.at("reported").as_bool();
  manual_window_open_ = manual && state.contains("window_buffers");
  if (saves_buffers())
    buffers_.load_state(state.contains("window_buffers") ? state.at("window_buffers").as_list() : StateTree::List(),
                        run_.module());
}

}  // namespace fulgur::detail
