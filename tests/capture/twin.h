#pragma once

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/capture/captured_program.h"

namespace capture_test {

using fulgur::CapturedProgram;
using fulgur::CaptureSummary;
using fulgur::RecordOptions;
using fulgur::Tensor;

/// A training loop by hand.
struct Training {
  std::vector<Tensor> parameters, state;  // state: whatever else a step changes
  std::vector<Tensor> inputs;             // of the present batch
  std::vector<std::vector<Tensor>> batches;
  Tensor rate = at::full({}, 1e-2);
  Tensor loss;
  std::function<void()> step;

  void load(int i) {
    const auto& batch = batches[static_cast<size_t>(i) % batches.size()];
    for (size_t k = 0; k < inputs.size(); ++k) inputs[k].copy_(batch[k]);
  }
  Tensor parameter(at::IntArrayRef shape, double scale = 0.3) {
    parameters.push_back((at::randn(shape) * scale).requires_grad_());
    return parameters.back();
  }
  Tensor buffer(Tensor value) {
    state.push_back(value);
    return value;
  }
  /// Batches made by `make`, and inputs of their shapes.
  void batch_by(int count, const std::function<std::vector<Tensor>()>& make) {
    for (int i = 0; i < count; ++i) batches.push_back(make());
    for (const Tensor& tensor : batches.front()) inputs.push_back(tensor.clone());
  }
};

using MakeTraining = std::function<std::unique_ptr<Training>()>;

inline Tensor generator_state() { return at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state(); }

inline bool same_bits(const Tensor& one, const Tensor& other) {
  const Tensor mine = one.detach().contiguous(), theirs = other.detach().contiguous();
  return mine.sizes() == theirs.sizes() && mine.scalar_type() == theirs.scalar_type() &&
         (mine.nbytes() == 0 || std::memcmp(mine.const_data_ptr(), theirs.const_data_ptr(), mine.nbytes()) == 0);
}

/// Values of a loop after some steps.
struct Trace {
  std::vector<Tensor> losses, state;
  Tensor generator;
};

inline void end_trace(const Training& training, Trace& trace) {
  for (const auto* const tensors : {&training.parameters, &training.state})
    for (const Tensor& tensor : *tensors) trace.state.push_back(tensor.detach().clone());
  trace.generator = generator_state();
}

/// At step 2/3 of the loop the learning rate changes.
inline void begin_step(Training& training, int i, int steps) {
  if (i == 2 * steps / 3) training.rate.fill_(3e-3);
  training.load(i);
}

inline Trace eager_trace(const MakeTraining& make, int steps) {
  at::manual_seed(7);
  const auto training = make();
  at::manual_seed(11);
  Trace trace;
  for (int i = 0; i < steps; ++i) {
    begin_step(*training, i, steps);
    training->step();
    trace.losses.push_back(training->loss.detach().clone());
  }
  end_trace(*training, trace);
  return trace;
}

/// One eager step, two recorded ones, which must agree, then replays; once more a recorded step in between.
inline Trace captured_trace(const MakeTraining& make, int steps, const RecordOptions& options,
                            CaptureSummary* summary) {
  at::manual_seed(7);
  const auto training = make();
  at::manual_seed(11);
  Trace trace;
  std::unique_ptr<CapturedProgram> first, program;
  Tensor loss;  // what the program writes
  for (int i = 0; i < steps; ++i) {
    begin_step(*training, i, steps);
    if (i == 0) {
      training->step();
    } else if (i == 1) {
      first = CapturedProgram::record(training->step, options);
    } else if (i == 2) {
      training->loss = Tensor();
      program = CapturedProgram::record(training->step, options);
      for (const auto& refusal : program->refusals()) FAIL(refusal.text());
      if (const auto difference = program->difference(*first)) FAIL(*difference);
      first.reset();
      loss = training->loss;
      program->prepare();
      if (const auto difference = program->check_replay(/*undo=*/true)) FAIL(*difference);
      program->forget_state();
      program->replay();
    } else if (i == steps / 2) {
      const auto again = CapturedProgram::record(training->step, options);
      if (const auto difference = again->difference(*program)) FAIL(*difference);
      again->prepare();
      if (const auto difference = again->check_replay()) FAIL(*difference);
    } else {
      program->replay();
    }
    const bool is_replayed = i >= 2 && i != steps / 2;
    trace.losses.push_back((is_replayed ? loss : training->loss).detach().clone());
  }
  end_trace(*training, trace);
  if (summary) *summary = program->summary();
  return trace;
}

/// The captured loop has the same bits as the eager one, whatever a program is made of.
inline CaptureSummary expect_same_bits(const MakeTraining& make, int steps = 24) {
  const Trace eager = eager_trace(make, steps);
  CaptureSummary summary;
  for (const int kind : {0, 1, 2}) {
    RecordOptions options;
    options.open_composites = kind < 2;
    options.typed_calls = options.simplify = options.plan_memory = kind < 1;
    CAPTURE(kind);
    const Trace captured = captured_trace(make, steps, options, kind == 0 ? &summary : nullptr);
    for (size_t i = 0; i < eager.losses.size(); ++i) {
      CAPTURE(i);
      REQUIRE(same_bits(eager.losses[i], captured.losses[i]));
    }
    REQUIRE(eager.state.size() == captured.state.size());
    for (size_t i = 0; i < eager.state.size(); ++i) {
      CAPTURE(i);
      REQUIRE(same_bits(eager.state[i], captured.state[i]));
    }
    REQUIRE(same_bits(eager.generator, captured.generator));
  }
  return summary;
}

/// Gradients of the loss, which are then undefined again.
inline std::vector<Tensor> take_gradients(Training& training, const Tensor& loss) {
  loss.backward();
  std::vector<Tensor> gradients;
  for (Tensor& parameter : training.parameters) {
    gradients.push_back(parameter.grad());
    parameter.mutable_grad().reset();
  }
  training.loss = loss.detach();
  return gradients;
}

/// AdamW with a learning rate that is read from a tensor.
class AdamW {
 public:
  explicit AdamW(Training& training) : training_(training) {
    for (const Tensor& parameter : training.parameters) {
      first_.push_back(training.buffer(at::zeros_like(parameter.detach())));
      second_.push_back(training.buffer(at::zeros_like(parameter.detach())));
      steps_.push_back(training.buffer(at::zeros({}, at::kFloat)));
    }
  }
  void step(const std::vector<Tensor>& gradients) {
    const at::NoGradGuard no_grad;
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(training_.parameters, gradients, first_, second_, {}, steps_, training_.rate, 0.9, 0.999, 0.01,
                      1e-8, /*amsgrad=*/false, /*maximize=*/false);
  }

 private:
  Training& training_;
  std::vector<Tensor> first_, second_, steps_;
};

inline void sgd_step(Training& training, const std::vector<Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined()) training.parameters[i].sub_(gradients[i] * training.rate);
}

inline void clip(std::vector<Tensor>& gradients, double most) {
  const at::NoGradGuard no_grad;
  const Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)), 2);
  at::_foreach_mul_(gradients, at::clamp_max(most / (norm + 1e-6), 1.0));
}

}  // namespace capture_test
