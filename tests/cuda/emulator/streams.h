// Streams, events and recordings of the emulator, behind the types that cuda_runtime.h names.
//
// A recording is a list of nodes, each after those that it depends on. Its launch does a branch as late as its join
// allows, where eager work does it at once: what touches a branch's memory without waiting for it shows in one of the
// two.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

struct Node {
  std::function<void()> work;
  std::vector<int> after;
  bool collective = false;      // other ranks
  std::function<bool()> hangs;  // asked at each launch: nothing is done from here on, but
  std::function<void()> hung;   // this
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<int> order;
  bool collective = false;
};

struct Capture {
  Stream* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  std::vector<Node> nodes;
  std::vector<Stream*> streams;
  bool invalid = false, ended = false;
};

struct Event {
  int device = 0;
  Stream* stream = nullptr;
  uint64_t ticket = 0;
  std::shared_ptr<Capture> capture;  // that it was last recorded in
  std::vector<int> after;            // the nodes that it stands for
  bool timing = false;
  std::chrono::steady_clock::time_point at;  // when the work before it was done
};

struct Stream {
  int device = 0;
  std::shared_ptr<Capture> capture;
  std::vector<int> after;  // what its next node depends on
  std::mutex mutex;
  std::condition_variable changed;
  bool busy = false;    // some thread does the work that was first; the others wait until it is done
  bool beside = false;  // a thread of its own does its work
  std::deque<std::function<void()>> waiting;
  std::atomic<uint64_t> put = 0, done = 0;  // events are asked on other threads while work is done
};

// Takes the node down if the stream is being recorded; else returns false.
bool taken_down(Stream* s, Node node);
// What CUDA forbids a thread that records: waits, looks at events, calls that may wait inside. Such a call ends the
// recording as invalid. cudaSuccess: it may be done.
cudaError_t unsafe_call();
cudaError_t wait_on_recorded(Stream* s, Event* e);  // one of the two is being recorded
cudaError_t result(cudaError_t e);                  // notes it for cudaGetLastError()
// Where devices' memory is, as far as it has been allocated: (address, bytes) of each.
std::vector<std::pair<char*, size_t>> memory_ranges();
// The work, and what it moves is counted where that is asked for (EMULATED_TRAFFIC). Pre: the memory is open when it is
// done.
std::function<void()> counted(Label label, std::function<void()> work);
bool counts_traffic();
void count_wait();  // of the host, for a device
void do_in_order(const Graph& graph);

}  // namespace emulator
