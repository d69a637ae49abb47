#include "fulgur/capture/step_capture.h"

#include <string>
#include <utility>

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

  void record(const std::function<void()>& body) override {
    auto program = CapturedProgram::record(body, {.inputs = {}, .place = place_});
    // From here on the state is that of before the step, as if nothing had been executed.
    program->undo();
    if (!program->refusals().empty()) throw Error(refusals_text(*program));
    if (program_)
      if (const auto difference = program->difference(*program_)) throw Error(*difference);
    program->prepare();
    if (const auto difference = program->check_replay(/*undo=*/true)) throw Error(*difference);
    program->forget_state();
    program_ = std::move(program);
  }

  void replay() override { program_->replay(); }
  void forget() override { program_.reset(); }

  std::unique_ptr<GraphCapture> another() override {
    auto made = std::make_unique<StepCapture>();
    made->set_place(place_);
    return made;
  }

 private:
  std::function<std::string()> place_;
  std::unique_ptr<CapturedProgram> program_;
};

}  // namespace

std::unique_ptr<GraphCapture> make_step_capture() { return std::make_unique<StepCapture>(); }

}  // namespace fulgur
