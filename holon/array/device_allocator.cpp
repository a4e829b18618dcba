#include "holon/array/device_allocator.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"

namespace holon {

namespace {

constexpr size_t kUnit = 512, kMiB = size_t{1} << 20;
constexpr size_t kSmall = kMiB, kSmallSegment = 2 * kMiB;
constexpr size_t kMiddle = 10 * kMiB, kMiddleSegment = 20 * kMiB, kLargeUnit = 2 * kMiB;
constexpr size_t kMost = size_t{1} << 60;

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

size_t segment_bytes(size_t bytes) {
  if (bytes <= kSmall) return kSmallSegment;
  return bytes < kMiddle ? kMiddleSegment : round_up(bytes, kLargeUnit);
}

std::string mib(size_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / static_cast<double>(kMiB));
}

}  // namespace

struct DeviceAllocator::Segment {
  std::byte* at;
  size_t bytes;
  Pool* pool;
  bool small;
  Block* first;  // the same one always: joined blocks keep the lower one
};

struct DeviceAllocator::Block {
  enum class State : uint8_t { kLive, kFree, kPending, kHeld };
  std::byte* at = nullptr;
  size_t bytes = 0;
  Segment* segment = nullptr;
  Block *before = nullptr, *after = nullptr;  // its neighbours in the segment
  Stream stream = nullptr;                    // in whose order it is; of a free one nullptr: any
  uint64_t freed = 0;                         // the time of that
  State state = State::kFree;
  int events = 0;             // of a pending one: still to come
  std::vector<Stream> users;  // other streams
};

struct DeviceAllocator::Pool {
  struct Smaller {
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->at < b->at;
    }
  };
  using Free = std::set<Block*, Smaller>;
  std::unordered_map<Stream, Free> free[2];  // large, small
  std::vector<Block*> held;
  int recordings = 1;
};

struct DeviceAllocator::StreamState {
  DeviceDriver::Event fence = nullptr;
  uint64_t fence_at = 0;
  Pool* recorded = nullptr;
};

struct DeviceAllocator::Pending {
  DeviceDriver::Event event;
  Block* block;
};

struct DeviceAllocator::State {
  Pool common;
  std::map<PoolId, std::unique_ptr<Pool>> pools;
  PoolId next_pool = 1;
  std::unordered_map<Stream, StreamState> streams;
  int recordings = 0;
  std::deque<Pending> pending;
  std::map<std::byte*, std::unique_ptr<Segment>> segments;
  uint64_t time = 0;
  size_t in_use = 0, peak = 0, reserved = 0;
};

void* DeviceAllocator::data(const Block* block) { return block->at; }

DeviceAllocator::DeviceAllocator(DeviceDriver& driver) : driver_(driver), s_(std::make_unique<State>()) {}

DeviceAllocator::~DeviceAllocator() {
  for (auto& p : s_->pending) driver_.drop(p.event);
  for (auto& [stream, state] : s_->streams)
    if (state.fence) driver_.drop(state.fence);
  std::vector<Block*> held = s_->common.held;
  for (auto& [id, pool] : s_->pools) held.insert(held.end(), pool->held.begin(), pool->held.end());
  auto drop_free = [&](Pool& pool) {
    for (auto& by_stream : pool.free)
      for (auto& [stream, blocks] : by_stream)
        for (Block* b : blocks) delete b;
  };
  drop_free(s_->common);
  for (auto& [id, pool] : s_->pools) drop_free(*pool);
  for (Block* b : held) delete b;
  for (auto& [at, segment] : s_->segments) driver_.give(at);
}

bool DeviceAllocator::recording(Stream stream) const {
  if (s_->recordings == 0) return false;
  auto found = s_->streams.find(stream);
  return found != s_->streams.end() && found->second.recorded;
}

DeviceAllocator::Block* DeviceAllocator::allocate(Stream stream, size_t bytes) {
  if (bytes > kMost) out_of_memory(bytes);
  bytes = round_up(std::max<size_t>(bytes, 1), kUnit);
  const bool small = bytes <= kSmall;
  {
    std::lock_guard lock(mutex_);
    const bool recorded = recording(stream);
    Pool& pool = recorded ? *s_->streams[stream].recorded : s_->common;
    if (!s_->pending.empty() && !recorded) look_at_pending(false);
    Block* block = find(pool, small, stream, bytes);
    if (!block && !recorded) {
      lend(small, stream, bytes);
      block = find(pool, small, stream, bytes);
    }
    if (!block) block = grow(pool, small, bytes);
    if (block) return give_out(block, stream, bytes);
    // Waiting would end a recording with an error.
    if (recorded) out_of_memory(bytes);
  }
  // Who waits lets other threads have the interpreter. They may free memory here, so that it is not taken back under
  // the lock.
  BlockingScope unlocked;
  std::lock_guard lock(mutex_);
  Block* block = reclaim(small, stream, bytes);
  if (!block) out_of_memory(bytes);
  return give_out(block, stream, bytes);
}

DeviceAllocator::Block* DeviceAllocator::give_out(Block* block, Stream stream, size_t bytes) {
  cut(block, bytes);
  block->stream = stream;
  block->state = Block::State::kLive;
  s_->in_use += block->bytes;
  s_->peak = std::max(s_->peak, s_->in_use);
  return block;
}

DeviceAllocator::Block* DeviceAllocator::find(Pool& pool, bool small, Stream stream, size_t bytes) {
  Block like;
  like.bytes = bytes;
  Block* best = nullptr;
  for (Stream of : {stream, Stream{nullptr}}) {
    auto blocks = pool.free[small].find(of);
    if (blocks == pool.free[small].end()) continue;
    auto found = blocks->second.lower_bound(&like);
    if (found != blocks->second.end() && (!best || (*found)->bytes < best->bytes)) best = *found;
  }
  if (best) remove(best);
  return best;
}

DeviceAllocator::Block* DeviceAllocator::grow(Pool& pool, bool small, size_t bytes) {
  size_t size = segment_bytes(bytes);
  void* p = driver_.take(size);
  if (!p && size > round_up(bytes, kLargeUnit)) p = driver_.take(size = round_up(bytes, kLargeUnit));
  if (!p) return nullptr;
  auto segment = std::make_unique<Segment>(Segment{static_cast<std::byte*>(p), size, &pool, small, nullptr});
  s_->reserved += size;
  auto* block = new Block;
  block->at = segment->at;
  block->bytes = size;
  block->segment = segment.get();
  segment->first = block;
  s_->segments.emplace(segment->at, std::move(segment));
  return block;
}

DeviceAllocator::Block* DeviceAllocator::reclaim(bool small, Stream stream, size_t bytes) {
  settle_all();
  if (Block* block = find(s_->common, small, stream, bytes)) return block;
  give_segments();
  return grow(s_->common, small, bytes);
}

// Its first bytes; the rest is free in the same order. What is too short to be of use stays with it.
void DeviceAllocator::cut(Block* block, size_t bytes) {
  const size_t rest = block->bytes - bytes;
  if (rest < (block->segment->small ? kUnit : kSmall + 1)) return;
  auto* tail = new Block;
  tail->at = block->at + bytes;
  tail->bytes = rest;
  tail->segment = block->segment;
  tail->before = block;
  tail->after = block->after;
  tail->stream = block->stream;
  tail->freed = block->freed;
  if (tail->after) tail->after->before = tail;
  block->after = tail;
  block->bytes = bytes;
  insert(tail);
}

void DeviceAllocator::insert(Block* block) {
  block->state = Block::State::kFree;
  block->segment->pool->free[block->segment->small][block->stream].insert(block);
}

void DeviceAllocator::remove(Block* block) {
  block->segment->pool->free[block->segment->small][block->stream].erase(block);
}

void DeviceAllocator::free(Block* block) {
  std::lock_guard lock(mutex_);
  s_->in_use -= block->bytes;
  // What a recording uses is its own for as long as it may be done again.
  Pool* holder = nullptr;
  if (s_->recordings > 0) {
    if (recording(block->stream)) {
      Pool* own = s_->streams[block->stream].recorded;
      if (block->segment->pool != own || !block->users.empty()) holder = own;
    }
    for (Stream user : block->users)
      if (recording(user)) holder = s_->streams[user].recorded;
  }
  if (holder) {
    block->state = Block::State::kHeld;
    holder->held.push_back(block);
    return;
  }
  if (block->users.empty()) return put_back(block);
  block->state = Block::State::kPending;
  block->events = static_cast<int>(block->users.size());
  for (Stream user : block->users) s_->pending.push_back({driver_.record(user), block});
  block->users.clear();
}

void DeviceAllocator::record_stream(Block* block, Stream stream) {
  std::lock_guard lock(mutex_);
  if (stream == block->stream || std::find(block->users.begin(), block->users.end(), stream) != block->users.end())
    return;
  block->users.push_back(stream);
}

void DeviceAllocator::put_back(Block* block) {
  block->freed = ++s_->time;
  block->users.clear();
  insert(join(block));
}

// With its free neighbours, where both are in one stream's order or one is in any. Pre: it is in no list.
DeviceAllocator::Block* DeviceAllocator::join(Block* block) {
  for (Block* other : {block->before, block->after}) {
    if (!other || other->state != Block::State::kFree) continue;
    if (other->stream != block->stream && other->stream && block->stream) continue;
    remove(other);
    Block *first = other == block->before ? other : block, *second = first == other ? block : other;
    first->bytes += second->bytes;
    first->after = second->after;
    if (first->after) first->after->before = first;
    first->freed = std::max(first->freed, second->freed);
    if (!first->stream) first->stream = second->stream;
    delete second;
    block = first;
  }
  return block;
}

// Lets a stream have what others have freed and are done with. The others are asked by an event on each, not one for
// every block.
void DeviceAllocator::lend(bool small, Stream to, size_t bytes) {
  std::vector<Stream> others;
  for (auto& [stream, blocks] : s_->common.free[small])
    if (stream && stream != to && !recording(stream) && !blocks.empty() && (*blocks.rbegin())->bytes >= bytes)
      others.push_back(stream);
  for (Stream stream : others) {
    StreamState& state = s_->streams[stream];
    if (!state.fence) {
      state.fence = driver_.record(stream);
      state.fence_at = s_->time;
    }
    if (!driver_.done(state.fence)) continue;
    driver_.drop(state.fence);
    state.fence = nullptr;
    settle(stream, state.fence_at);
  }
}

// The stream's blocks that were free at that time are any stream's.
void DeviceAllocator::settle(Stream stream, uint64_t until) {
  for (bool small : {false, true}) {
    auto found = s_->common.free[small].find(stream);
    if (found == s_->common.free[small].end()) continue;
    std::vector<Block*> done;
    for (Block* b : found->second)
      if (b->freed <= until) done.push_back(b);
    // Out of the lists first, so that none of them goes away by being joined before its turn.
    for (Block* b : done) {
      remove(b);
      b->stream = nullptr;
      b->state = Block::State::kHeld;
    }
    for (Block* b : done) insert(join(b));
  }
}

void DeviceAllocator::settle_all() {
  look_at_pending(true);
  std::vector<Stream> streams;
  for (auto& by_stream : s_->common.free)
    for (auto& [stream, blocks] : by_stream)
      if (stream && !recording(stream) && !blocks.empty() &&
          std::find(streams.begin(), streams.end(), stream) == streams.end())
        streams.push_back(stream);
  for (Stream stream : streams) {
    const auto event = driver_.record(stream);
    driver_.wait(event);
    driver_.drop(event);
    settle(stream, s_->time);
  }
}

void DeviceAllocator::look_at_pending(bool wait) {
  std::deque<Pending> left;
  for (auto& p : s_->pending) {
    if (wait) driver_.wait(p.event);
    if (!wait && !driver_.done(p.event)) {
      left.push_back(p);
      continue;
    }
    driver_.drop(p.event);
    if (--p.block->events == 0) put_back(p.block);
  }
  s_->pending = std::move(left);
}

void DeviceAllocator::give_segments() {
  for (auto it = s_->segments.begin(); it != s_->segments.end();) {
    Segment& segment = *it->second;
    Block* whole = segment.first;
    if (segment.pool != &s_->common || whole->state != Block::State::kFree || whole->bytes != segment.bytes) {
      ++it;
      continue;
    }
    remove(whole);
    delete whole;
    s_->reserved -= segment.bytes;
    driver_.give(segment.at);
    it = s_->segments.erase(it);
  }
}

DeviceAllocator::PoolId DeviceAllocator::begin_recording(Stream stream, PoolId with) {
  std::lock_guard lock(mutex_);
  HOLON_CHECK(!recording(stream), "a stream is recorded twice");
  if (auto found = s_->pools.find(with); found != s_->pools.end()) {
    ++found->second->recordings;
    s_->streams[stream].recorded = found->second.get();
    ++s_->recordings;
    return with;
  }
  auto& pool = s_->pools[s_->next_pool] = std::make_unique<Pool>();
  s_->streams[stream].recorded = pool.get();
  ++s_->recordings;
  return s_->next_pool++;
}

void DeviceAllocator::end_recording(Stream stream) {
  std::lock_guard lock(mutex_);
  if (!recording(stream)) return;
  s_->streams[stream].recorded = nullptr;
  --s_->recordings;
}

void DeviceAllocator::release(PoolId id) {
  std::lock_guard lock(mutex_);
  auto found = s_->pools.find(id);
  if (found == s_->pools.end() || --found->second->recordings > 0) return;
  std::unique_ptr<Pool> pool = std::move(found->second);
  s_->pools.erase(found);
  for (auto& [at, segment] : s_->segments)
    if (segment->pool == pool.get()) segment->pool = &s_->common;
  for (bool small : {false, true})
    for (auto& [stream, blocks] : pool->free[small])
      for (Block* b : blocks) {
        b->freed = ++s_->time;  // the recording has used it since
        s_->common.free[small][stream].insert(b);
      }
  for (Block* b : pool->held) {
    if (b->users.empty()) {
      put_back(b);
      continue;
    }
    b->state = Block::State::kPending;
    b->events = static_cast<int>(b->users.size());
    for (Stream user : b->users) s_->pending.push_back({driver_.record(user), b});
    b->users.clear();
  }
}

MemoryStats DeviceAllocator::stats() {
  std::lock_guard lock(mutex_);
  return {s_->in_use, s_->peak, s_->reserved - s_->in_use};
}

void DeviceAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  s_->peak = s_->in_use;
}

void DeviceAllocator::release_cached() {
  std::lock_guard lock(mutex_);
  settle_all();
  give_segments();
}

void DeviceAllocator::out_of_memory(size_t bytes) {
  const auto device = driver_.bytes();
  fail_runtime("out of memory on {}: {} ({} bytes) were requested; {} are in use and {} are cached in pieces, the "
               "device has {} free of {} ({}). "
               "Use smaller batches or tensors, split them over more ranks, or free what is not needed.",
               driver_.name(), mib(bytes), bytes, mib(s_->in_use), mib(s_->reserved - s_->in_use), mib(device.free),
               mib(device.total), rank_text());
}

}  // namespace holon
