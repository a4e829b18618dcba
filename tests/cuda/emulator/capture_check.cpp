// That the emulator refuses what CUDA refuses of a stream that is recorded. Called by tests/cuda/test_recordings.py.
#include <string>

#include "streams.h"

namespace {

struct Bench {
  std::string wrong;
  int done = 0;
  cudaStream_t a, b;
  cudaEvent_t fork, join;

  Bench() {
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
  }
  void expect(const char* what, cudaError_t found, cudaError_t wanted) {
    if (found != wanted)
      wrong += std::string(what) + ": " + cudaGetErrorName(found) + ", not " + cudaGetErrorName(wanted) + "; ";
  }
  void work(cudaStream_t s, int number) {
    emulator::enqueue(s, [this, number] { done = done * 10 + number; });
  }
  void branch() {
    cudaEventRecord(fork, a);
    cudaStreamWaitEvent(b, fork);
    work(b, 2);
    cudaEventRecord(join, b);
  }
  void begin() { expect("begin", cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal), cudaSuccess); }
  void ends(const char* what, cudaError_t wanted) {
    cudaGraph_t graph = nullptr;
    expect(what, cudaStreamEndCapture(a, &graph), wanted);
    if ((graph != nullptr) != (wanted == cudaSuccess)) wrong += std::string(what) + ": a graph where there is none; ";
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
  }
};

}  // namespace

// What is not as it should be; "" if all is.
extern "C" const char* emulated_capture_check() {
  static std::string wrong;
  Bench t;
  // A branch that is joined; nothing is done before the launch, and the branch as late as may be.
  t.begin();
  t.work(t.a, 1);
  t.branch();
  t.work(t.a, 3);
  cudaStreamWaitEvent(t.a, t.join);
  t.work(t.a, 4);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  t.expect("end", cudaStreamEndCapture(t.a, &graph), cudaSuccess);
  if (t.done != 0) t.wrong += "work was done while it was recorded; ";
  if (graph) {
    cudaGraphInstantiate(&exec, graph);
    cudaGraphDestroy(graph);
    cudaGraphLaunch(exec, t.a);
    t.expect("a wait after a launch", cudaStreamSynchronize(t.a), cudaSuccess);
    if (t.done != 1324) t.wrong += "the order of a launch is " + std::to_string(t.done) + "; ";
    cudaGraphExecDestroy(exec);
  }
  t.expect("an event of a recording", cudaEventQuery(t.join), cudaErrorCapturedEvent);
  t.expect("a wait for an event of a recording that is over", cudaStreamWaitEvent(t.a, t.join), cudaErrorCapturedEvent);

  t.begin();
  t.branch();
  t.ends("a branch that is not joined", cudaErrorStreamCaptureUnjoined);

  cudaEventRecord(t.fork, t.b);
  t.begin();
  t.expect("an event from outside", cudaStreamWaitEvent(t.a, t.fork), cudaErrorStreamCaptureIsolation);
  t.ends("after that", cudaErrorStreamCaptureInvalidated);

  t.begin();
  t.expect("a wait while recording", cudaStreamSynchronize(t.a), cudaErrorStreamCaptureUnsupported);
  t.ends("after a wait", cudaErrorStreamCaptureInvalidated);

  t.begin();
  t.expect("a wait for another stream", cudaStreamSynchronize(t.b), cudaErrorStreamCaptureUnsupported);
  t.ends("after that wait", cudaErrorStreamCaptureInvalidated);

  void* p = nullptr;
  t.begin();
  t.expect("cudaMalloc", cudaMalloc(&p, 64), cudaErrorStreamCaptureUnsupported);
  t.ends("after cudaMalloc", cudaErrorStreamCaptureInvalidated);

  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  t.begin();
  cudaThreadExchangeStreamCaptureMode(&mode);
  t.expect("cudaMalloc where it is allowed", cudaMalloc(&p, 64), cudaSuccess);
  cudaThreadExchangeStreamCaptureMode(&mode);
  t.ends("after allowed calls", cudaSuccess);
  cudaFree(p);

  t.begin();
  t.branch();
  t.expect("the end on another stream", cudaStreamEndCapture(t.b, &graph), cudaErrorStreamCaptureUnmatched);
  t.ends("after that end", cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
  wrong = t.wrong;
  return wrong.c_str();
}
