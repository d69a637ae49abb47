#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/device/graph_capture.h"

namespace fulgur::detail {

/// A recorder that does what another one does; derived classes add to it.
class ForwardingCapture : public GraphCapture {
 public:
  explicit ForwardingCapture(std::unique_ptr<GraphCapture> inner) : inner_(std::move(inner)) {}
  std::shared_ptr<void> enter_stream() override { return inner_->enter_stream(); }
  void record(const std::function<void()>& body) override { inner_->record(body); }
  void undo_step() override { inner_->undo_step(); }
  void replay() override { inner_->replay(); }
  void forget() override { inner_->forget(); }
  bool compares_recordings() const override { return inner_->compares_recordings(); }
  void set_place(const std::function<std::string()>& place) override { inner_->set_place(place); }
  void set_state(const std::function<std::vector<std::pair<std::string, Tensor>>()>& state) override {
    inner_->set_state(state);
  }

 protected:
  std::unique_ptr<GraphCapture> another_inner() { return inner_->another(); }

 private:
  std::unique_ptr<GraphCapture> inner_;
};

}  // namespace fulgur::detail
