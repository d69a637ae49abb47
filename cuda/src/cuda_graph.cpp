#include "cuda_graph.h"

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>

namespace fulgur {
namespace {

struct Graph : at::cuda::CUDAGraph {
  // What capture_end leaves undone where the recording was broken.
  void forget_generators() {
    for (const auto& [state, increment] : captured_generator_states_) state->capturing_ = false;
  }
};

class CudaGraph final : public GraphCapture {
 public:
  explicit CudaGraph(c10::Device device) : device_(device), pool_(at::cuda::graph_pool_handle()) {}

  void record(const std::function<void()>& body) override {
    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device_.index());
    const c10::cuda::CUDAStreamGuard on_side(side);
    // Once: work that the recording builds upon is done, on whatever stream it was.
    c10::cuda::device_synchronize();
    graph_ = std::make_unique<Graph>();
    // Other threads (loader, prefetcher, writer) may use the device meanwhile.
    graph_->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      body();
    } catch (...) {
      abandon(side);
      throw;
    }
    try {
      graph_->capture_end();
    } catch (...) {
      abandon(side);
      throw;
    }
  }

  void replay() override { graph_->replay(); }

 private:
  void abandon(const c10::cuda::CUDAStream& side) {
    cudaStreamCaptureStatus status{};
    if (cudaStreamIsCapturing(side, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(side, &broken);
      if (broken) cudaGraphDestroy(broken);
    }
    cudaGetLastError();  // which the next check would report
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_.index(), pool_);
      c10::cuda::CUDACachingAllocator::releasePool(device_.index(), pool_);
    } catch (const std::exception&) {
      // It ended by itself.
    }
    graph_->forget_generators();
    graph_.reset();
    pool_ = at::cuda::graph_pool_handle();
  }

  c10::Device device_;
  at::cuda::MempoolId_t pool_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace

std::unique_ptr<GraphCapture> make_cuda_graph(c10::Device device) { return std::make_unique<CudaGraph>(device); }

}  // namespace fulgur
