// Recording of streams, by the rules of the CUDA programming guide ("Stream Capture").
#include <algorithm>
#include <atomic>
#include <memory>
#include <queue>

#include "streams.h"

namespace emulator {

namespace {

// Recordings that this thread has begun in a mode that is not relaxed, and those of all threads in the global one.
thread_local std::vector<std::shared_ptr<Capture>> of_thread;
std::atomic<int> global_captures = 0;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

void add(std::vector<int>& to, const std::vector<int>& more) {
  for (int n : more)
    if (std::find(to.begin(), to.end(), n) == to.end()) to.push_back(n);
}

cudaError_t invalidate(Capture& c, cudaError_t why) {
  c.invalid = true;
  return result(why);
}

// Whether all that was recorded lies before what the stream that began it would do next.
bool joined(const Capture& c) {
  std::vector<bool> seen(c.nodes.size(), false);
  std::vector<int> left = c.origin->after;
  while (!left.empty()) {
    const auto n = static_cast<size_t>(left.back());
    left.pop_back();
    if (seen[n]) continue;
    seen[n] = true;
    left.insert(left.end(), c.nodes[n].after.begin(), c.nodes[n].after.end());
  }
  return std::all_of(seen.begin(), seen.end(), [](bool s) { return s; });
}

// Of the nodes that may come next the last one is taken.
std::vector<int> latest_first(const std::vector<Node>& nodes) {
  std::vector<int> missing(nodes.size()), order;
  std::vector<std::vector<int>> before(nodes.size());
  std::priority_queue<int> ready;
  for (size_t n = 0; n < nodes.size(); ++n) {
    missing[n] = static_cast<int>(nodes[n].after.size());
    for (int a : nodes[n].after) before[static_cast<size_t>(a)].push_back(static_cast<int>(n));
    if (missing[n] == 0) ready.push(static_cast<int>(n));
  }
  while (!ready.empty()) {
    order.push_back(ready.top());
    ready.pop();
    for (int n : before[static_cast<size_t>(order.back())])
      if (--missing[static_cast<size_t>(n)] == 0) ready.push(n);
  }
  return order;
}

}  // namespace

bool taken_down(Stream* s, Node node) {
  if (!s->capture) return false;
  Capture& c = *s->capture;
  if (c.invalid) {
    result(cudaErrorStreamCaptureInvalidated);
    return true;
  }
  node.after = s->after;
  s->after = {static_cast<int>(c.nodes.size())};
  c.nodes.push_back(std::move(node));
  return true;
}

cudaError_t unsafe_call() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  for (auto& c : of_thread) c->invalid = true;
  const bool any = !of_thread.empty() || (thread_mode == cudaStreamCaptureModeGlobal && global_captures > 0);
  return any ? result(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t wait_on_recorded(Stream* s, Event* e) {
  if (!e->capture) return invalidate(*s->capture, cudaErrorStreamCaptureIsolation);
  if (e->capture->ended) {
    if (s->capture) s->capture->invalid = true;
    return result(cudaErrorCapturedEvent);
  }
  if (e->capture->invalid) return result(cudaErrorStreamCaptureInvalidated);
  if (s->capture && s->capture != e->capture) return invalidate(*s->capture, cudaErrorStreamCaptureMerge);
  if (!s->capture) {
    s->capture = e->capture;
    s->after.clear();
    s->capture->streams.push_back(s);
  }
  add(s->after, e->after);
  return cudaSuccess;
}

void do_in_order(const Graph& graph) {
  for (int n : graph.order) graph.nodes[static_cast<size_t>(n)].work();
}

}  // namespace emulator

using namespace emulator;

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(thread_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  std::lock_guard lock(stream->mutex);
  if (stream->capture) return invalidate(*stream->capture, cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->streams = {stream};
  stream->after.clear();
  if (mode != cudaStreamCaptureModeRelaxed) of_thread.push_back(stream->capture);
  if (mode == cudaStreamCaptureModeGlobal) ++global_captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  std::lock_guard lock(stream->mutex);
  *graph = nullptr;
  const std::shared_ptr<Capture> c = stream->capture;
  if (!c) return result(cudaErrorIllegalState);
  if (c->origin != stream) return invalidate(*c, cudaErrorStreamCaptureUnmatched);
  if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != std::this_thread::get_id())
    return invalidate(*c, cudaErrorStreamCaptureWrongThread);
  const bool whole = joined(*c);
  for (Stream* s : c->streams) s->capture.reset();
  c->ended = true;
  std::erase(of_thread, c);
  if (c->mode == cudaStreamCaptureModeGlobal) --global_captures;
  if (c->invalid) return result(cudaErrorStreamCaptureInvalidated);
  if (!whole) return result(cudaErrorStreamCaptureUnjoined);
  auto made = std::make_unique<Graph>();
  made->nodes = std::move(c->nodes);
  made->order = latest_first(made->nodes);
  for (const Node& n : made->nodes) made->collective |= n.collective;
  *graph = made.release();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = !stream->capture     ? cudaStreamCaptureStatusNone
      : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
