// A device for tests of allocators: its memory is addresses only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "holon/array/device_allocator.h"

namespace holon {

// Streams count what was put on them and what is done; events are a stream's count.
class FakeDriver : public DeviceDriver {
 public:
  struct FakeStream {
    uint64_t put = 0, done = 0;
  };
  struct FakeEvent {
    FakeStream* stream;
    uint64_t at;
  };
  explicit FakeDriver(size_t total) : total_(total) {}
  ~FakeDriver() override { EXPECT_EQ(events, 0); }

  void* take(size_t bytes) override {
    if (fail_next > 0) {
      --fail_next;
      return nullptr;
    }
    EXPECT_EQ(bytes % unit, 0u);
    if (used + bytes > total_) return nullptr;
    used += bytes;
    auto* p = reinterpret_cast<std::byte*>(next_);
    next_ += bytes + 4096;
    segments[p] = bytes;
    return p;
  }
  void give(void* p) override {
    auto found = segments.find(static_cast<std::byte*>(p));
    ASSERT_NE(found, segments.end());
    used -= found->second;
    segments.erase(found);
  }
  Event record(Stream stream) override {
    ++events;
    auto* s = static_cast<FakeStream*>(stream);
    EXPECT_FALSE(recorded.contains(s));
    return new FakeEvent{s, s->put};
  }
  bool done(Event e) override {
    auto* event = static_cast<FakeEvent*>(e);
    return event->stream->done >= event->at;
  }
  void wait(Event e) override {
    auto* event = static_cast<FakeEvent*>(e);
    event->stream->done = std::max(event->stream->done, event->at);
  }
  void drop(Event e) override {
    --events;
    delete static_cast<FakeEvent*>(e);
  }
  Bytes bytes() override { return {total_ - used, total_}; }
  std::string name() override { return "cuda:0"; }

  size_t used = 0;
  size_t unit = size_t{2} << 20;  // of what may be asked for
  int events = 0, fail_next = 0;
  std::map<std::byte*, size_t> segments;
  std::set<FakeStream*> recorded;

 private:
  size_t total_;
  uintptr_t next_ = uintptr_t{1} << 40;
};

}  // namespace holon
