#include "holon/array/pinned_allocator.h"

#include <algorithm>
#include <bit>
#include <list>
#include <map>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"

namespace holon {

namespace {

constexpr size_t kUnit = 512, kSmall = size_t{1} << 20, kSmallSegment = 2 * kSmall, kPage = 4096;
constexpr size_t kMost = size_t{1} << 60;

size_t class_of(size_t bytes) {
  bytes = std::max(bytes, kUnit);
  const size_t quarter = std::max(std::bit_floor(bytes - 1) / 4, bytes > kSmall ? kPage : kUnit);
  return (bytes + quarter - 1) / quarter * quarter;
}

}  // namespace

struct PinnedAllocator::Segment {
  std::byte* at;
  size_t bytes;
  size_t cut = 0;  // bytes of it that blocks were made of
  int used = 0;    // blocks that are in use or pending
};

struct PinnedAllocator::Block {
  std::byte* at = nullptr;
  size_t bytes = 0;
  Segment* segment = nullptr;
  struct Use {
    Stream stream;
    DeviceDriver::Event event;  // the last work that uses it there
  };
  std::vector<Use> uses;
};

struct PinnedAllocator::State {
  std::list<Segment> segments;
  Segment* open = nullptr;  // of which small blocks are cut
  std::map<size_t, std::vector<Block*>> free;
  std::vector<Block*> pending;  // freed, with work that may not be done
  std::vector<std::unique_ptr<Block>> blocks;
  size_t in_use = 0, peak = 0, reserved = 0;
};

void* PinnedAllocator::data(const Block* block) { return block->at; }

PinnedAllocator::PinnedAllocator(DeviceDriver& driver) : driver_(driver), s_(std::make_unique<State>()) {}

PinnedAllocator::~PinnedAllocator() {
  for (auto& b : s_->blocks)
    for (auto& use : b->uses) {
      driver_.wait(use.event);
      driver_.drop(use.event);
    }
  for (Segment& s : s_->segments) driver_.give(s.at);
}

PinnedAllocator::Block* PinnedAllocator::allocate(size_t bytes) {
  if (bytes > kMost) out_of_memory(bytes);
  const size_t rounded = class_of(bytes);
  {
    std::lock_guard lock(mutex_);
    settle();
    if (Block* block = find(rounded)) return take(block);
    if (Block* block = carve(rounded)) return take(block);
  }
  wait_for_pending();
  std::lock_guard lock(mutex_);
  if (Block* block = find(rounded)) return take(block);
  give_segments();
  if (Block* block = carve(rounded)) return take(block);
  out_of_memory(bytes);
}

PinnedAllocator::Block* PinnedAllocator::take(Block* block) {
  ++block->segment->used;
  s_->in_use += block->bytes;
  s_->peak = std::max(s_->peak, s_->in_use);
  return block;
}

PinnedAllocator::Block* PinnedAllocator::find(size_t bytes) {
  auto found = s_->free.find(bytes);
  if (found == s_->free.end() || found->second.empty()) return nullptr;
  Block* block = found->second.back();
  found->second.pop_back();
  return block;
}

PinnedAllocator::Block* PinnedAllocator::carve(size_t bytes) {
  Segment* segment = s_->open;
  const bool small = bytes <= kSmall;
  if (!small || !segment || segment->bytes - segment->cut < bytes) {
    const size_t size = small ? kSmallSegment : bytes;
    void* p = driver_.take(size);
    if (!p) return nullptr;
    s_->reserved += size;
    segment = &s_->segments.emplace_back(Segment{static_cast<std::byte*>(p), size});
    if (small) s_->open = segment;
  }
  Block* block = s_->blocks.emplace_back(std::make_unique<Block>()).get();
  block->at = segment->at + segment->cut;
  block->bytes = bytes;
  block->segment = segment;
  segment->cut += bytes;
  return block;
}

void PinnedAllocator::free(Block* block) {
  std::lock_guard lock(mutex_);
  s_->in_use -= block->bytes;
  if (!block->uses.empty()) return s_->pending.push_back(block);
  put_back(block);
}

void PinnedAllocator::used_on(Block* block, Stream stream) {
  std::lock_guard lock(mutex_);
  auto use = std::find_if(block->uses.begin(), block->uses.end(), [&](auto& u) { return u.stream == stream; });
  const auto event = driver_.record(stream);
  if (use == block->uses.end()) {
    block->uses.push_back({stream, event});
  } else {
    driver_.drop(use->event);
    use->event = event;
  }
}

void PinnedAllocator::put_back(Block* block) {
  --block->segment->used;
  s_->free[block->bytes].push_back(block);
}

// Blocks whose work is done are free.
void PinnedAllocator::settle() {
  std::erase_if(s_->pending, [&](Block* block) {
    std::erase_if(block->uses, [&](const Block::Use& use) {
      if (!driver_.done(use.event)) return false;
      driver_.drop(use.event);
      return true;
    });
    if (!block->uses.empty()) return false;
    put_back(block);
    return true;
  });
}

// Without the lock: who waits gives the interpreter to threads that may free blocks meanwhile.
void PinnedAllocator::wait_for_pending() {
  std::vector<Block*> mine;
  {
    std::lock_guard lock(mutex_);
    mine.swap(s_->pending);
  }
  for (Block* block : mine)
    for (auto& use : block->uses) driver_.wait(use.event);
  std::lock_guard lock(mutex_);
  for (Block* block : mine) {
    for (auto& use : block->uses) driver_.drop(use.event);
    block->uses.clear();
    put_back(block);
  }
}

void PinnedAllocator::give_segments() {
  auto unused = [](const Block* b) { return b->segment->used == 0; };
  for (auto& [bytes, blocks] : s_->free) std::erase_if(blocks, unused);
  std::erase_if(s_->blocks, [&](auto& b) { return unused(b.get()); });
  if (s_->open && s_->open->used == 0) s_->open = nullptr;
  std::erase_if(s_->segments, [&](const Segment& s) {
    if (s.used > 0) return false;
    s_->reserved -= s.bytes;
    driver_.give(s.at);
    return true;
  });
}

MemoryStats PinnedAllocator::stats() {
  std::lock_guard lock(mutex_);
  return {s_->in_use, s_->peak, s_->reserved - s_->in_use};
}

void PinnedAllocator::release_cached() {
  wait_for_pending();
  std::lock_guard lock(mutex_);
  give_segments();
}

void PinnedAllocator::out_of_memory(size_t bytes) {
  fail_runtime(
      "out of pinned memory: {} bytes were requested; {} are in use and {} are cached, and the system refuses to pin "
      "more ({}). Use smaller tensors, leave pin_memory out, or raise the limit of locked memory (ulimit -l).",
      bytes, s_->in_use, s_->reserved - s_->in_use, rank_text());
}

}  // namespace holon
