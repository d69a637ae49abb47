// Capture and graphs. A launch runs the nodes in an order that their dependencies allow: in the order of the capture
// with the immediate schedule, otherwise in another one.
#include <algorithm>
#include <cstdio>

#include "engine.h"

using namespace simulated_cuda;

namespace {

Graph* find_graph(cudaGraph_t handle) {
  auto* graph = reinterpret_cast<Graph*>(handle);
  return state().live_graphs.count(graph) ? graph : nullptr;
}

// With the late schedule, the ready node that was captured last runs first: if a stream fails to wait for another
// stream's work, that work runs too late.
std::vector<size_t> order_of(Graph& graph) {
  const size_t count = graph.nodes.size();
  std::vector<size_t> order;
  order.reserve(count);
  const uint64_t schedule = state().schedule;
  if (schedule == 0) {
    for (size_t i = 0; i < count; ++i) order.push_back(i);
    return order;
  }
  // The order is the same in all processes with the same graph: ranks must make their exchanges in the same order.
  uint64_t random = schedule * 0x9E3779B97F4A7C15ULL + graph.launches++;
  std::vector<std::vector<size_t>> next(count);
  std::vector<size_t> waits_for(count), ready;
  for (size_t i = 0; i < count; ++i) {
    waits_for[i] = graph.nodes[i].after.size();
    for (const size_t before : graph.nodes[i].after) next[before].push_back(i);
    if (waits_for[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    const auto chosen = schedule == 1 ? std::max_element(ready.begin(), ready.end())
                                      : ready.begin() + static_cast<std::ptrdiff_t>(random_below(random, ready.size()));
    const size_t node = *chosen;
    ready.erase(chosen);
    order.push_back(node);
    for (const size_t after : next[node])
      if (--waits_for[after] == 0) ready.push_back(after);
  }
  return order;
}

}  // namespace

SIMULATED_API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  ENTER();
  FIND_STREAM(stream, handle);
  if (stream->legacy()) return fail(cudaErrorStreamCaptureUnsupported, __func__, "the legacy stream cannot capture");
  if (stream->capture) return fail(cudaErrorIllegalState, __func__, "the stream is already capturing");
  auto* const capture = new Capture;
  capture->id = state().next_capture++;
  capture->graph = std::make_unique<Graph>();
  capture->mode = mode;
  capture->thread = pthread_self();
  capture->origin = stream;
  state().captures.insert(capture);
  join_capture(*capture, *stream);
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  ENTER();
  if (graph) *graph = nullptr;
  FIND_STREAM(stream, handle);
  Capture* const capture = stream->capture;
  if (!capture) return fail(cudaErrorIllegalState, __func__, "the stream is not capturing");
  if (capture->origin != stream) {
    invalidate(*capture, __func__);
    return fail(cudaErrorStreamCaptureUnmatched, __func__);
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(capture->thread, pthread_self()))
    return fail(cudaErrorStreamCaptureWrongThread, __func__);
  cudaError_t error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  for (Stream* other : capture->streams)
    if (!error && other != stream && stream->after[other] < other->last_node) error = cudaErrorStreamCaptureUnjoined;
  for (Stream* other : capture->streams) other->capture = nullptr;
  state().captures.erase(capture);
  if (!error && graph) {
    Graph* const made = capture->graph.release();
    state().live_graphs.insert(made);
    *graph = reinterpret_cast<cudaGraph_t>(made);
  }
  // Recorded work may hold objects whose destructors call the runtime.
  lock.unlock();
  delete capture;
  lock.lock();
  return error ? fail(error, __func__) : cudaSuccess;
}

SIMULATED_API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  ENTER();
  FIND_STREAM(stream, handle);
  *status = !stream->capture           ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                                   unsigned long long* id, cudaGraph_t* graph,
                                                   const cudaGraphNode_t** dependencies,
                                                   const cudaGraphEdgeData** edges, size_t* count) {
  if (const cudaError_t error = cudaStreamIsCapturing(handle, status)) return error;
  ENTER();
  FIND_STREAM(stream, handle);
  if (!stream->capture) return cudaSuccess;
  static cudaGraphNode_t none[1];
  if (id) *id = stream->capture->id;
  if (graph) *graph = reinterpret_cast<cudaGraph_t>(stream->capture->graph.get());
  if (dependencies) *dependencies = none;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  ENTER();
  Graph* const graph = find_graph(handle);
  if (!graph) return fail(cudaErrorInvalidValue, __func__);
  if (nodes)
    for (size_t i = 0; i < std::min(*count, graph->nodes.size()); ++i)
      nodes[i] = reinterpret_cast<cudaGraphNode_t>(&graph->nodes[i]);
  *count = graph->nodes.size();
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                                       size_t* count) {
  return *count = 0, cudaSuccess;
}

SIMULATED_API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t handle,
                                                        unsigned long long) {
  ENTER();
  Graph* const graph = find_graph(handle);
  if (!graph) return fail(cudaErrorInvalidValue, __func__, "there is no such graph");
  auto* const made = new Graph(*graph);
  state().live_executables.insert(made);
  // A launch may run on a thread until the process exits. Its kernels use what LibTorch has made by now.
  end_threads_at_exit();
  *executable = reinterpret_cast<cudaGraphExec_t>(made);
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                               unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

SIMULATED_API cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

SIMULATED_API cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  ENTER();
  FIND_STREAM(stream, stream_handle);
  auto* const executable = reinterpret_cast<Graph*>(handle);
  if (!state().live_executables.count(executable))
    return fail(cudaErrorInvalidResourceHandle, __func__, "the graph was destroyed or never instantiated");
  if (stream->capture) {
    invalidate(*stream->capture, __func__);
    return fail(cudaErrorStreamCaptureUnsupported, __func__, "graphs in graphs are not simulated");
  }
  ++state().counts.graph_launches;
  for (const Work& node : executable->nodes)
    if (node.kind != Work::Kind::host_function) ++state().counts.graph_nodes;
  const bool may_wait =
      std::any_of(executable->nodes.begin(), executable->nodes.end(), [](const Work& node) { return node.may_wait; });
  // The nodes are copied, since the graph may be destroyed while it runs.
  auto nodes = std::make_shared<std::vector<Work>>(executable->nodes);
  Work work{.kind = Work::Kind::graph,
            .name = "graph",
            .run =
                [nodes, order = order_of(*executable)] {
                  const auto is_exiting = [] {
                    const Lock now(state().mutex);
                    return state().exiting;
                  };
                  for (const size_t i : order)
                    if ((*nodes)[i].run && !is_exiting()) (*nodes)[i].run();
                },
            .may_wait = may_wait};
  // A launch of a graph waits for the graph's previous launch, on any stream.
  if (const std::shared_ptr<Recording> before = executable->last; before && before->stream != stream)
    submit(lock, *stream, Work{.kind = Work::Kind::wait, .name = "launch before", .recording = before}, __func__);
  executable->last = std::make_shared<Recording>();
  executable->last->stream = stream;
  Work end{.kind = Work::Kind::record, .name = "end of launch", .recording = executable->last};
  if (const cudaError_t error = submit(lock, *stream, std::move(work), __func__)) return error;
  return submit(lock, *stream, std::move(end), __func__);
}

SIMULATED_API cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  ENTER();
  Graph* const graph = find_graph(handle);
  if (!graph) return fail(cudaErrorInvalidValue, __func__, "there is no such graph, or it was already destroyed");
  state().live_graphs.erase(graph);
  lock.unlock();
  delete graph;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  ENTER();
  auto* const executable = reinterpret_cast<Graph*>(handle);
  if (!state().live_executables.erase(executable))
    return fail(cudaErrorInvalidValue, __func__, "there is no such graph, or it was already destroyed");
  lock.unlock();
  delete executable;
  return cudaSuccess;
}

SIMULATED_API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t handle, const char* path, unsigned) {
  ENTER();
  Graph* const graph = find_graph(handle);
  if (!graph) return fail(cudaErrorInvalidValue, __func__);
  std::FILE* const file = std::fopen(path, "w");
  if (!file) return fail(cudaErrorInvalidValue, __func__, path);
  std::fputs("digraph {\n", file);
  for (size_t i = 0; i < graph->nodes.size(); ++i)
    std::fprintf(file, "n%zu [label=\"%s\"];\n", i, graph->nodes[i].name.c_str());
  std::fputs("}\n", file);
  std::fclose(file);
  return cudaSuccess;
}
