#include "sharding/sharded_capture.h"

#include <utility>
#include <vector>

namespace fulgur::detail {
namespace {

class ShardedCapture final : public GraphCapture {
 public:
  ShardedCapture(std::unique_ptr<GraphCapture> inner, std::weak_ptr<ParameterShards> shards)
      : inner_(std::move(inner)), shards_(std::move(shards)) {}
  std::shared_ptr<void> enter_stream() override { return inner_->enter_stream(); }
  void record(const std::function<void()>& body) override {
    const auto shards = shards_.lock();
    if (!shards) return inner_->record(body);
    shards->begin_recording();
    try {
      inner_->record(body);
    } catch (...) {
      shards->drop_recording();
      throw;
    }
    exchanges_ = shards->end_recording();
  }
  void replay() override {
    inner_->replay();
    if (const auto shards = shards_.lock()) shards->note_launch(exchanges_);
  }
  void forget() override { inner_->forget(); }
  std::unique_ptr<GraphCapture> another() override {
    return std::make_unique<ShardedCapture>(inner_->another(), shards_);
  }

 private:
  std::unique_ptr<GraphCapture> inner_;
  std::weak_ptr<ParameterShards> shards_;
  std::vector<size_t> exchanges_;  // of the recording
};

}  // namespace

std::unique_ptr<GraphCapture> make_sharded_capture(std::unique_ptr<GraphCapture> inner,
                                                   std::weak_ptr<ParameterShards> shards) {
  return std::make_unique<ShardedCapture>(std::move(inner), std::move(shards));
}

}  // namespace fulgur::detail
