#include "capture/captured_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "capture/cannot_capture.h"
#include "capture/failed_operation.h"
#include "fulgur/core/contracts/component_access.h"
#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/state/clip.h"
#include "fulgur/core/state/plain_copy.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "run/batch_transfer.h"

namespace fulgur::detail {
namespace {

// These steps create the slots of logged values and the optimizer state, and let kernels be selected.
constexpr int64_t kWarmUps = 3;
// The first window sets up a rank's exchanges, before the second begins.
constexpr int64_t kWindowsOfRanks = 2;

// So many in a row have replaced the kind that is recorded; fewer may end an epoch, or vary by chance.
constexpr int64_t kBatchesOfAnotherKind = 10;

// Recordings of fewer steps take more time than they save. After so many of them in a row, steps become eager.
constexpr int64_t kUsefulLaunches = 30;
constexpr int64_t kShortLives = 4;

// A comparison takes as long as about ten eager steps.
constexpr int64_t kLongSection = 500;

// Of these, one that comes again is recorded; if there are more, one that has not come again is forgotten.
constexpr size_t kMostTrackedShapes = 64;

bool is_tenfold(int64_t count) {
  while (count > 1 && count % 10 == 0) count /= 10;
  return count == 1;
}

}  // namespace

CapturedStep::CapturedStep(RunState& run, Services& services, std::unique_ptr<GraphCapture> graph, Body body)
    : run_(run),
      services_(services),
      optimizer_(dynamic_cast<RecordableStep*>(run.plan.optimizers.front().optimizer.get())),
      graph_(std::move(graph)),
      body_(std::move(body)),
      several_shapes_(graph_->compares_recordings() && run.options.capture_shapes > 1),
      members_(*run.model),
      hooks_between_epochs_(ComponentAccess::overridden(*run.model).has(Hook::on_train_epoch_start) ||
                            ComponentAccess::overridden(*run.model).has(Hook::on_train_epoch_end)) {
  now_ = shapes_.emplace_back(std::make_unique<Shape>()).get();
  const PlannedOptimizer& planned = run.plan.optimizers.front();
  planned.optimizer->keep_rates_on_device();
  momentum_on_device_ = schedules_momentum(planned);
  if (momentum_on_device_) optimizer_->keep_momentum_on_device();
}

CapturedStep::~CapturedStep() {
  const int64_t launched = run_.captured.batches;
  if (launched == 0 && !given_up_)
    run_.captured.refused = waits_.empty() ? cat("the fit ended first; steps are captured after ", kWarmUps,
                                                 " eager steps, at a batch of the same shape as the previous one")
                                           : std::string(waits_);
  if (launched > 0 || !given_up_)
    log::info(cat("capture: ", launched, " of ", batches_, " batches were captured",
                  launched == 0 ? cat(": ", *run_.captured.refused) : ""));
}

void CapturedStep::set_prefetcher(DevicePrefetcher* prefetcher) {
  prefetcher_ = prefetcher;
  if (prefetcher_ && sets_) prefetcher_->write_into(sets_);
}

void CapturedStep::end_capture(const std::string& reason, const char* warning, const std::string& message) {
  run_.captured.refused = reason;
  log::warn(warning, cat("capture: ", message));
  start_over();
  copy_batches();
  given_up_ = true;
}

void CapturedStep::give_up(const std::string& reason) {
  end_capture(reason, "trainer.not_captured",
              cat("the steps are not captured: ", reason, ". Training continues with eager steps"));
}

void CapturedStep::give_up_for_number(int64_t step) {
  const NumberChange& change = *changing_;
  if (run_.captured.batches == 0) return give_up(change.why_not_captured());
  end_capture(change.why_not_captured(), "trainer.host_number_changed", change.seen_late(first_captured_, step));
}

void CapturedStep::start_over() {
  recorded_ = false;
  warm_ups_ = windows_ = pool_bytes_ = 0;
  for (const auto& shape : shapes_) {
    shape->recordings = {};
    shape->recorded = false;
    shape->logged = {};
  }
  window_gradients_.clear();
  held_.clear();
  changing_.reset();
  member_change_.reset();
}

void CapturedStep::record_again(const std::string& why) {
  const int64_t launched = run_.captured.batches - std::exchange(launched_before_, run_.captured.batches);
  short_lives_ = launched < kUsefulLaunches ? short_lives_ + 1 : 0;
  if (short_lives_ > kShortLives && graph_->compares_recordings())
    return give_up(cat("recordings have served fewer than ", kUsefulLaunches, " steps ", short_lives_,
                       " times in a row, the last time because ", why));
  start_over();
}

bool CapturedStep::select_shape(const Batch& batch) {
  const auto fits = [&](const std::unique_ptr<Shape>& shape) { return shape->kind.fits(batch); };
  bool recurs = now_->kind.fits(batch);
  if (!recurs) {
    auto found = std::ranges::find_if(shapes_, fits);
    if (found == shapes_.end()) {
      BatchKind kind(batch);
      if (!kind.fits(batch)) return false;
      if (shapes_.size() >= kMostTrackedShapes) {
        found = std::ranges::find_if(shapes_, [](const auto& shape) { return !shape->recorded; });
        if (found == shapes_.end()) return false;
        shapes_.erase(found);
      }
      shapes_.push_back(std::make_unique<Shape>(Shape{.kind = std::move(kind)}));
      found = std::prev(shapes_.end());
    }
    now_ = found->get();
  }
  const int64_t epoch = run_.counters.epoch;
  if (std::exchange(now_->epoch, epoch) == epoch) recurs = true;
  now_->recurs = recurs;
  return true;
}

bool CapturedStep::may_record_shape() {
  if (!several_shapes_) return true;
  if (!now_->recurs) return false;
  if (std::ranges::count_if(shapes_, [](const auto& shape) { return shape->recorded; }) < run_.options.capture_shapes)
    return true;
  if (!std::exchange(reported_shapes_, true))
    log::info(cat("capture: there are batches of more than ", run_.options.capture_shapes,
                  " shapes (trainer.capture_shapes); those of other shapes run eagerly"));
  return false;
}

void CapturedStep::note_other_kind(const Batch& batch) {
  others_ = others_ > 0 && other_kind_.fits(batch) ? others_ + 1 : 1;
  if (others_ == 1) other_kind_ = BatchKind(batch);
  // On GPUs, ranks record together, but may see batches of different shapes.
  if (others_ < kBatchesOfAnotherKind || (run_.world_size() > 1 && !graph_->compares_recordings())) return;
  start_over();
  // The loader may write batches of this kind into the sets.
  copies_ = false;
  now_->inputs = Batch();
  now_->kind = other_kind_;
  others_ = 0;
}

int64_t CapturedStep::reserved() const {
  const auto memory = device_memory(run_.device());
  return memory ? memory->reserved : 0;
}

void CapturedStep::before_evaluation() {
  ++evaluations_;
  make_room();
}

void CapturedStep::make_room() {
  // Ranks record and launch together.
  if (!recorded_ || run_.world_size() > 1) return;
  const auto memory = device_memory(run_.device());
  const auto free = free_device_memory(run_.device());
  if (!memory || !free) return;
  // At most what a recorded step needs.
  const int64_t cached = std::max<int64_t>(memory->reserved - memory->allocated - pool_bytes_, 0);
  if (*free + cached >= pool_bytes_) return;
  if (!std::exchange(made_room_, true))
    log::info(cat("capture: the device's memory cannot hold both the recorded steps (", pool_bytes_ >> 20,
                  " MiB) and other work, such as an epoch's last batch or a validation: the steps are recorded again "
                  "afterwards"));
  start_over();
}

bool CapturedStep::ask_for_sets(const Batch& batch) {
  if (!prefetcher_) copies_ = true;
  if (copies_ || (sets_ && sets_->kind().fits(batch))) return true;
  sets_ = std::make_shared<InputSets>(BatchKind(batch));
  prefetcher_->write_into(sets_);
  return false;
}

void CapturedStep::copy_batches() {
  if (sets_ && sets_->kept() && !std::exchange(reported_kept_, true))
    log::info(
        "capture: something keeps references to batch tensors, so each batch is copied once more for the captured "
        "step");
  copies_ = true;
  if (prefetcher_) prefetcher_->write_into(nullptr);
  sets_.reset();
}

std::optional<size_t> CapturedStep::place(const Batch& batch) {
  if (!copies_) return sets_->find(batch);
  if (!now_->recorded) {
    now_->inputs = Batch();
    for (const auto& [name, value] : batch) now_->inputs.add(name, std::get<Tensor>(value).clone());
    return 0;
  }
  auto input = now_->inputs.begin();
  for (const auto& [name, value] : batch)
    copy_values(std::get<Tensor>((input++)->second), std::get<Tensor>(value), /*non_blocking=*/true);
  return 0;
}

void CapturedStep::remember_modes() {
  learning_.clear();
  training_.clear();
  for (const auto& [name, value] : unique_parameters(*run_.model)) learning_.emplace_back(value, value.requires_grad());
  for (auto& part : run_.model->modules(/*include_self=*/true)) {
    const bool training = part->is_training();
    training_.emplace_back(std::move(part), training);
  }
  held_.clear();
  for (const auto& [name, value] : unique_parameters(*run_.model)) held_.push_back({name, value, value.detach()});
  for (const auto& item : run_.model->named_buffers())
    if (item.value().defined()) held_.push_back({item.key(), item.value(), item.value().detach()});
  layout_ = optimizer_->layout();
  optimizer_numbers_.clear();
  each_optimizer_number([this](std::optional<double> number) { optimizer_numbers_.push_back(number); });
  accumulation_ = run_.window.target;
}

template <class Use>
void CapturedStep::each_optimizer_number(Use use) const {
  const Optimizer& optimizer = *run_.plan.optimizers.front().optimizer;
  use(momentum_on_device_ ? std::nullopt : optimizer.momentum());
  for (const ParamGroup& group : optimizer.groups()) use(optimizer.weight_decay(group));
}

bool CapturedStep::optimizer_numbers_changed() const {
  size_t place = 0;
  bool same = true;
  each_optimizer_number([&](std::optional<double> number) {
    same = same && place < optimizer_numbers_.size() && optimizer_numbers_[place] == number;
    ++place;
  });
  return !same || place != optimizer_numbers_.size();
}

bool CapturedStep::optimizer_numbers_keep_changing() {
  size_t place = 0;
  const bool is_first = window_numbers_.empty();
  bool changed = false;
  each_optimizer_number([&](std::optional<double> number) {
    if (place == window_numbers_.size()) window_numbers_.push_back(number);
    if (std::exchange(window_numbers_[place], number) != number) changed = true;
    ++place;
  });
  number_changes_ = changed && !is_first ? number_changes_ + 1 : 0;
  return number_changes_ >= kWarmUps;
}

bool CapturedStep::Held::is_replaced() const {
  if (!tensor.has_storage()) return false;
  const auto storage_of = [](const Tensor& of) {
    return of.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  };
  // The memory of parameters that a strategy divides cannot be read between steps.
  return storage_of(tensor) != storage_of(memory) || tensor.storage_offset() != memory.storage_offset() ||
         tensor.sizes() != memory.sizes() || tensor.strides() != memory.strides() ||
         tensor.scalar_type() != memory.scalar_type();
}

std::optional<std::string> CapturedStep::replaced_memory() const {
  const auto found = std::ranges::find_if(held_, [](const Held& held) { return held.is_replaced(); });
  return found == held_.end() ? std::nullopt : std::optional(found->name);
}

std::optional<std::string> CapturedStep::out_of_date() const {
  if (const auto replaced = replaced_memory())
    return cat("the memory of '", *replaced,
               "' was replaced between steps (set_data, set_): write into it in place, as copy_ does");
  if (layout_ != optimizer_->layout()) return "the optimizer's tensors have changed";
  if (accumulation_ != run_.window.target) return "the number of batches in a window has changed";
  if (optimizer_numbers_changed()) return "the weight decay or the momentum of the optimizer has changed";
  if (std::ranges::any_of(learning_, [](const auto& pair) { return pair.first.requires_grad() != pair.second; }))
    return "requires_grad of a parameter has changed";
  if (std::ranges::any_of(training_, [](const auto& pair) { return pair.first->is_training() != pair.second; }))
    return "the mode of a layer (train, eval) has changed";
  return std::nullopt;
}

std::vector<Tensor> CapturedStep::gradients() const {
  std::vector<Tensor> all;
  all.reserve(learning_.size());
  for (const auto& [parameter, learns] : learning_) all.push_back(parameter.grad());
  return all;
}

void CapturedStep::set_gradients(const std::vector<Tensor>& gradients) const {
  for (size_t i = 0; i < gradients.size(); ++i) learning_[i].first.mutable_grad() = gradients[i];
}

bool CapturedStep::gradients_are(const std::vector<Tensor>& others) const {
  return std::ranges::equal(learning_, others,
                            [](const auto& mine, const Tensor& other) { return mine.first.grad().is_same(other); });
}

void CapturedStep::keep_gradients_in_place() {
  std::vector<Tensor> made = gradients();
  if (window_gradients_.empty()) {
    window_gradients_ = std::move(made);
    return;
  }
  std::vector<Tensor> from, to;
  for (size_t i = 0; i < made.size(); ++i) {
    if (made[i].is_same(window_gradients_[i])) continue;
    if (made[i].defined() != window_gradients_[i].defined())
      throw Error("parameters get gradients only in some batches of a window");
    from.push_back(made[i]);
    to.push_back(window_gradients_[i]);
  }
  const at::NoGradGuard no_grad;
  if (!to.empty()) at::_foreach_copy_(to, from);
  set_gradients(window_gradients_);
}

StepOutput CapturedStep::record_body(Recording& recording, const Batch& batch, int64_t batch_idx) {
  services_.logs.start_recording(run_.device());
  services_.metrics.start_recording();
  members_.remember();
  Batch in_format = batch;
  to_memory_format(run_, in_format);
  StepOutput output = body_(in_format, batch_idx, last_of_window());
  if (first_of_window() && !last_of_window()) keep_gradients_in_place();
  recording.gradients_after = gradients();
  recording.additions = services_.logs.take_recording();
  recording.updates = services_.metrics.take_recording();
  numbers_ = services_.logs.take_noted();
  changes_members_ = members_.changed();
  return output;
}

std::optional<std::string> CapturedStep::cannot_replay_host_code() const {
  if (run_.captured.effects > 0) return kEffectsInStep;
  const char* const hook = hook_after_steps(*run_.model);
  if (!changes_members_ || !hook || !graph_->compares_recordings()) return std::nullopt;
  return cat(
      "training_step changes members of the module, as a counter or a list of losses, which captured steps would "
      "not do, and the module overrides ",
      hook, ", which may use them; keep such values in buffers, or log them");
}

void CapturedStep::refuse_difference(const Recording& recording, const std::string& what) const {
  throw Error(cat("[trainer.capture] a captured step must do what its recording does; the step after ",
                  recording.launches, " captured ones differs: ", what,
                  member_change_ ? cat("; ", *member_change_) : std::string(),
                  ". The weights are those before this step; the ", recording.unverified,
                  " steps since the last comparison may be wrong. Keep host code that changes between steps out of the "
                  "step, or set trainer.capture to false."));
}

void CapturedStep::refuse_second_exchange(const std::string& what) const {
  throw Error(
      cat("[trainer.capture] a step that is captured by several ranks must be recorded when it is computed, since "
          "its exchanges cannot be repeated; it was not: ",
          what, ". Set trainer.capture to false."));
}

bool CapturedStep::record(Recording& recording, const Batch& batch, int64_t batch_idx) {
  const PlannedOptimizer& planned = run_.plan.optimizers.front();
  if (!recorded_) remember_modes();
  recording.gradients_before = gradients();
  const int64_t losses = run_.window.losses;
  // Not on the stack: a recorder of tests calls the body again.
  const auto reserved_before = std::make_shared<int64_t>(0);
  stopped_at_.clear();
  optimizer_->set_recording(true);
  if (!recording.graph) recording.graph = graph_->another();
  const bool is_new_section = std::exchange(recording.section, section()) != section();
  recording.epoch = run_.counters.epoch;
  recording.reasons = reasons_;
  run_.captured.effects = 0;
  services_.finite.before_recording();
  services_.logs.before_recording(run_.device());
  try {
    recording.graph->record([&recording, reserved_before, batch, batch_idx, this] {
      *reserved_before = reserved();
      const FailedOperation failed;
      try {
        recording.output = record_body(recording, batch, batch_idx);
      } catch (...) {
        stopped_at_ = FailedOperation::take();
        throw;
      }
    });
  } catch (const std::exception& error) {
    std::string what = first_line(error.what());
    const bool executed = dynamic_cast<const StepNotRecorded*>(&error) != nullptr;
    // After one launch nothing is wrong: it was compared with an eager step.
    const bool is_right = recording.launches <= 1 || recording.unverified == 0;
    if (executed && is_right && recording.output.loss.defined()) {
      optimizer_->set_recording(false);
      run_.window.losses = losses;
      executed_ = what;
      records_again_ = recording.launches > 1 || (recording.launches == 1 && is_new_section);
      sections_differ_ = sections_differ_ || (records_again_ && is_new_section);
      return false;
    }
    if (executed) recording.graph->undo_step();
    run_.captured.effects_done = run_.captured.effects;
    undo_step(recording.gradients_before, losses);
    // An eager step would exchange a second time, and the other ranks would not.
    if (exchanges_when_recorded() && !executed) throw;
    if (exchanges_when_recorded() && is_right) refuse_second_exchange(what);
    if (!is_right) refuse_difference(recording, what);
    // LibTorch advises to pin memory.
    const size_t of_copy = what.find(" during CUDA graph capture");
    if (of_copy != what.npos) what.erase(of_copy);
    if (of_copy != what.npos || what.find("not permitted when stream is capturing") != what.npos)
      what +=
          ". The step synchronizes with the device there, as item(), cpu() and copies to the host do: keep values on "
          "the device";
    return give_up(stopped_at_.empty() ? what : cat("at ", stopped_at_, ": ", what)), false;
  } catch (...) {
    undo_step(recording.gradients_before, losses);
    throw;
  }
  optimizer_->set_recording(false);
  pool_bytes_ += std::max<int64_t>(reserved() - *reserved_before, 0);
  look_at(numbers_, last_of_window());
  const auto rate = planned.scheduler ? rate_among(numbers_, *planned.optimizer) : std::nullopt;
  const auto replaced = replaced_memory();
  const auto host_code = cannot_replay_host_code();
  if (host_code && recording.launches > 1 && recording.unverified > 0) {
    undo_step(recording.gradients_before, losses);
    refuse_difference(recording, *host_code);
  }
  if ((host_code || ((changing_ || rate) && run_.captured.batches == 0)) && !replaced &&
      recording.output.loss.defined() && recording.graph->compares_recordings()) {
    // It is this step's recording, so code of the host need not run twice.
    recording.graph->replay();
    run_.window.losses = losses;
    executed_ = host_code ? *host_code : rate ? *rate : changing_->why_not_captured();
    return false;
  }
  if (changing_ || rate || replaced || !recording.output.loss.defined()) {
    if (exchanges_when_recorded())
      refuse_second_exchange(replaced ? cat("the step replaces the memory of '", *replaced, "'")
                                      : "training_step returned no loss");
    undo_step(recording.gradients_before, losses);
    run_.captured.effects_done = run_.captured.effects;
    if (replaced)
      return give_up(cat("the step replaces the memory of '", *replaced,
                         "' (set_data): write into it in place, as copy_ does")),
             false;
    if (changing_) return give_up_for_number(run_.counters.global_step), false;
    return give_up(rate ? *rate : "training_step returned no loss"), false;
  }
  set_gradients(recording.gradients_before);
  run_.window.losses = losses;
  if (!recorded_) first_captured_ = run_.counters.global_step;
  if (records_++ == 0)
    log::info(
        cat("capture: the step is captured",
            numbers_.empty() ? "" : cat("; host numbers are logged with their current values: ", text_of(numbers_))));
  recorded_ = now_->recorded = true;
  return true;
}

bool CapturedStep::compares(const Recording& recording) const {
  if (!recording.graph->compares_recordings()) return false;
  // The gradients that a window's first recording makes are where later ones expect them: it is made once more.
  if (recording.launches == 2 && first_of_window() && !last_of_window()) return true;
  return (recording.launches > 0 && is_tenfold(recording.launches)) || recording.epoch != run_.counters.epoch ||
         recording.reasons != reasons_;
}

void CapturedStep::note_changes() {
  const bool is_due = members_.due();
  member_change_ = members_.last_change();
  const bool evaluated = std::exchange(evaluations_seen_, evaluations_) != evaluations_;
  if (is_due || (evaluated && (sections_differ_ || is_tenfold(evaluations_)))) ++reasons_;
  members_change_ = members_change_ || (evaluated && member_change_);
}

bool CapturedStep::ends_section(const Recording* recording, int64_t batch_idx, const ExpectedEnd& end) {
  if (batch_idx <= now_->last_captured) now_->last_of_epoch = now_->last_captured;
  now_->last_captured = batch_idx;
  if (!recording || recording->launches == 0 || !graph_->compares_recordings()) return false;
  const bool is_worth_it = members_change_ || sections_differ_ || recording->unverified >= kLongSection;
  // All batches of the last window: those within it have other recordings than the last one.
  const int64_t window = run_.window.target;
  if (end.batches_to_evaluation && *end.batches_to_evaluation <= window &&
      (is_worth_it || is_tenfold(evaluations_ + 1)))
    return true;
  const int64_t steps = run_.counters.global_step + 1, epochs = run_.counters.epoch + 1;
  const std::optional<Interval>& stop = run_.options.stop_after;
  const auto stops_at = [&stop](Interval::Unit unit, int64_t count) {
    return stop && stop->unit == unit && static_cast<double>(count) >= stop->value;
  };
  if (steps == run_.options.step_limit || stops_at(Interval::Unit::steps, steps)) return true;
  if (!end.batches_in_epoch) return false;
  // The last batch of an epoch may be of another shape, which runs eagerly.
  const int64_t last = now_->last_of_epoch >= 0 ? now_->last_of_epoch : *end.batches_in_epoch - 2;
  if (batch_idx <= last - window) return false;
  return is_worth_it || hooks_between_epochs_ || is_tenfold(epochs) || epochs == run_.options.epoch_limit ||
         stops_at(Interval::Unit::epochs, epochs);
}

bool CapturedStep::compare(Recording& recording, const Batch& batch, int64_t batch_idx) {
  if (recording.launches == 1 && first_of_window() && !last_of_window()) recording.graph->forget();
  return record(recording, batch, batch_idx);
}

void CapturedStep::undo_step(const std::vector<Tensor>& gradients, int64_t losses) {
  optimizer_->set_recording(false);
  services_.logs.take_recording();
  services_.logs.take_noted();
  services_.metrics.take_recording();
  run_.strategy->precision().abandon_step();
  // Memory that the recording allocated has no values.
  for (const Held& held : held_)
    if (held.is_replaced()) Tensor(held.tensor).set_data(held.memory);
  run_.plan.optimizers.front().optimizer->zero_grad();
  set_gradients(gradients);
  GradientNorm::forget(*run_.model);
  run_.window.losses = losses;
}

std::optional<StepOutput> CapturedStep::replay(Recording& recording) {
  const int64_t losses = run_.window.losses;
  run_.position.doing = "a captured step";
  if (run_.world_size() > 1) run_.collectives().set_activity("a captured step");
  services_.logs.before_replay(recording.additions);
  recording.graph->replay();
  services_.logs.after_replay(recording.additions);
  services_.metrics.after_replay(recording.updates);
  services_.finite.after_replay();
  set_gradients(recording.gradients_after);
  run_.window.losses = losses;
  ++run_.captured.batches;
  ++recording.launches;
  members_.remember();
  return output_of(recording);
}

StepOutput CapturedStep::output_of(const Recording& recording) const {
  // On a GPU that would be one more launch in each step.
  if (!graph_->compares_recordings()) return recording.output;
  if (!run_.callbacks.any_overrides(Hook::on_train_batch_end) &&
      !ComponentAccess::overridden(*run_.model).has(Hook::on_train_batch_end))
    return recording.output;
  const auto copy = [](const Tensor& value) { return value.defined() ? value.detach().clone() : value; };
  StepOutput output(copy(recording.output.loss));
  for (const auto& [name, value] : recording.output.extra) output.extra.add(name, copy(value));
  return output;
}

StepOutput CapturedStep::accept(Recording& recording) {
  services_.logs.after_execution(recording.additions);
  services_.metrics.after_replay(recording.updates);
  services_.finite.after_replay();
  set_gradients(recording.gradients_after);
  StepOutput output = output_of(recording);
  std::string why = *std::exchange(executed_, std::nullopt);
  if (member_change_) why += cat("; ", *member_change_);
  if (!std::exchange(records_again_, false)) return give_up(why), output;
  record_again(cat("the step has changed (", why, ")"));
  if (!given_up_)
    log::info(cat("capture: the step has changed since the last one (", why, "), so it is captured again"));
  return output;
}

void CapturedStep::look_at(const HostNumbers& numbers, bool last) {
  std::optional<HostNumbers>& before = now_->logged[last];
  if (before && !changing_) changing_ = changing_number(*before, numbers);
  if (!before) before = numbers;
}

std::vector<bool> CapturedStep::which_learn() const {
  std::vector<bool> learn;
  for (const auto& [name, value] : unique_parameters(*run_.model)) learn.push_back(value.requires_grad());
  return learn;
}

std::shared_ptr<void> CapturedStep::eager_step(const Batch& batch) {
  struct Step {
    Step(CapturedStep& captured, bool is_alike) : step(captured), alike(is_alike), last(captured.last_of_window()) {}
    ~Step() {
      if (std::uncaught_exceptions() > exceptions) return;
      const HostNumbers numbers = step.services_.logs.take_noted();
      if (!step.recorded_) step.warm_up_ = {.learn = step.which_learn(), .layout = step.optimizer_->layout()};
      if (alike) step.look_at(numbers, last);
      if (step.recorded_ && step.changing_) step.give_up_for_number(global_step);
    }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
    CapturedStep& step;
    bool alike, last;
    int64_t global_step = step.run_.counters.global_step;  // before the step
    int exceptions = std::uncaught_exceptions();
    std::shared_ptr<void> on_stream;  // destroyed first
  };
  if (given_up_) return nullptr;
  make_room();
  bool alike = now_->kind.fits(batch);
  if (!now_->recorded && !alike) {
    now_->kind = BatchKind(batch);
    now_->logged = {};
    alike = true;
  }
  auto step = std::make_shared<Step>(*this, alike);
  services_.logs.start_noting(run_.device());
  if (recorded_) return step;
  ++warm_ups_;
  if (last_of_window()) ++windows_;
  step->on_stream = graph_->enter_stream();
  return step;
}

std::optional<StepOutput> CapturedStep::step(const Batch& batch, int64_t batch_idx, const ExpectedEnd& end) {
  ++batches_;
  run_.captured.effects_done = 0;
  if (given_up_) return std::nullopt;
  if (several_shapes_ && !select_shape(batch) && now_->recorded) return std::nullopt;
  // A window that has a batch without a loss is shorter than usual, as an epoch's last window may be.
  if (run_.window.length != run_.window.target || run_.window.losses != run_.window.done) {
    waits_ =
        "no window of accumulate_grad_batches batches, each with a loss, came after the eager steps that a capture "
        "needs";
    return std::nullopt;
  }
  if (run_.captured.step_has_effects) return give_up(kEffectsInStep), std::nullopt;
  // Buffers are exchanged once per window, based on what the strategy recorded in the previous eager step; a callback
  // may make windows longer.
  if (run_.window.target != 1 && run_.world_size() > 1 && !run_.model->buffers().empty()) {
    waits_ = "with several ranks, steps of a module with buffers are captured only if windows have one batch";
    return std::nullopt;
  }
  if (first_of_window() && optimizer_numbers_keep_changing())
    return give_up(cat("the weight decay or the momentum of ", run_.plan.optimizers.front().optimizer->name(),
                       " changes in each step")),
           std::nullopt;
  if (recorded_) {
    if (const auto why = out_of_date()) record_again(*why);
    if (given_up_) return std::nullopt;
  }
  if (!now_->recorded) {
    if (warm_ups_ < kWarmUps - 1) return std::nullopt;
    if (const std::string why = why_unreadable(batch); !why.empty()) return give_up(why), std::nullopt;
    // A recording cannot make the state of the optimizer.
    if (!recorded_ &&
        (warm_up_.learn != which_learn() || (first_of_window() && warm_up_.layout != optimizer_->layout())))
      warm_ups_ = windows_ = 0;
    if (!ask_for_sets(batch) || warm_ups_ < kWarmUps || windows_ < (run_.world_size() > 1 ? kWindowsOfRanks : 1) ||
        (!recorded_ && !first_of_window()))
      return std::nullopt;
    if (changing_) return give_up_for_number(run_.counters.global_step), std::nullopt;
    if (!may_record_shape()) {
      waits_ =
          "each batch at which steps could be captured had another shape than the one before, or more shapes came than "
          "capture_shapes";
      return std::nullopt;
    }
  }
  if (!now_->kind.fits(batch)) return note_other_kind(batch), std::nullopt;
  others_ = 0;
  std::optional<size_t> set = place(batch);
  if (!set) {
    copy_batches();
    if (recorded_) return start_over(), std::nullopt;
    set = place(batch);
  }
  std::optional<Recording>& recording =
      now_->recordings[*set * 4 + (first_of_window() ? 2 : 0) + (last_of_window() ? 1 : 0)];
  if (!first_of_window() && !gradients_are(recording ? recording->gradients_before : window_gradients_))
    return std::nullopt;
  if (recording && first_of_window() && !gradients_are(recording->gradients_before)) return std::nullopt;
  run_.plan.optimizers.front().optimizer->upload_rates();
  const Batch& input = copies_ ? now_->inputs : batch;
  if (recorded_ && graph_->compares_recordings()) note_changes();
  const bool is_last = ends_section(recording ? &*recording : nullptr, batch_idx, end);
  const bool verifies = !recording || compares(*recording) || is_last;
  if (verifies && !(recording ? compare(*recording, input, batch_idx) : record(recording.emplace(), input, batch_idx)))
    return executed_ ? std::optional(accept(*recording)) : std::nullopt;
  recording->unverified = verifies ? 0 : recording->unverified + 1;
  return replay(*recording);
}

}  // namespace fulgur::detail
