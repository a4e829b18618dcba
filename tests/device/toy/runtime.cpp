// The runtime: what holon asks of toy devices.
#include "holon/array/device_runtime.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "holon/array/device_backend.h"
#include "holon/base/error.h"
#include "holon/base/settings.h"
#include "toy/memory.h"
#include "toy/stream.h"

namespace toy {

namespace {

using holon::DeviceAllocator;
using holon::MemoryStats;
using holon::Ref;
using holon::Storage;

// Memory of an array: freed, it is given to others in the order of its stream.
class Block final : public Storage {
 public:
  Block(DeviceAllocator& allocator, DeviceAllocator::Block* block, size_t bytes)
      : Storage(DeviceAllocator::data(block), bytes), allocator_(allocator), block_(block) {}
  ~Block() override { allocator_.free(block_); }

 private:
  DeviceAllocator& allocator_;
  DeviceAllocator::Block* block_;
};

class Event final : public holon::DeviceEvent {
 public:
  explicit Event(int index) : index_(index) {}
  void record() override {
    stream_ = &stream(index_);
    stream_->put([at = at_] { *at = std::chrono::steady_clock::now(); });
    position_ = stream_->position();
  }
  bool query() override { return !stream_ || stream_->done(position_); }
  void synchronize() override {
    if (!stream_) return;
    stream_->wait(position_);
    stream_->check();
  }
  double elapsed_ms(const DeviceEvent& since) override {
    auto& begin = static_cast<const Event&>(since);
    if (!stream_ || !begin.stream_ || !query() || !begin.stream_->done(begin.position_))
      holon::fail_runtime("the time between two events: one of them is not recorded or not done. Call synchronize().");
    return std::chrono::duration<double, std::milli>(*at_ - *begin.at_).count();
  }

 private:
  using Time = std::chrono::steady_clock::time_point;
  const int index_;
  Stream* stream_ = nullptr;
  uint64_t position_ = 0;
  std::shared_ptr<Time> at_ = std::make_shared<Time>();
};

class Runtime final : public holon::DeviceRuntime {
 public:
  Runtime() {
    for (int i = 0; i < kDevices; ++i) devices_.push_back(std::make_unique<Device>(i));
  }

  holon::DeviceCapabilities capabilities() const override { return {.host_access = shared_with_host()}; }
  int device_count() const override { return kDevices; }
  holon::DeviceProperties properties(int index) override {
    return {.name = "toy", .total_bytes = devices_[static_cast<size_t>(index)]->memory.bytes().total};
  }

  Ref<Storage> allocate(int index, size_t bytes) override {
    DeviceAllocator& a = allocator(index);
    return holon::make_ref<Block>(a, a.allocate(&stream(index), bytes), bytes);
  }
  MemoryStats memory_stats(int index) override { return allocator(index).stats(); }
  void reset_peak_memory(int index) override { allocator(index).reset_peak(); }
  void release_cached_memory(int index) override { allocator(index).release_cached(); }

  void copy_to_host(int index, void* host, const void* device, size_t bytes) override {
    if (bytes) stream(index).put([=] { std::memcpy(host, bytes_at(device), bytes); });
    synchronize(index);
  }
  // The host may change its bytes when this returns: they travel in a copy.
  void copy_from_host(int index, void* device, const void* host, size_t bytes) override {
    if (bytes == 0) return;
    const auto* first = static_cast<const std::byte*>(host);
    stream(index).put([device, copy = std::vector<std::byte>(first, first + bytes)] {
      std::memcpy(bytes_at(device), copy.data(), copy.size());
    });
  }
  // On one device: it has no peer_copies.
  void copy_between(int index, void* to, int, const void* from, size_t bytes) override {
    if (bytes) stream(index).put([=] { std::memcpy(bytes_at(to), bytes_at(from), bytes); });
  }

  void synchronize(int index) override {
    stream(index).wait();
    look(index);
  }
  void check(int index) override {
    static const bool sync = holon::settings::flag("HOLON_SYNC");
    sync ? synchronize(index) : look(index);
  }
  std::unique_ptr<holon::DeviceEvent> make_event(int index, bool) override { return std::make_unique<Event>(index); }

 private:
  struct Device {
    explicit Device(int index) : memory(index), allocator(memory) {}
    Memory memory;
    DeviceAllocator allocator;
  };
  DeviceAllocator& allocator(int index) { return devices_[static_cast<size_t>(index)]->allocator; }
  static void look(int index) {
    holon::run_device_check();
    stream(index).check();
  }

  std::vector<std::unique_ptr<Device>> devices_;
};

holon::DeviceRuntime* start(holon::DeviceType, std::string* why_not) {
  try {
    return new Runtime;
  } catch (const std::bad_alloc&) {
    *why_not = "the system has no addresses left for their memory";
    return nullptr;
  }
}

}  // namespace

}  // namespace toy

HOLON_DEVICE_BACKEND("toy plaything", toy::start)
