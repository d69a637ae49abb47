#include "cuda_graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <utility>

namespace fulgur {
namespace {

struct Graph : at::cuda::CUDAGraph {
  // Undoes a change that capture_end does not undo if the recording is broken.
  void forget_generators() {
    for (const auto& [state, increment] : captured_generator_states_) state->capturing_ = false;
  }
  bool ended() const { return capture_ended_; }
};

// The second stream waits for the first one's work so far.
void order(const c10::cuda::CUDAStream& first, const c10::cuda::CUDAStream& second) {
  at::cuda::CUDAEvent event;
  event.record(first);
  event.block(second);
}

class OnStream {
 public:
  explicit OnStream(const c10::cuda::CUDAStream& stream)
      : before_(c10::cuda::getCurrentCUDAStream(stream.device_index())), stream_(stream), guard_(stream) {
    order(before_, stream_);
  }
  ~OnStream() {
    try {
      order(stream_, before_);
    } catch (const std::exception&) {
      // The device has failed; the next call on it reports that.
    }
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  c10::cuda::CUDAStream before_, stream_;
  c10::cuda::CUDAStreamGuard guard_;
};

/// The state shared by recordings that are never launched at the same time. Their intermediate results are in one
/// memory pool, which a further recording enlarges by what it keeps, not by its activations.
struct Shared {
  explicit Shared(c10::Device on)
      : device(on), stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, on.index())) {}
  /// A pool is released with its last graph.
  std::shared_ptr<const at::cuda::MempoolId_t> memory_pool() {
    auto there = pool.lock();
    if (!there) pool = there = std::make_shared<const at::cuda::MempoolId_t>(at::cuda::graph_pool_handle());
    return there;
  }
  c10::Device device;
  c10::cuda::CUDAStream stream;  // cuBLAS keeps a workspace for each stream that it was used on
  std::weak_ptr<const at::cuda::MempoolId_t> pool;
};

class CudaGraph final : public GraphCapture {
 public:
  explicit CudaGraph(std::shared_ptr<Shared> shared) : shared_(std::move(shared)), side_(shared_->stream) {}

  std::shared_ptr<void> enter_stream() override { return std::make_shared<OnStream>(side_); }

  void record(const std::function<void()>& body) override {
    forget();
    const OnStream on_side(side_);
    // Once: wait for the work that the recording builds upon, on all streams. Then release the memory that previous
    // steps have freed: a recording allocates from its own pool, and nothing can be released during it.
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    at::getHostAllocator(at::kCUDA)->empty_cache();
    pool_ = shared_->memory_pool();
    graph_ = std::make_unique<Graph>();
    try {
      // Other threads (loader, prefetcher, writer) may use the device meanwhile.
      graph_->capture_begin(*pool_, cudaStreamCaptureModeThreadLocal);
      body();
      graph_->capture_end();
    } catch (...) {
      abandon();
      throw;
    }
  }

  void replay() override { graph_->replay(); }
  void forget() override {
    graph_.reset();
    pool_.reset();
  }
  std::unique_ptr<GraphCapture> another() override { return std::make_unique<CudaGraph>(shared_); }

 private:
  // LibTorch undoes a recording only if its capture has ended well. Any of these steps may not have begun.
  void abandon() {
    cudaStreamCaptureStatus status{};
    if (cudaStreamIsCapturing(side_, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(side_, &broken);
      if (broken) cudaGraphDestroy(broken);
    }
    cudaGetLastError();  // clears the error, which the next check would report
    const auto attempt = [](const auto& undo) {
      try {
        undo();
      } catch (const std::exception&) {
      }
    };
    if (!graph_->ended()) {
      attempt([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(shared_->device.index(), *pool_); });
      attempt([&] { c10::cuda::CUDACachingAllocator::releasePool(shared_->device.index(), *pool_); });
      attempt([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(*pool_); });
      attempt([&] { at::getHostAllocator(at::kCUDA)->release_pool(*pool_); });
    }
    graph_->forget_generators();
    forget();
    // From here on steps run on the caller's stream, for which cuBLAS allocates another workspace: memory may be short.
    attempt([] { at::cuda::clearCublasWorkspaces(); });
    attempt([] { c10::cuda::CUDACachingAllocator::emptyCache(); });
  }

  std::shared_ptr<Shared> shared_;
  c10::cuda::CUDAStream side_;
  std::shared_ptr<const at::cuda::MempoolId_t> pool_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace

std::unique_ptr<GraphCapture> make_cuda_graph(c10::Device device) {
  return std::make_unique<CudaGraph>(std::make_shared<Shared>(device));
}

}  // namespace fulgur
