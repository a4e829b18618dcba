#include "toy/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>

namespace toy {

namespace {

constexpr size_t kBytes = size_t{2} << 30;  // of a device

struct Addresses {
  std::byte* visible = map(shared_with_host() ? PROT_READ | PROT_WRITE : PROT_NONE);  // what the host sees
  std::byte* backing = shared_with_host() ? visible : map(PROT_READ | PROT_WRITE);
  static std::byte* map(int protection) {
    void* p = mmap(nullptr, kBytes * kDevices, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(p);
  }
};
const Addresses& addresses() {
  static const Addresses a;
  return a;
}

// A place in the order of a stream.
struct Place {
  toy::Stream* stream;
  uint64_t position;
};

}  // namespace

bool shared_with_host() { return std::getenv("TOY_SHARED"); }

std::byte* bytes_at(const void* address) {
  return addresses().backing + (static_cast<const std::byte*>(address) - addresses().visible);
}

Memory::Memory(int index) : index_(index) { addresses(); }

void* Memory::take(size_t bytes) {
  std::lock_guard lock(mutex_);
  void* segment = nullptr;
  if (auto found = given_.find(bytes); found != given_.end()) {
    segment = found->second;
    given_.erase(found);
  } else {
    if (bytes > kBytes - used_) return nullptr;
    segment = addresses().visible + static_cast<size_t>(index_) * kBytes + used_;
    used_ += bytes;
  }
  taken_[segment] = bytes;
  return segment;
}

void Memory::give(void* segment) {
  wait_for_all_streams(index_);
  std::lock_guard lock(mutex_);
  const auto found = taken_.find(segment);
  madvise(bytes_at(segment), found->second, MADV_DONTNEED);
  given_.emplace(found->second, segment);
  taken_.erase(found);
}

holon::DeviceDriver::Bytes Memory::bytes() {
  std::lock_guard lock(mutex_);
  size_t taken = 0;
  for (auto& [at, size] : taken_) taken += size;
  return {kBytes - taken, kBytes};
}

Memory::Event Memory::record(Stream stream) {
  auto* s = static_cast<toy::Stream*>(stream);
  return new Place{s, s->position()};
}
bool Memory::done(Event event) {
  auto* place = static_cast<Place*>(event);
  return place->stream->done(place->position);
}
void Memory::wait(Event event) {
  auto* place = static_cast<Place*>(event);
  place->stream->wait(place->position);
}
void Memory::drop(Event event) { delete static_cast<Place*>(event); }

}  // namespace toy
