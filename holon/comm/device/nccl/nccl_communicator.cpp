// DeviceCommunicator and DeviceWire on NCCL. A thread of the process watches what has been put on the devices: where it
// does not come to an end it is aborted, so that whoever waits for the device goes on, to an error.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "holon/array/device_backend.h"
#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/comm/core/waiting.h"
#include "holon/comm/device/nccl/vendor_nccl.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::comm {

namespace {

namespace cuda = kernels::cuda;

constexpr auto kTick = std::chrono::milliseconds(50);
// A rank that has ended in order may have done its part of what is still under way here.
constexpr int64_t kGraceNs = 3'000'000'000;

class NcclCommunicator;

// The communicators of the process. Never freed, as its thread outlives main().
class Watch {
 public:
  static Watch& get() {
    static auto* w = new Watch;
    return *w;
  }
  void add(NcclCommunicator* c) {
    std::lock_guard lock(mutex_);
    watched_.push_back(c);
    if (!running_) std::thread([this] { run(); }).detach();
    running_ = true;
  }
  void remove(NcclCommunicator* c) {
    std::lock_guard lock(mutex_);
    std::erase(watched_, c);
  }

 private:
  void run();
  std::mutex mutex_;
  std::vector<NcclCommunicator*> watched_;
  bool running_ = false;
};

// A wire is a communicator of the sender and the receiver, with its own stream.
class NcclCommunicator final : public DeviceCommunicator, public DeviceWire {
 public:
  NcclCommunicator(std::span<const int> ranks, int index, const std::byte* id, int device_index, bool wire = false)
      : DeviceCommunicator({ranks.begin(), ranks.end()}, index),
        device_index_(device_index),
        world_(shared_world()),
        wire_(wire) {
    BlockingScope unlocked;
    if (wire) {  // on a thread that does nothing else, and is left alone if nobody comes
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      cudaThreadExchangeStreamCaptureMode(&mode);
      cuda::check(cudaSetDevice(device_index), "cudaSetDevice");
      handle_ = nccl::start(ranks, index, id);
      connect();
    } else {
      cuda::use_device(device_index);
      handle_ = connect(id);
    }
    Watch::get().add(this);
  }
  // The library's own part is left to the end of the process: the driver may be gone by now, and peers may still be at
  // work.
  ~NcclCommunicator() override {
    for (int64_t end = now_ns() + kGraceNs; now_ns() < end && !failed_.load() && under_way();)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Watch::get().remove(this);
    // What nobody takes would go on for ever.
    if (wire_ && !failed_.load() && under_way()) nccl::abort(handle_);
  }

  void check() override {
    if (!failed_.load()) [[likely]]
      return;
    std::lock_guard lock(mutex_);
    fail_runtime("{}", why_);
  }

  void join() override {
    if (!unjoined_) return;
    unjoined_ = false;
    cuda::use_device(device_index_);
    stream_->compute_waits();
    check();
  }

  uint64_t send(const CallInfo& info, const void* data, size_t bytes) override {
    return pass(info, [&](cudaStream_t s) { return nccl::send(handle_, data, bytes, 1, s); });
  }
  uint64_t receive(const CallInfo& info, void* data, size_t bytes) override {
    return pass(info, [&](cudaStream_t s) { return nccl::receive(handle_, data, bytes, 0, s); });
  }
  bool done(uint64_t number) override {
    under_way();
    std::lock_guard lock(mutex_);
    return number <= passed_ - pending_.size();
  }
  void join(uint64_t number) override {
    check();
    cuda::use_device(device_index_);
    std::lock_guard lock(mutex_);
    const uint64_t before = passed_ - pending_.size();  // so many are done
    if (number <= before) return;
    Pending& p = pending_[number - before - 1];
    if (!p.awaited) cuda::check(cudaEventRecord(p.began, cuda::stream()), "cudaEventRecord");
    p.awaited = true;
    cuda::check(cudaStreamWaitEvent(cuda::stream(), p.done, 0), "cudaStreamWaitEvent");
  }
  void uses(const Array& a) override { cuda::used_on_stream(a, stream_->get()); }

  void abort(const std::string& reason) override {
    {
      std::lock_guard lock(mutex_);
      if (failed_.load()) return;
      why_ = reason;
      failed_.store(true);
      pending_.clear();
    }
    note_device_failure();
    world_->abort(reason);
    {
      // "It is not allowed to issue NCCL operations to a single communicator in parallel with multiple threads." A call
      // that waits for a peer which is gone comes back by the abort only, though.
      std::unique_lock alone(calling_, std::chrono::nanoseconds(kGraceNs));
    }
    // The library gives the devices a sign at once, and then waits until the recordings of its calls are gone: the rank
    // lets them go when it has heard of this.
    std::thread([handle = handle_, device = device_index_] {
      if (cudaSetDevice(device) == cudaSuccess) nccl::abort(handle);
    }).detach();
  }

  void before_launch() override {
    cuda::use_device(device_index_);
    launching_ = event();
    cuda::check(cudaEventRecord(launching_, cuda::stream()), "cudaEventRecord");
  }
  void after_launch(const CallInfo& info) override {
    cuda::use_device(device_index_);
    Pending p{launching_, event(), info.op, info.dtype, info.shape};
    cuda::check(cudaEventRecord(p.done, cuda::stream()), "cudaEventRecord");
    std::lock_guard lock(mutex_);
    pending_.push_back(std::move(p));
  }

  // By the watching thread, which has made the device current.
  int device_index() const { return device_index_; }
  void look() {
    const std::string why = trouble();
    if (!why.empty()) abort(why);
  }

 private:
  // An op that has been put on the stream.
  struct Pending {
    cudaEvent_t began, done;
    std::string op;
    DType dtype;
    Dims shape;
    bool awaited = true;   // by what the rank does next; of a wire: once it is joined, and began is there
    int64_t began_ns = 0;  // when it was first seen to be at work; 0: it waits for what is before it
  };

  void do_all_reduce(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype) override {
    put(info, [&](cudaStream_t s) { return nccl::all_reduce(handle_, in, out, to_size(count), dtype, s); });
  }
  void do_reduce_scatter(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype) override {
    put(info, [&](cudaStream_t s) { return nccl::reduce_scatter(handle_, in, out, to_size(count), dtype, s); });
  }
  void do_all_gather(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype) override {
    put(info, [&](cudaStream_t s) { return nccl::all_gather(handle_, in, out, to_size(count), dtype, s); });
  }
  void do_broadcast(const CallInfo& info, void* data, size_t bytes, int root_index) override {
    put(info, [&](cudaStream_t s) { return nccl::broadcast(handle_, data, bytes, root_index, s); });
  }
  void do_exchange(const CallInfo& info, std::span<const DeviceMessage> sends,
                   std::span<const DeviceMessage> receives) override {
    put(info, [&](cudaStream_t s) { return nccl::exchange(handle_, sends, receives, s); });
  }

  // On the communication stream, between events of the compute stream, which make it a branch of what is recorded
  // there.
  template <class F>
  void put(const CallInfo& info, F&& call) {
    // The first call connects with the peers, which may be threads that need the interpreter.
    BlockingScope unlocked(Context::current().ranks_are_threads());
    cuda::use_device(device_index_);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda::check(cudaStreamIsCapturing(cuda::stream(), &status), "cudaStreamIsCapturing");
    if (!stream_) stream_.emplace(device_index_);
    stream_->wait_for_compute();
    if (overlaps())
      if (auto* before = static_cast<NcclCommunicator*>(follows_in_overlap()); before && before != this)
        stream_->wait_for(*before->stream_);
    const cudaStream_t s = stream_->get();
    unjoined_ = true;
    if (status != cudaStreamCaptureStatusNone) {
      // Nothing is under way, nor needs to be ended.
      const std::string error = to_library(call, s);
      if (!error.empty()) fail_runtime("{}: {}.", text_of(info.op, info.shape, info.dtype), error);
      if (!overlaps()) join();
      return;
    }
    Pending p{event(), event(), info.op, info.dtype, info.shape};
    cuda::check(cudaEventRecord(p.began, s), "cudaEventRecord");
    must_be_fine(info, to_library(call, s));
    cuda::check(cudaEventRecord(p.done, s), "cudaEventRecord");
    {
      std::lock_guard lock(mutex_);
      pending_.push_back(std::move(p));
    }
    if (!overlaps()) join();
  }

  // The handle is gone when the watching thread has given up.
  template <class F>
  std::string to_library(F&& call, cudaStream_t s) {
    std::lock_guard alone(calling_);
    check();
    return call(s);
  }

  // The library waits without end for a member that does not come, and cannot be told to stop before there is a handle:
  // a thread does that, and is left to it where nobody will come.
  nccl::Handle connect(const std::byte* id) {
    struct Start {
      std::mutex mutex;
      std::condition_variable changed;
      std::vector<int> ranks;
      std::array<std::byte, DeviceCommunicatorFactory::kIdBytes> id;
      bool over = false;
      std::string error;
      nccl::Handle handle = nullptr;
    };
    auto start = std::make_shared<Start>();
    start->ranks.assign(ranks().begin(), ranks().end());
    std::copy_n(id, start->id.size(), start->id.begin());
    std::thread([start, index = index(), device = device_index_] {
      leave_host_language();
      std::string error;
      nccl::Handle handle = nullptr;
      try {
        cuda::check(cudaSetDevice(device), "cudaSetDevice");
        handle = nccl::start(start->ranks, index, start->id.data());
      } catch (const std::exception& e) {
        error = e.what();
      }
      std::lock_guard lock(start->mutex);
      start->over = true;
      start->error = error;
      start->handle = handle;
      start->changed.notify_one();
    }).detach();
    const std::string what =
        fmt::format("creating a communicator for the cuda devices of ranks {}", ranks_text(ranks()));
    const int64_t began = now_ns();
    std::unique_lock lock(start->mutex);
    while (!start->changed.wait_for(lock, kTick, [&] { return start->over; })) {
      const std::string why = hopeless(what, static_cast<double>(now_ns() - began) * 1e-9);
      if (why.empty()) continue;
      world_->abort(why);
      fail_runtime("{}", why);
    }
    if (start->error.empty()) return start->handle;
    world_->abort(start->error);
    fail_runtime("{}", start->error);
  }

  // The wire's stream, and a first message, with which the library connects the two: later ones wait for nobody.
  void connect() {
    stream_.emplace(device_index_);
    void* word = nullptr;  // never given back, as that would wait for all work on the device
    constexpr size_t kBytes = 256;
    cuda::check(cudaMalloc(&word, kBytes), "cudaMalloc");
    std::string error = message(word, kBytes);
    for (const int64_t began = now_ns(); error.empty() && cudaStreamQuery(stream_->get()) == cudaErrorNotReady;) {
      cudaGetLastError();
      const int peer = at_index(ranks(), 1 - index());
      if (world_->host_of(peer) == world_->host_of(world_->rank()) && !world_->ended(peer).empty())
        error = fmt::format("rank {} {}", peer, world_->ended(peer));
      if (static_cast<double>(now_ns() - began) > world_->timeout_s() * 1e9)
        error = fmt::format("rank {} does not arrive", peer);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (error.empty()) return;
    nccl::abort(handle_);
    fail_runtime("cannot connect the cuda devices of ranks {}: {}.", ranks_text(ranks()), error);
  }

  std::string message(void* data, size_t bytes) {
    return index() == 0 ? nccl::send(handle_, data, bytes, 1, stream_->get())
                        : nccl::receive(handle_, data, bytes, 0, stream_->get());
  }

  template <class F>
  uint64_t pass(const CallInfo& info, F&& call) {
    check();
    cuda::use_device(device_index_);
    stream_->wait_for_compute();
    Pending p{event(), event(), info.op, info.dtype, info.shape, false};
    must_be_fine(info, to_library(call, stream_->get()));
    cuda::check(cudaEventRecord(p.done, stream_->get()), "cudaEventRecord");
    std::lock_guard lock(mutex_);
    pending_.push_back(std::move(p));
    return ++passed_;
  }

  void must_be_fine(const CallInfo& info, const std::string& error) {
    if (error.empty()) [[likely]]
      return;
    abort(fmt::format("{}: {}.", text_of(info.op, info.shape, info.dtype), error));
    check();
  }

  std::string text_of(const std::string& op, const Dims& shape, DType dtype) const {
    return fmt::format("{} {} {} between the cuda devices of ranks {}", op, shape, name(dtype), ranks_text(ranks()));
  }

  cudaEvent_t event() {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      cudaEvent_t e = free_.back();
      free_.pop_back();
      return e;
    }
    cudaEvent_t e = nullptr;
    cuda::check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "cudaEventCreate");
    return e;
  }

  // Or never will.
  static bool has_come(cudaEvent_t e) {
    if (cudaEventQuery(e) != cudaErrorNotReady) return true;
    cudaGetLastError();  // where it would stay until it is taken for the next launch's
    return false;
  }

  bool under_way() {
    std::lock_guard lock(mutex_);
    while (!pending_.empty() && has_come(pending_.front().done)) {
      free_.push_back(pending_.front().began);
      free_.push_back(pending_.front().done);
      pending_.pop_front();
    }
    return !pending_.empty();
  }

  // Why what is under way will not come to its end, as far as is known; "" where nothing speaks against it.
  std::string trouble() {
    if (failed_.load()) return {};
    std::string error;
    if (std::unique_lock alone(calling_, std::try_to_lock); alone && !failed_.load()) error = nccl::trouble(handle_);
    if (!error.empty())
      return fmt::format("communication between the cuda devices of ranks {} failed: {}.", ranks_text(ranks()), error);
    if (!under_way()) {
      ended_ns_ = 0;
      return {};
    }
    std::string what;
    double waited_s = 0;
    const int64_t now = now_ns();
    {
      std::lock_guard lock(mutex_);
      const auto head = std::find_if(pending_.begin(), pending_.end(), [](const Pending& p) { return p.awaited; });
      if (head == pending_.end()) return {};
      what = text_of(head->op, head->shape, head->dtype);
      if (head->began_ns == 0 && has_come(head->began)) head->began_ns = now;
      if (head->began_ns) waited_s = static_cast<double>(now - head->began_ns) * 1e-9;
    }
    return hopeless(what, waited_s);
  }

  // Why those who are missing from `what` will not come; "" where they may.
  std::string hopeless(const std::string& what, double waited_s) {
    const int64_t now = now_ns();
    auto& aborted = world_->block().aborted();
    if (aborted.is_set()) return fmt::format("{} does not continue: {}", what, aborted.text);
    for (int r : ranks()) {
      if (r == world_->rank() || world_->host_of(r) != world_->host_of(world_->rank())) continue;
      std::string how = world_->ended(r);
      if (how.empty() && world_->block().rank_entry(r).finished.load()) how = "has ended";
      if (how.empty()) continue;
      if (ended_ns_ == 0) ended_ns_ = now;
      if (now - ended_ns_ < kGraceNs) return {};
      world_->report_failure(r);
      return fmt::format("{}: rank {} {}.", what, r, how);
    }
    if (waited_s > world_->timeout_s())
      return fmt::format("{}: rank {} has waited {:.0f} s for the others (HOLON_COMM_TIMEOUT_S). HOLON_CHECK=1 names a "
                         "rank that does something else, or in another order.",
                         what, world_->rank(), waited_s);
    return {};
  }

  const int device_index_;
  const std::shared_ptr<World> world_;
  nccl::Handle handle_ = nullptr;
  bool unjoined_ = false;  // by the rank's own thread
  cudaEvent_t launching_ = nullptr;
  const bool wire_;
  std::optional<cuda::CommunicationStream> stream_;  // from the first call on
  uint64_t passed_ = 0;                              // messages of a wire
  std::atomic<bool> failed_{false};
  std::timed_mutex calling_;  // the library, with the handle
  std::mutex mutex_;
  std::string why_;
  std::deque<Pending> pending_;
  std::vector<cudaEvent_t> free_;
  int64_t ended_ns_ = 0;  // since when a member is known to have ended
};

void Watch::run() {
  leave_host_language();
  // Looking at events would spoil what another library of the process records meanwhile.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  for (;;) {
    std::this_thread::sleep_for(kTick);
    std::lock_guard lock(mutex_);
    for (NcclCommunicator* c : watched_) {
      if (cudaSetDevice(c->device_index()) != cudaSuccess) continue;
      c->look();
    }
  }
}

class Factory final : public DeviceCommunicatorFactory {
 public:
  std::string missing() override { return nccl::missing(); }
  std::string identity(int device_index) override { return nccl::identity(device_index); }
  void make_id(std::byte* id) override { nccl::make_id(id); }
  std::unique_ptr<DeviceCommunicator> make(std::span<const int> ranks, int index, const std::byte* id,
                                           int device_index) override {
    return std::make_unique<NcclCommunicator>(ranks, index, id, device_index);
  }
  std::unique_ptr<DeviceWire> make_wire(int from, int to, const std::byte* id, int device_index) override {
    const std::array<int, 2> ranks{from, to};
    return std::make_unique<NcclCommunicator>(ranks, shared_world()->rank() == from ? 0 : 1, id, device_index, true);
  }
};

const bool registered =
    on_device_registration([](DeviceType type) { set_device_communicator_factory(type, new Factory); });

}  // namespace

}  // namespace holon::comm
