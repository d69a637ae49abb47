#include "sharding/sharded_capture.h"

#include <utility>
#include <vector>

#include "distributed/forwarding_capture.h"

namespace fulgur::detail {
namespace {

class ShardedCapture final : public ForwardingCapture {
 public:
  ShardedCapture(std::unique_ptr<GraphCapture> inner, std::weak_ptr<ParameterShards> shards)
      : ForwardingCapture(std::move(inner)), shards_(std::move(shards)) {}
  void record(const std::function<void()>& body) override {
    const auto shards = shards_.lock();
    if (!shards) return ForwardingCapture::record(body);
    shards->begin_recording();
    try {
      ForwardingCapture::record(body);
    } catch (...) {
      shards->drop_recording();
      throw;
    }
    exchanges_ = shards->end_recording();
  }
  void replay() override {
    ForwardingCapture::replay();
    if (const auto shards = shards_.lock()) shards->note_launch(exchanges_);
  }
  std::unique_ptr<GraphCapture> another() override {
    return std::make_unique<ShardedCapture>(another_inner(), shards_);
  }

 private:
  std::weak_ptr<ParameterShards> shards_;
  std::vector<size_t> exchanges_;  // of the recording
};

}  // namespace

std::unique_ptr<GraphCapture> make_sharded_capture(std::unique_ptr<GraphCapture> inner,
                                                   std::weak_ptr<ParameterShards> shards) {
  return std::make_unique<ShardedCapture>(std::move(inner), std::move(shards));
}

}  // namespace fulgur::detail
