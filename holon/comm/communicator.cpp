#include "holon/comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/small_vec.h"
#include "holon/comm/group_communicator.h"
#include "holon/comm/hosts/hosts_communicator.h"
#include "holon/comm/inprocess/thread_world.h"
#include "holon/comm/shm/process_world.h"
#include "holon/comm/world.h"
#include "holon/kernels/add_n.h"
#include "holon/kernels/cpu/stream.h"

namespace holon::comm {

namespace {

// A group of one rank has nobody to wait for.
class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator(int rank, CommStats& stats) : Communicator({rank}, 0), stats_(stats) {}
  std::span<const std::byte* const> open(const CallInfo&, const void* data, size_t) override {
    ++stats_.calls;
    data_ = static_cast<const std::byte*>(data);
    return {&data_, 1};
  }
  void close() override {}

 private:
  CommStats& stats_;
  const std::byte* data_ = nullptr;
};

struct SpanLess {
  using is_transparent = void;
  bool operator()(std::span<const int> a, std::span<const int> b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }
};

struct CommPart {
  CommStats stats;
  char site[sizeof(CallDetails::site)] = "";
  uint64_t owner = 0;
  std::shared_ptr<World> world;
  int channel = 0;
  std::map<std::vector<int>, std::unique_ptr<Communicator>, SpanLess> communicators;
};

CommPart& part() { return Context::current().part<CommPart>(); }

int64_t total(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

int64_t before(std::span<const int64_t> counts, int k) {
  return std::accumulate(counts.begin(), counts.begin() + k, int64_t{0});
}

// Peers' pointers, each moved by the same number of bytes.
SmallVec<const void*, 64> shifted(std::span<const std::byte* const> peers, size_t bytes) {
  SmallVec<const void*, 64> result(peers.size());
  for (size_t i = 0; i < peers.size(); ++i) result[i] = peers[i] + bytes;
  return result;
}

}  // namespace

World& world() {
  CommPart& p = part();
  if (p.world && p.world->size() > 1) p.world->require_own("a group of several ranks");
  if (!p.world) [[unlikely]] {
    Context& c = Context::current();
    if (c.world_size() > 1 && !c.ranks_are_threads() && !forked_from().empty()) fail_forked("a group of several ranks");
    HOLON_CHECK(!c.ranks_are_threads(), "a rank that is a thread has no world");
    p.world = c.world_size() == 1 ? make_thread_world(std::make_shared<ThreadBlock>(1), 0) : join_processes(c);
  }
  return *p.world;
}

void adopt_world(std::shared_ptr<World> w) { part().world = std::move(w); }

std::shared_ptr<World> shared_world() {
  world();
  return part().world;
}

void set_channel(int channel) { part().channel = channel; }
int channel() { return part().channel; }

void join_world() { world(); }

bool abort_world(const std::string& reason) {
  CommPart& p = part();
  return p.world && p.world->abort(reason);
}

Communicator& communicator(std::span<const int> ranks) {
  CommPart& p = part();
  if (auto found = p.communicators.find(ranks); found != p.communicators.end()) return *found->second;

  Context& context = Context::current();
  if (ranks.empty()) fail_value("a group of no ranks was requested; name at least one.");
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] < 0 || sorted[i] >= context.world_size())
      fail_value("the group {} names rank {}, but the world has the ranks 0 to {}. Start more ranks or name others.",
                 ranks_text(ranks), sorted[i], context.world_size() - 1);
    if (i && sorted[i] == sorted[i - 1]) fail_value("the group {} names rank {} twice.", ranks_text(ranks), sorted[i]);
  }
  auto mine = std::find(ranks.begin(), ranks.end(), context.rank());
  if (mine == ranks.end())
    fail_value("rank {} requested the communicator of the group {}, which it is not in. Only members may.",
               context.rank(), ranks_text(ranks));

  std::vector<int> key(ranks.begin(), ranks.end());
  std::unique_ptr<Communicator> made;
  if (key.size() == 1)
    made = std::make_unique<SelfCommunicator>(key[0], p.stats);
  else if (World& w = world();
           std::any_of(key.begin(), key.end(), [&](int r) { return w.host_of(r) != w.host_of(key[0]); }))
    made = std::make_unique<HostsCommunicator>(w, key, static_cast<int>(mine - ranks.begin()), p.stats, p.site);
  else
    made = std::make_unique<GroupCommunicator>(world(), key, static_cast<int>(mine - ranks.begin()), p.stats, p.site,
                                               p.channel);
  return *p.communicators.emplace(std::move(key), std::move(made)).first->second;
}

CommStats& stats() { return part().stats; }
void note_bytes(uint64_t bytes) { stats().bytes_read += bytes; }

const char* call_site() { return part().site; }

void set_call_owner(uint64_t owner) { part().owner = owner; }
uint64_t call_owner() { return part().owner; }

void set_call_site(const char* text) {
  CommPart& p = part();
  size_t n = text ? std::min(std::strlen(text), sizeof p.site - 1) : 0;
  if (n) std::memcpy(p.site, text, n);
  p.site[n] = 0;
}

uint64_t Communicator::hash_counts(std::span<const int64_t> counts) {
  return hash_bytes(counts.data(), counts.size_bytes());
}

void Communicator::check_counts(const char* op, std::span<const int64_t> counts) const {
  if (counts.size() != to_size(size()))
    fail_value("{}: {} counts were given for a group of {} ranks; give one for each.", op, counts.size(), size());
  for (int64_t c : counts)
    if (c < 0) fail_value("{}: a count is {}; counts must be 0 or more.", op, c);
}

void Communicator::check_count(const char* op, int64_t count) {
  if (count < 0) fail_value("{}: the count is {}; it must be 0 or more.", op, count);
}

void Communicator::check_root(int root_index) const {
  if (root_index < 0 || root_index >= size())
    fail_value("broadcast: the root is member {} of a group of {} ranks; members are counted from 0.", root_index,
               size());
}

void Communicator::barrier() {
  open({"barrier", DType::kUInt8, {}}, nullptr, 0);
  close();
}

void Communicator::all_gather_bytes(const CallInfo& info, const void* mine, size_t bytes, void* out) {
  CallInfo with_size = info;
  with_size.fingerprint = hash_combine(info.fingerprint, bytes);
  auto peers = open(with_size, mine, bytes);
  if (bytes)
    for (size_t i = 0; i < peers.size(); ++i) std::memcpy(static_cast<std::byte*>(out) + i * bytes, peers[i], bytes);
  close();
  note_bytes(bytes * (peers.size() - 1));
}

void Communicator::all_reduce(const void* in, void* out, int64_t count, DType dtype) {
  check_count("all_reduce", count);
  const size_t unit = size_bytes(dtype), bytes = to_size(count) * unit;
  CallInfo info{"all_reduce", dtype, {count}, static_cast<uint64_t>(count)};
  auto peers = open(info, in, bytes);
  const int n = size();
  if (bytes <= kInlineBytes || n == 1) {
    kernels::add_n(out, shifted(peers, 0), count, dtype);
    close();
    note_bytes(bytes * to_size(n - 1));
    return;
  }
  // Each member adds one stretch and shows it; then everybody copies the others'. Stretches end at cache lines.
  const int64_t line = static_cast<int64_t>(64 / unit), lines = (count + line - 1) / line;
  auto begin_of = [&](int k) { return std::min(count, lines * k / n * line); };
  const int64_t begin = begin_of(index()), mine = begin_of(index() + 1) - begin;
  auto* result = static_cast<std::byte*>(out);
  const size_t at = to_size(begin) * unit, mine_bytes = to_size(mine) * unit;
  kernels::add_n(result + at, shifted(peers, at), mine, dtype);
  note_bytes(mine_bytes * to_size(n - 1));
  auto sums = open(info, result + at, mine_bytes);
  --stats().calls;
  // Starting behind oneself, the members read from different places at a time.
  for (int i = 1; i < n; ++i) {
    const int k = (index() + i) % n;
    const size_t from = to_size(begin_of(k)) * unit, size = to_size(begin_of(k + 1)) * unit - from;
    kernels::copy_bytes(result + from, at_index(sums, k), size, bytes);
  }
  close();
  note_bytes(bytes - mine_bytes);
}

void Communicator::reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype) {
  check_counts("reduce_scatter", counts);
  const size_t unit = size_bytes(dtype);
  const int64_t count = total(counts), mine = at_index(counts, index());
  auto peers = open({"reduce_scatter", dtype, {count}, hash_counts(counts)}, in, to_size(count) * unit);
  kernels::add_n(out, shifted(peers, to_size(before(counts, index())) * unit), mine, dtype);
  close();
  note_bytes(to_size(mine) * unit * to_size(size() - 1));
}

void Communicator::all_gather(const void* in, void* out, std::span<const int64_t> counts, DType dtype) {
  check_counts("all_gather", counts);
  const size_t unit = size_bytes(dtype);
  const int64_t mine = at_index(counts, index());
  auto peers = open({"all_gather", dtype, {mine}, hash_counts(counts)}, in, to_size(mine) * unit);
  const size_t all = to_size(total(counts)) * unit;
  uint64_t read = 0;
  for (int i = 0; i < size(); ++i) {
    const int k = (index() + i) % size();
    const size_t bytes = to_size(at_index(counts, k)) * unit;
    auto* to = static_cast<std::byte*>(out) + to_size(before(counts, k)) * unit;
    kernels::copy_bytes(to, at_index(peers, k), bytes, all);
    if (k != index()) read += bytes;
  }
  close();
  note_bytes(read);
}

std::vector<int64_t> Communicator::exchange_counts(std::span<const int64_t> send_counts,
                                                   std::span<const int64_t> recv_counts, DType dtype) {
  check_counts("all_to_all", send_counts);
  check_counts("all_to_all", recv_counts);
  const size_t n = to_size(size());
  // Row i: what member i sends to each, then what it expects of each.
  SmallVec<int64_t, 16> mine(2 * n);
  SmallVec<int64_t, 128> all(2 * n * n);
  std::copy(send_counts.begin(), send_counts.end(), mine.begin());
  std::copy(recv_counts.begin(), recv_counts.end(), mine.begin() + n);
  all_gather_bytes({"all_to_all", dtype, {total(send_counts)}}, mine.data(), mine.size() * sizeof(int64_t), all.data());
  --stats().calls;
  std::vector<int64_t> sent(n * n);
  for (size_t i = 0; i < n; ++i) std::copy_n(&all[i * 2 * n], n, &sent[i * n]);
  auto expected = [&](size_t to, size_t from) { return all[to * 2 * n + n + from]; };
  // Every member looks at every pair, so that all of them raise or none does.
  for (size_t i = 0; i < n; ++i)
    for (size_t k = 0; k < n; ++k)
      if (sent[i * n + k] != expected(k, i))
        fail_runtime(
            "all_to_all: rank {} sends {} elements to rank {}, which expects {}. Both sides must pass the same number.",
            ranks()[i], sent[i * n + k], ranks()[k], expected(k, i));
  return sent;
}

void Communicator::all_to_all(const void* in, void* out, std::span<const int64_t> send_counts,
                              std::span<const int64_t> recv_counts, DType dtype) {
  auto sent = exchange_counts(send_counts, recv_counts, dtype);
  const size_t unit = size_bytes(dtype), n = to_size(size());
  auto peers = open({"all_to_all", dtype, {total(send_counts)}}, in, to_size(total(send_counts)) * unit);
  const size_t received = to_size(total(recv_counts)) * unit;
  uint64_t read = 0;
  for (int i = 0; i < size(); ++i) {
    const size_t k = to_size((index() + i) % size());
    const size_t from = to_size(before(std::span<const int64_t>(sent).subspan(k * n, n), index())) * unit;
    const size_t to = to_size(before(recv_counts, static_cast<int>(k))) * unit;
    const size_t bytes = to_size(recv_counts[k]) * unit;
    kernels::copy_bytes(static_cast<std::byte*>(out) + to, peers[k] + from, bytes, received);
    if (static_cast<int>(k) != index()) read += bytes;
  }
  close();
  note_bytes(read);
}

void Communicator::broadcast(void* data, int64_t count, DType dtype, int root_index) {
  check_count("broadcast", count);
  check_root(root_index);
  const size_t bytes = to_size(count) * size_bytes(dtype);
  const bool root = index() == root_index;
  CallInfo info{"broadcast", dtype, {count}, static_cast<uint64_t>(count) * 4096 + static_cast<uint64_t>(root_index)};
  auto peers = open(info, root ? data : nullptr, root ? bytes : 0);
  if (!root) kernels::copy_bytes(data, at_index(peers, root_index), bytes);
  close();
  if (!root) note_bytes(bytes);
}

}  // namespace holon::comm
