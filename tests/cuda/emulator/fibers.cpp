// Threads of a block as fibers of the host's thread.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "emulator.h"

namespace emulator {

thread_local Thread* current = nullptr;

namespace {

constexpr size_t kStack = 256 << 10;
constexpr unsigned kMostThreads = 1024;
// Stacks begin at unlike lines of a page: in one and the same set of the cache, those of a block's threads would evict
// each other.
constexpr size_t kStagger = 5 * 64;

[[noreturn]] void stop(const char* text) {
  std::fprintf(stderr, "emulator: %s (block %u, thread %u)\n", text, current ? current->block_index.x : 0,
               current ? current->thread_index.x : 0);
  std::abort();
}

// A point where threads meet. Those that have ended are not waited for.
struct Barrier {
  unsigned arrived = 0;
  uint64_t round = 0;
};

struct Warp {
  Barrier barrier;
  unsigned alive = 0, waiting_mask = 0;
  // By parity of the round, so that a lane may write its next value while others still read this one.
  alignas(16) unsigned char slots[2][32][kExchangeBytes];
  unsigned ballot[2];
};

struct Fiber {
  ucontext_t start;
  jmp_buf at;
  void* stack = nullptr;
  bool started = false, idle = true;
  Thread thread;
  unsigned index = 0;
};

class Block {
 public:
  static Block& of_thread() {
    static thread_local Block b;
    return b;
  }

  void run(dim3 grid, dim3 size, size_t shared_bytes, const std::function<void()>& body) {
    if (running_) stop("a kernel was started inside a kernel");
    const uint64_t threads = uint64_t{size.x} * size.y * size.z;
    if (threads == 0 || threads > kMostThreads) stop("a block has 1 to 1024 threads");
    if (shared_bytes > shared_bytes_of_block()) stop("a block asks for more shared memory than the device has for one");
    if (grid.y > 65535 || grid.z > 65535) stop("a grid has at most 65535 blocks along y and z");
    running_ = true;
    body_ = &body;
    grid_ = grid;
    size_ = size;
    threads_ = static_cast<unsigned>(threads);
    if (shared_.size() < shared_bytes + 64) shared_.resize(shared_bytes + 64);
    for (unsigned z = 0; z < grid.z; ++z)
      for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; ++x) {
          ++block_number_;
          std::memset(shared(), 0xff, shared_bytes);  // NaN
          run_block(reversed_ ? dim3(grid.x - 1 - x, grid.y - 1 - y, grid.z - 1 - z) : dim3(x, y, z));
        }
    running_ = false;
    current = nullptr;
  }

  void* shared() {
    auto p = reinterpret_cast<uintptr_t>(shared_.data());
    return reinterpret_cast<void*>((p + 63) & ~uintptr_t{63});
  }

  uint64_t number() const { return block_number_; }

  void block_barrier() {
    const uint64_t round = barrier_.round;
    if (++barrier_.arrived == alive_) release(barrier_);
    while (barrier_.round == round) yield();
  }

  void warp_barrier(unsigned mask) {
    Warp& w = warps_[fiber_->index / 32];
    const unsigned lane = fiber_->index % 32;
    if (!(mask >> lane & 1)) stop("a thread waits for lanes that do not name it");
    const unsigned expected = mask & full_mask(fiber_->index / 32);
    if (expected & ~w.alive) stop("a warp's exchange names lanes that have ended");
    if (w.waiting_mask && w.waiting_mask != expected) stop("lanes of a warp wait with unlike masks");
    w.waiting_mask = expected;
    const uint64_t round = w.barrier.round;
    if (++w.barrier.arrived == static_cast<unsigned>(__builtin_popcount(expected))) {
      w.waiting_mask = 0;
      release(w.barrier);
    }
    while (w.barrier.round == round) yield();
  }

  const void* exchange(unsigned mask, const void* mine, size_t bytes, unsigned of) {
    if (bytes > kExchangeBytes) stop("an exchanged value has more than 32 bytes");
    Warp& w = warps_[fiber_->index / 32];
    const unsigned parity = w.barrier.round & 1;
    std::memcpy(w.slots[parity][fiber_->index % 32], mine, bytes);
    warp_barrier(mask);
    return w.slots[parity][of % 32];
  }

  unsigned ballot(unsigned mask, bool predicate) {
    Warp& w = warps_[fiber_->index / 32];
    const unsigned parity = w.barrier.round & 1, bit = 1u << fiber_->index % 32;
    w.ballot[parity] = (w.ballot[parity] & ~bit) | (predicate ? bit : 0);
    warp_barrier(mask);
    return w.ballot[parity] & mask & full_mask(fiber_->index / 32);
  }

 private:
  unsigned full_mask(unsigned warp) const {
    const unsigned left = threads_ - warp * 32;
    return left >= 32 ? 0xffffffffu : (1u << left) - 1;
  }

  void release(Barrier& b) {
    b.arrived = 0;
    ++b.round;
    progress_ = true;
  }

  void run_block(dim3 index) {
    block_ = index;
    next_ = 0;
    alive_ = threads_;
    barrier_ = {};
    warps_.resize((threads_ + 31) / 32);
    for (size_t i = 0; i < warps_.size(); ++i) {
      warps_[i].barrier = {};
      warps_[i].waiting_mask = 0;
      warps_[i].alive = full_mask(static_cast<unsigned>(i));
    }
    // Every pass goes on with each waiting fiber once, and starts new ones while threads are left.
    size_t used = 0;
    do {
      progress_ = false;
      for (size_t f = 0; f < used; ++f)
        if (!fibers_[f]->idle) resume(*fibers_[f]);
      while (next_ < threads_) {
        if (used == fibers_.size()) fibers_.push_back(std::make_unique<Fiber>());
        resume(*fibers_[used++]);
        progress_ = true;
      }
      if (alive_ && !progress_)
        stop("threads of a block wait for each other for ever: a barrier not all of them reach");
    } while (alive_);
  }

  void resume(Fiber& f) {
    fiber_ = &f;
    current = &f.thread;
    if (_setjmp(home_)) return;
    if (f.started) _longjmp(f.at, 1);
    f.started = true;
    f.stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    getcontext(&f.start);
    f.start.uc_stack.ss_sp = f.stack;
    f.start.uc_stack.ss_size = kStack - fibers_.size() * kStagger % (kStack / 4);
    f.start.uc_link = nullptr;
    makecontext(&f.start, &Block::entry, 0);
    setcontext(&f.start);
  }

  static void entry() { of_thread().work(); }

  // What a fiber does for ever: thread after thread, until none is left to start.
  void work() {
    for (;;) {
      Fiber& f = *fiber_;
      f.idle = false;
      while (next_ < threads_) {
        const unsigned t = reversed_ ? threads_ - ++next_ : next_++;
        f.index = t;
        f.thread = {{t % size_.x, t / size_.x % size_.y, t / (size_.x * size_.y)}, block_, size_, grid_};
        (*body_)();
        end_thread();
      }
      f.idle = true;
      yield();
    }
  }

  void end_thread() {
    const unsigned t = fiber_->index;
    --alive_;
    warps_[t / 32].alive &= ~(1u << t % 32);
    progress_ = true;
    if (alive_ && barrier_.arrived == alive_) release(barrier_);
  }

  void yield() {
    Fiber* f = fiber_;
    if (_setjmp(f->at) == 0) _longjmp(home_, 1);
  }

  const bool reversed_ = std::getenv("EMULATED_REVERSED") && *std::getenv("EMULATED_REVERSED") == '1';
  bool running_ = false, progress_ = false;
  const std::function<void()>* body_ = nullptr;
  dim3 grid_, size_, block_;
  uint64_t block_number_ = 0;
  unsigned threads_ = 0, next_ = 0, alive_ = 0;
  Barrier barrier_;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<unsigned char> shared_;
  Fiber* fiber_ = nullptr;
  jmp_buf home_;
};

}  // namespace

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
  Block::of_thread().run(grid, block, shared_bytes, body);
}
uint64_t block_number() { return Block::of_thread().number(); }
void* dynamic_shared() { return Block::of_thread().shared(); }
void block_barrier() { Block::of_thread().block_barrier(); }
void warp_barrier(unsigned mask) { Block::of_thread().warp_barrier(mask); }
const void* warp_exchange(unsigned mask, const void* mine, size_t bytes, unsigned of) {
  return Block::of_thread().exchange(mask, mine, bytes, of);
}
unsigned warp_ballot(unsigned mask, bool predicate) { return Block::of_thread().ballot(mask, predicate); }

}  // namespace emulator
