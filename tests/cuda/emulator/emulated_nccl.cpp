// holon/comm/nccl/vendor_nccl.h on the emulator: what the streams of several ranks do together is done over the CPU's
// communicators, in which other processes read copies of the device's memory. Collectives are done when they are put on
// a stream (or when a recording is launched), also where other work waits (EMULATED_LAZY): ranks that wait for each
// other on the host must not wait for what nobody does.
#include "holon/comm/nccl/vendor_nccl.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/comm/communicator.h"

namespace holon::comm::nccl {

namespace {

struct Member {
  std::vector<int> ranks;
  int calls = 0;
  std::atomic<bool> hangs{false}, aborted{false};
};

// EMULATED_NCCL_HANGS=n: from the n-th call of a communicator on nothing is done, and the stream waits until it is
// aborted. With EMULATED_NCCL_ERROR=text the library knows why.
int hangs_at() {
  const char* text = std::getenv("EMULATED_NCCL_HANGS");
  return text ? std::atoi(text) : 0;
}

Communicator& group(Handle h) { return communicator(static_cast<Member*>(h)->ranks); }

std::string do_together(Handle h, cudaStream_t stream, std::function<void()> work) {
  auto* member = static_cast<Member*>(h);
  if (++member->calls >= hangs_at() && hangs_at() > 0) {
    member->hangs = true;
    emulator::enqueue_late(stream, [member] {
      BlockingScope unlocked;
      while (!member->aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    return {};
  }
  emulator::enqueue_meeting(stream, std::move(work));
  return {};
}

}  // namespace

std::string missing() { return std::getenv("EMULATED_NO_NCCL") ? "EMULATED_NO_NCCL is set" : ""; }
std::string identity(int) { return {}; }
void make_id(std::byte* id) { std::memset(id, 0, DeviceCommunicatorMaker::kIdBytes); }
Handle start(std::span<const int> ranks, int, const std::byte*) {
  auto* member = new Member;
  member->ranks.assign(ranks.begin(), ranks.end());
  return member;
}

std::string all_reduce(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream) {
  return do_together(h, stream, [=] { group(h).all_reduce(in, out, static_cast<int64_t>(count), dtype); });
}

std::string reduce_scatter(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream) {
  return do_together(h, stream, [=] {
    std::vector<int64_t> counts(static_cast<size_t>(group(h).size()), static_cast<int64_t>(count));
    group(h).reduce_scatter(in, out, counts, dtype);
  });
}

std::string all_gather(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream) {
  return do_together(h, stream, [=] {
    std::vector<int64_t> counts(static_cast<size_t>(group(h).size()), static_cast<int64_t>(count));
    group(h).all_gather(in, out, counts, dtype);
  });
}

std::string broadcast(Handle h, void* data, size_t bytes, int root_index, cudaStream_t stream) {
  return do_together(h, stream, [=] { group(h).broadcast(data, static_cast<int64_t>(bytes), uint8, root_index); });
}

std::string exchange(Handle h, std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives,
                     cudaStream_t stream) {
  std::vector<DeviceMessage> out(sends.begin(), sends.end()), in(receives.begin(), receives.end());
  return do_together(h, stream, [=] {
    const auto n = static_cast<size_t>(group(h).size());
    auto counts_of = [&](const std::vector<DeviceMessage>& messages) {
      std::vector<int64_t> counts(n, 0);
      for (const DeviceMessage& m : messages) counts[static_cast<size_t>(m.peer)] = static_cast<int64_t>(m.bytes);
      return counts;
    };
    auto starts_of = [&](const std::vector<int64_t>& counts) {
      std::vector<int64_t> starts(n + 1, 0);
      std::partial_sum(counts.begin(), counts.end(), starts.begin() + 1);
      return starts;
    };
    const auto send_counts = counts_of(out), receive_counts = counts_of(in);
    const auto send_at = starts_of(send_counts), receive_at = starts_of(receive_counts);
    std::vector<std::byte> packed(static_cast<size_t>(send_at[n])), arrived(static_cast<size_t>(receive_at[n]));
    for (const DeviceMessage& m : out)
      std::memcpy(packed.data() + send_at[static_cast<size_t>(m.peer)], m.data, m.bytes);
    group(h).all_to_all(packed.data(), arrived.data(), send_counts, receive_counts, uint8);
    for (const DeviceMessage& m : in)
      std::memcpy(m.data, arrived.data() + receive_at[static_cast<size_t>(m.peer)], m.bytes);
  });
}

std::string trouble(Handle h) {
  const char* text = std::getenv("EMULATED_NCCL_ERROR");
  return text && static_cast<Member*>(h)->hangs ? text : "";
}
void abort(Handle h) { static_cast<Member*>(h)->aborted = true; }

}  // namespace holon::comm::nccl
