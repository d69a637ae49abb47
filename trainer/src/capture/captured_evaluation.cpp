#include "capture/captured_evaluation.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>
#include <variant>

#include "capture/cannot_capture.h"
#include "capture/place_of_operation.h"
#include "fulgur/core/state/plain_copy.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "run/evaluation_names.h"

namespace fulgur::detail {
namespace {

// More shapes than this are not told apart.
constexpr size_t kMostKnownShapes = 256;

bool is_power_of_ten(int64_t count) {
  while (count > 1 && count % 10 == 0) count /= 10;
  return count == 1;
}

const Tensor& tensor_in(const Batch::Entry& entry) { return std::get<Tensor>(entry.second); }

}  // namespace

struct CapturedEvaluation::Recording {
  std::unique_ptr<GraphCapture> graph;
  Batch inputs;     // the recording reads them
  Outputs outputs;  // the recording writes them
  std::vector<LogStore::Addition> additions;
  std::vector<MetricStore::Updates> updates;
  int64_t launches = 0, pass = 0;  // since it was recorded for the first time; the pass of the last recording
  int64_t member_changes = 0;      // until the last recording
};

struct CapturedEvaluation::Shape {
  int64_t loader;
  BatchKind kind;
  int64_t pass = 0;                   // in which it was seen last
  int64_t batches = 0, previous = 0;  // in that pass and in the one before; 0: none
  std::optional<Recording> recording = {};
};

struct CapturedEvaluation::Problem {
  std::string text;
  bool executed;  // the step must not be done again
};

CapturedEvaluation::CapturedEvaluation(RunState& run, Services& services, RunningStage stage)
    : run_(run),
      services_(services),
      stage_(stage),
      step_name_(evaluation_step(stage)),
      graph_(run.strategy->make_graph_capture()),
      members_(*run.model) {
  if (const auto reason = cannot_capture_evaluation(run, stage, graph_.get()))
    give_up(*reason);
  else {
    graph_->set_place([this] { return place_of_operation(run_); });
    graph_->set_state([this] { return captured_state(*run_.model); });
  }
}

CapturedEvaluation::~CapturedEvaluation() = default;

void CapturedEvaluation::begin_pass() {
  ++pass_;
  short_text_.reset();
  // Their weights with adapters are other tensors in each pass, which the module does not have as parameters.
  if (!run_.lora_layers.empty()) start_over();
}

void CapturedEvaluation::end_pass() {
  if (given_up_) return;
  CapturedCounts& counts = run_.captured_evaluation;
  counts.refused = std::nullopt;
  if (counts.batches == 0 && short_text_)
    counts.refused = short_text_;
  else if (counts.batches == 0)
    counts.refused = "no loader has had two batches of the same shape in a pass, and the first of a shape runs eagerly";
}

void CapturedEvaluation::begin_loader(std::optional<int64_t> limit, bool is_exact) {
  const auto loader = static_cast<size_t>(run_.position.loader_idx);
  if (loader >= counts_.size()) counts_.resize(loader + 1);
  const int64_t last = std::exchange(counts_[loader], 0);
  // Of a stream, the last pass says how many there are.
  std::optional<int64_t> batches = limit;
  if (!is_exact && last > 0) batches = std::min(limit.value_or(last), last);
  const int64_t least = run_.options.capture_min_eval_batches;
  is_short_ = batches && *batches < least;
  if (!is_short_ || given_up_) return;
  short_text_ = cat("a loader has ", *batches, *batches == 1 ? " batch" : " batches",
                    " in a pass, and evaluations are captured from trainer.capture_min_eval_batches (", least, ") on");
  if (!std::exchange(reported_short_, true)) log::info(cat("capture: ", step_name_, " runs eagerly: ", *short_text_));
}

void CapturedEvaluation::start_over() {
  for (const auto& shape : shapes_) shape->recording.reset();
  guards_.reset();
}

void CapturedEvaluation::give_up(const std::string& reason) {
  given_up_ = true;
  run_.captured_evaluation.refused = reason;
  log::warn("trainer.evaluation_not_captured",
            cat("capture: ", step_name_, " is not captured: ", reason, ". Its steps run eagerly"));
  start_over();
}

CapturedEvaluation::Shape* CapturedEvaluation::shape_of(const Batch& batch) {
  const int64_t loader = run_.position.loader_idx;
  for (const auto& shape : shapes_)
    if (shape->loader == loader && shape->kind.fits(batch)) return shape.get();
  if (const std::string why = why_unreadable(batch); !why.empty()) {
    give_up(why);
    return nullptr;
  }
  BatchKind kind(batch);
  // Such as one with sparse tensors.
  if (!kind.fits(batch) || shapes_.size() >= kMostKnownShapes) return nullptr;
  shapes_.push_back(std::make_unique<Shape>(Shape{.loader = loader, .kind = std::move(kind)}));
  return shapes_.back().get();
}

std::optional<Outputs> CapturedEvaluation::step(const Batch& batch, std::optional<int64_t> left, const Body& body) {
  run_.captured_evaluation.effects_done = 0;
  ++counts_[static_cast<size_t>(run_.position.loader_idx)];
  if (given_up_ || is_short_) return std::nullopt;
  Shape* const shape = shape_of(batch);
  if (!shape) return std::nullopt;
  if (std::exchange(shape->pass, pass_) != pass_) {
    shape->previous = std::exchange(shape->batches, 1);
    return std::nullopt;
  }
  ++shape->batches;
  if (guards_ && (discards_ != services_.logs.discards() || guards_->changed())) start_over();
  return captured(*shape, batch, ends_pass(*shape, left), body);
}

bool CapturedEvaluation::ends_pass(const Shape& shape, std::optional<int64_t> left) const {
  if (!is_power_of_ten(pass_)) return false;
  // The last batch of a loader may be of another shape.
  return shape.previous > 0 ? shape.batches == shape.previous : left && *left <= 1;
}

bool CapturedEvaluation::place(Shape& shape, const Batch& batch) {
  if (shape.recording) {
    auto input = shape.recording->inputs.begin();
    for (const auto& entry : batch) copy_values(std::get<Tensor>((input++)->second), tensor_in(entry));
    return true;
  }
  const auto recorded = std::ranges::count_if(shapes_, [](const auto& one) { return one->recording.has_value(); });
  if (recorded >= run_.options.capture_shapes) {
    if (!std::exchange(reported_shapes_, true))
      log::info(cat("capture: ", step_name_, " has batches of more than ", run_.options.capture_shapes,
                    " shapes (trainer.capture_shapes); those of other shapes run eagerly"));
    return false;
  }
  Batch inputs;
  for (const auto& entry : batch) inputs.add(entry.first, tensor_in(entry).clone());
  shape.recording.emplace();
  shape.recording->graph = graph_->another();
  shape.recording->inputs = std::move(inputs);
  return true;
}

std::optional<Outputs> CapturedEvaluation::captured(Shape& shape, const Batch& batch, bool is_last, const Body& body) {
  if (!place(shape, batch)) return std::nullopt;
  Recording& recording = *shape.recording;
  if (members_.due()) ++member_changes_;
  if (is_last || compares(recording)) {
    if (const auto problem = record(recording, body)) return leave(shape, *problem);
    recording.pass = pass_;
    recording.member_changes = member_changes_;
    if (!std::exchange(reported_, true)) log::info(cat("capture: ", step_name_, " is captured"));
  }
  recording.graph->replay();
  ++recording.launches;
  ++run_.captured_evaluation.batches;
  Outputs outputs = finish(recording);
  members_.remember();
  return outputs;
}

bool CapturedEvaluation::compares(const Recording& recording) const {
  return recording.launches == 0 || is_power_of_ten(recording.launches) || recording.pass != pass_ ||
         recording.member_changes != member_changes_;
}

std::optional<CapturedEvaluation::Problem> CapturedEvaluation::record(Recording& recording, const Body& body) {
  if (!guards_) {
    guards_.emplace(*run_.model);
    discards_ = services_.logs.discards();
  }
  Outputs outputs;
  std::vector<LogStore::Addition> additions;
  std::vector<MetricStore::Updates> updates;
  std::optional<Problem> problem;
  run_.captured_evaluation.effects = 0;
  services_.logs.before_recording(run_.device());
  try {
    recording.graph->record([&] {
      services_.logs.start_recording(run_.device(), stage_);
      services_.metrics.start_recording(stage_);
      outputs = body(recording.inputs);
      additions = services_.logs.take_recording();
      services_.logs.take_noted();
      updates = services_.metrics.take_recording();
    });
  } catch (const std::exception& error) {
    problem = Problem{first_line(error.what()), dynamic_cast<const StepNotRecorded*>(&error) != nullptr};
    services_.logs.take_recording();
    services_.logs.take_noted();
    services_.metrics.take_recording();
    run_.captured_evaluation.effects_done = problem->executed ? 0 : run_.captured_evaluation.effects;
    if (!problem->executed) return problem;
  }
  std::string unlike;
  if (run_.captured_evaluation.effects > 0)
    unlike = cat("the step prints, or logs media or artifacts, which a captured step would do only once. Do this in ",
                 hook_after_batch(stage_), ", or with the first batch only");
  else if (recording.launches > 0 && !LogStore::same_additions(recording.additions, additions))
    unlike = "log() got other names, numbers of the host or batch sizes than in the step before; log tensors";
  if (!problem && !unlike.empty()) {
    // It is this step's recording, so code of the host need not run twice.
    recording.graph->replay();
    problem = Problem{unlike, true};
  }
  recording.outputs = std::move(outputs);
  recording.additions = std::move(additions);
  recording.updates = std::move(updates);
  return problem;
}

std::optional<Outputs> CapturedEvaluation::leave(Shape& shape, const Problem& problem) {
  Recording& recording = *shape.recording;
  const bool is_of_pass = recording.pass == pass_;
  if (is_of_pass && recording.launches > 1)
    throw Error(cat("[trainer.capture] a captured ", step_name_, " must do what its recording does; the step after ",
                    recording.launches, " captured ones differs: ", problem.text,
                    ". The results of this pass may be wrong. Keep host code that changes between steps out of the "
                    "step, or set trainer.capture to false."));
  std::optional<Outputs> outputs;
  if (problem.executed) outputs = finish(recording);
  // Hooks between passes may have changed what steps read: the next batch is recorded again.
  if (!is_of_pass && recording.launches > 0)
    shape.recording.reset();
  else
    give_up(problem.text);
  return outputs;
}

Outputs CapturedEvaluation::finish(Recording& recording) {
  services_.logs.after_execution(recording.additions);
  services_.metrics.after_replay(recording.updates);
  // Callbacks and predictions may keep outputs, which the next replay overwrites.
  Outputs outputs;
  for (const auto& [name, value] : recording.outputs) outputs.add(name, value.defined() ? clone_values(value) : value);
  return outputs;
}

EvaluationSteps* captured_evaluation(RunState& run, Services& services, RunningStage stage) {
  // What a sanity check logs is discarded after it.
  if (!run.options.capture || !run.device().is_cpu() || run.position.sanity_checking) return nullptr;
  if (!services.evaluation) services.evaluation = std::make_unique<CapturedEvaluation>(run, services, stage);
  return services.evaluation.get();
}

}  // namespace fulgur::detail
