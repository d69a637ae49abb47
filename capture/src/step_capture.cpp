#include "fulgur/capture/step_capture.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/capture/captured_program.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

std::string refusals_text(const CapturedProgram& program) {
  std::vector<std::string> texts;
  for (const CaptureRefusal& refusal : program.refusals()) texts.push_back(refusal.text());
  return join_some(std::move(texts), 3, "; ");
}

class StepCapture final : public GraphCapture {
 public:
  bool compares_recordings() const override { return true; }
  void set_place(const std::function<std::string()>& place) override { place_ = place; }
  void set_state(const std::function<std::vector<std::pair<std::string, Tensor>>()>& state) override { state_ = state; }

  void record(const std::function<void()>& body) override {
    refused_.reset();
    auto program =
        CapturedProgram::record(body, {.inputs = {},
                                       .state = state_ ? state_() : std::vector<std::pair<std::string, Tensor>>(),
                                       .previous = program_.get(),
                                       .place = place_});
    if (const auto problem = problem_of(*program)) {
      refused_ = std::move(program);
      throw StepNotRecorded(*problem);
    }
    program->undo();
    program->forget_state();
    program_ = std::move(program);
  }

  void undo_step() override {
    if (refused_) refused_->undo();
    refused_.reset();
  }
  void replay() override { program_->replay(); }
  void forget() override { program_.reset(); }

  std::unique_ptr<GraphCapture> another() override {
    auto made = std::make_unique<StepCapture>();
    made->set_place(place_);
    made->set_state(state_);
    return made;
  }

 private:
  // The state remains that of after the step.
  std::optional<std::string> problem_of(CapturedProgram& program) const {
    if (!program.refusals().empty()) return refusals_text(program);
    if (program_)
      if (auto difference = program.difference(*program_)) return difference;
    program.prepare();
    return program.check_replay();
  }

  std::function<std::string()> place_;
  std::function<std::vector<std::pair<std::string, Tensor>>()> state_;
  std::unique_ptr<CapturedProgram> program_, refused_;
};

}  // namespace

std::unique_ptr<GraphCapture> make_step_capture() { return std::make_unique<StepCapture>(); }

}  // namespace fulgur
