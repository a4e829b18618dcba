// holon/comm/device/nccl/vendor_nccl.h on the emulator: what the streams of several ranks do together is done over the
// CPU's communicators, in which other processes read copies of the device's memory. Collectives are done when they are
// put on a stream (or when a recording is launched), also where other work waits (EMULATED_LAZY): ranks that wait for
// each other on the host must not wait for what nobody does. Only the results come when somebody waits for the stream.
#include "holon/comm/device/nccl/vendor_nccl.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/comm/core/communicator.h"

namespace holon::comm::nccl {

namespace {

struct Member {
  std::vector<int> ranks;
  int index = 0;
  std::array<unsigned char, DeviceCommunicatorFactory::kIdBytes> id{};
  int calls = 0;
  int socket = -1;  // to the other one of two, for messages
  std::atomic<bool> hangs{false}, aborted{false};
};

// EMULATED_NO_NCCL: there is no library. EMULATED_ONE_DEVICE: all ranks of a host are on one device.
// EMULATED_NCCL_HANGS=n: from the n-th call of a communicator on nothing is done, and the stream waits until it is
// aborted. With EMULATED_NCCL_ERROR=text the library knows why.
int hangs_at() {
  const char* text = std::getenv("EMULATED_NCCL_HANGS");
  return text ? std::atoi(text) : 0;
}

Communicator& group(Handle h) { return communicator(static_cast<Member*>(h)->ranks); }

// Memory of the device that receives.
struct Result {
  void* to;
  size_t bytes;
};

// work writes the results one after the other into host memory; they reach the device in the stream's order.
std::string do_together(Handle h, cudaStream_t stream, std::vector<Result> results,
                        std::function<void(std::byte*)> work) {
  auto* member = static_cast<Member*>(h);
  auto hangs = [member] {
    if (++member->calls < hangs_at() || hangs_at() == 0) return false;
    member->hangs = true;
    return true;
  };
  auto hung = [member] {
    BlockingScope unlocked;
    while (!member->aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  auto host = std::make_shared<std::vector<std::byte>>();
  size_t bytes = 0;
  for (const Result& r : results) bytes += r.bytes;
  auto exchange = [=] {
    host->resize(bytes);
    work(host->data());
  };
  emulator::enqueue_collective(stream, exchange, hangs, hung);
  emulator::enqueue_rest(stream, [=] {
    if (host->size() < bytes) return;  // it hung
    const std::byte* from = host->data();
    for (const Result& r : results) {
      std::memcpy(r.to, from, r.bytes);
      from += r.bytes;
    }
  });
  return {};
}

// Messages between two, which may be threads or processes, go over a socket that is named by the id. Both sides wait
// for each other on a thread of the stream's, and until they are aborted if the other one is gone.
constexpr int kTickMs = 2;

bool is_ready(const Member& m, int socket, short what) {
  for (pollfd p{socket, what, 0}; !m.aborted; p.revents = 0)
    if (poll(&p, 1, kTickMs) > 0) return true;
  return false;
}

void hang(Member& m) {
  m.hangs = true;
  while (!m.aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// EMULATED_LINK_MS=n: pairing up takes so long.
bool pair_up(Member& m) {
  if (m.socket >= 0) return true;
  if (const char* ms = std::getenv("EMULATED_LINK_MS"))
    std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(ms)));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  for (int i = 0; i < 32; ++i) std::snprintf(name.sun_path + 1 + 2 * i, 3, "%02x", m.id[static_cast<size_t>(i)]);
  auto* address = reinterpret_cast<const sockaddr*>(&name);
  const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (m.index == 0) {
    if (bind(s, address, sizeof name) != 0 || listen(s, 1) != 0 || !is_ready(m, s, POLLIN)) return false;
    m.socket = accept(s, nullptr, nullptr);
    close(s);
  } else {
    while (connect(s, address, sizeof name) != 0) {
      if (m.aborted) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(kTickMs));
    }
    m.socket = s;
  }
  return m.socket >= 0;
}

template <bool kSend>
bool move(Member& m, void* data, size_t bytes) {
  for (auto* at = static_cast<char*>(data); bytes > 0;) {
    if (!is_ready(m, m.socket, kSend ? POLLOUT : POLLIN)) return false;
    const ssize_t n = kSend ? ::send(m.socket, at, bytes, MSG_NOSIGNAL) : recv(m.socket, at, bytes, 0);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

void send_now(Member& m, const void* data, uint64_t bytes) {
  std::vector<char> host(bytes);
  emulator::with_memory([&] { std::memcpy(host.data(), data, bytes); });
  char taken = 0;
  if (!pair_up(m) || !move<true>(m, &bytes, sizeof bytes) || !move<true>(m, host.data(), bytes) ||
      !move<false>(m, &taken, 1))
    hang(m);
}

void receive_now(Member& m, void* data, uint64_t bytes) {
  uint64_t sent = 0;
  char taken = 1;
  if (!pair_up(m) || !move<false>(m, &sent, sizeof sent)) return hang(m);
  if (sent != bytes) {
    std::fprintf(stderr, "emulator: a message of %zu bytes was sent, and %zu are received\n", static_cast<size_t>(sent),
                 static_cast<size_t>(bytes));
    std::abort();
  }
  std::vector<char> host(bytes);
  if (!move<false>(m, host.data(), bytes)) return hang(m);
  emulator::with_memory([&] { std::memcpy(data, host.data(), bytes); });
  if (!move<true>(m, &taken, 1)) hang(m);
}

}  // namespace

std::string missing() { return std::getenv("EMULATED_NO_NCCL") ? "EMULATED_NO_NCCL is set" : ""; }
std::string identity(int) { return std::getenv("EMULATED_ONE_DEVICE") ? "0" : ""; }
void make_id(std::byte* id) {
  if (getrandom(id, DeviceCommunicatorFactory::kIdBytes, 0) < 0) std::abort();
}
// EMULATED_NCCL_START=waits: as where a member never comes; fails: that is the first one, whose device has no memory
// left.
Handle start(std::span<const int> ranks, int index, const std::byte* id) {
  const char* text = std::getenv("EMULATED_NCCL_START");
  if (text && std::strcmp(text, "fails") == 0 && index == 0) fail_runtime("ncclCommInitRank reports: out of memory");
  while (text) std::this_thread::sleep_for(std::chrono::seconds(1));
  auto* member = new Member;
  member->index = index;
  std::memcpy(member->id.data(), id, member->id.size());
  member->ranks.assign(ranks.begin(), ranks.end());
  return member;
}

std::string all_reduce(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream) {
  return do_together(h, stream, {{out, count * size_bytes(dtype)}},
                     [=](std::byte* result) { group(h).all_reduce(in, result, static_cast<int64_t>(count), dtype); });
}

std::string reduce_scatter(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream) {
  return do_together(h, stream, {{out, count * size_bytes(dtype)}}, [=](std::byte* result) {
    std::vector<int64_t> counts(static_cast<size_t>(group(h).size()), static_cast<int64_t>(count));
    group(h).reduce_scatter(in, result, counts, dtype);
  });
}

std::string all_gather(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream) {
  const auto members = static_cast<Member*>(h)->ranks.size();
  return do_together(h, stream, {{out, members * count * size_bytes(dtype)}}, [=](std::byte* result) {
    std::vector<int64_t> counts(members, static_cast<int64_t>(count));
    group(h).all_gather(in, result, counts, dtype);
  });
}

std::string broadcast(Handle h, void* data, size_t bytes, int root_index, cudaStream_t stream) {
  return do_together(h, stream, {{data, bytes}}, [=](std::byte* result) {
    std::memcpy(result, data, bytes);
    group(h).broadcast(result, static_cast<int64_t>(bytes), uint8, root_index);
  });
}

std::string exchange(Handle h, std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives,
                     cudaStream_t stream) {
  std::vector<DeviceMessage> in(sends.begin(), sends.end()), out(receives.begin(), receives.end());
  auto by_peer = [](const DeviceMessage& a, const DeviceMessage& b) { return a.peer < b.peer; };
  std::sort(in.begin(), in.end(), by_peer);
  std::sort(out.begin(), out.end(), by_peer);
  std::vector<Result> results;
  for (const DeviceMessage& m : out) results.push_back({m.data, m.bytes});
  return do_together(h, stream, std::move(results), [=](std::byte* result) {
    std::vector<int64_t> send_counts(static_cast<size_t>(group(h).size())), receive_counts = send_counts;
    std::vector<std::byte> packed;
    for (const DeviceMessage& m : in) {
      send_counts[static_cast<size_t>(m.peer)] = static_cast<int64_t>(m.bytes);
      packed.insert(packed.end(), static_cast<std::byte*>(m.data), static_cast<std::byte*>(m.data) + m.bytes);
    }
    for (const DeviceMessage& m : out) receive_counts[static_cast<size_t>(m.peer)] = static_cast<int64_t>(m.bytes);
    group(h).all_to_all(packed.data(), result, send_counts, receive_counts, uint8);
  });
}

// A member that is one of two: with 1 the peer of 0, and the other way round.
std::string send(Handle h, const void* data, size_t bytes, int, cudaStream_t stream) {
  emulator::enqueue_beside(stream, [m = static_cast<Member*>(h), data, bytes] { send_now(*m, data, bytes); });
  return {};
}
std::string receive(Handle h, void* data, size_t bytes, int, cudaStream_t stream) {
  emulator::enqueue_beside(stream, [m = static_cast<Member*>(h), data, bytes] { receive_now(*m, data, bytes); });
  return {};
}

std::string trouble(Handle h) {
  const char* text = std::getenv("EMULATED_NCCL_ERROR");
  return text && static_cast<Member*>(h)->hangs ? text : "";
}
void abort(Handle h) { static_cast<Member*>(h)->aborted = true; }

}  // namespace holon::comm::nccl
