#include <array>
#include <cstddef>
#include <mutex>
#include <vector>

#include "holon/base/index.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda {

namespace {

struct Left {
  cudaStream_t stream;
  cudaEvent_t computed, communicated;
};
struct LeftStreams {
  std::mutex mutex;
  std::vector<std::vector<Left>> of;  // by device
};
LeftStreams& left_streams() {
  static auto* left = new LeftStreams;
  return *left;
}

}  // namespace

CommunicationStream::CommunicationStream(int device_index) : device_index_(device_index) {
  const OutsideOfRecording outside;
  {
    LeftStreams& left = left_streams();
    std::lock_guard lock(left.mutex);
    if (left.of.size() <= to_size(device_index)) left.of.resize(to_size(device_index) + 1);
    auto& streams = at_index(left.of, device_index);
    for (size_t i = 0; i < streams.size(); ++i) {
      if (cudaStreamQuery(streams[i].stream) != cudaSuccess) {  // at work for a rank that has ended
        cudaGetLastError();
        continue;
      }
      stream_ = streams[i].stream;
      computed_ = streams[i].computed;
      communicated_ = streams[i].communicated;
      streams.erase(streams.begin() + static_cast<ptrdiff_t>(i));
      return;
    }
  }
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaEventCreateWithFlags(&computed_, cudaEventDisableTiming), "cudaEventCreate");
  check(cudaEventCreateWithFlags(&communicated_, cudaEventDisableTiming), "cudaEventCreate");
}

CommunicationStream::~CommunicationStream() {
  LeftStreams& left = left_streams();
  std::lock_guard lock(left.mutex);
  at_index(left.of, device_index_).push_back({stream_, computed_, communicated_});
}

void CommunicationStream::wait_for_compute() {
  check(cudaEventRecord(computed_, stream()), "cudaEventRecord");
  check(cudaStreamWaitEvent(stream_, computed_, 0), "cudaStreamWaitEvent");
}

void CommunicationStream::compute_waits() {
  check(cudaEventRecord(communicated_, stream_), "cudaEventRecord");
  check(cudaStreamWaitEvent(stream(), communicated_, 0), "cudaStreamWaitEvent");
}

void CommunicationStream::wait_for(CommunicationStream& other) {
  check(cudaEventRecord(other.communicated_, other.stream_), "cudaEventRecord");
  check(cudaStreamWaitEvent(stream_, other.communicated_, 0), "cudaStreamWaitEvent");
}

}  // namespace holon::kernels::cuda
