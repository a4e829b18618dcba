#include "holon/comm/core/communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/small_vec.h"
#include "holon/comm/core/factory.h"
#include "holon/comm/core/row_pulls.h"
#include "holon/comm/core/world.h"

namespace holon::comm {

namespace {

const Factory* factory = nullptr;

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
  std::string refused;  // why there is none
  int channel = 0;
  std::map<std::vector<int>, std::unique_ptr<Communicator>, SpanLess> communicators;
};

CommPart& part() { return Context::current().part<CommPart>(); }

int64_t total(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

uint64_t hash_counts(std::span<const int64_t> counts) { return hash_bytes(counts.data(), counts.size_bytes()); }

void check_count(const char* op, int64_t count) {
  if (count < 0) fail_value("{}: the count is {}; it must be 0 or more.", op, count);
}

}  // namespace

void set_factory(const Factory& made) { factory = &made; }

World& world() {
  CommPart& p = part();
  if (p.world && p.world->size() > 1) p.world->require_own("a group of several ranks");
  if (!p.world) [[unlikely]] {
    if (!p.refused.empty()) fail_runtime("{}", p.refused);
    Context& c = Context::current();
    if (c.world_size() > 1 && !c.ranks_are_threads() && !forked_from().empty()) fail_forked("a group of several ranks");
    HOLON_CHECK(!c.ranks_are_threads(), "a rank that is a thread has no world");
    // One thread of a process communicates, the first that does so: the others' calls would mix with its own.
    static std::atomic<const Context*> communicates{nullptr};
    const Context* none = nullptr;
    if (c.world_size() > 1 && !communicates.compare_exchange_strong(none, &c) && none != &c)
      fail_runtime("a second thread of {} communicates. Hand it the rank: create a ContextHandoff in the thread that "
                   "communicates and enter() it in this one; or communicate there.",
                   rank_text());
    p.world = factory->make_world(c);
  }
  return *p.world;
}

void adopt_world(std::shared_ptr<World> w) { part().world = std::move(w); }
void refuse_world(std::string why) { part().refused = std::move(why); }

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
  const auto index = static_cast<int>(mine - ranks.begin());
  auto made = factory->make_communicator({key, index, p.stats, p.site, p.channel});
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

void Communicator::check_counts(const char* op, std::span<const int64_t> counts) const {
  if (counts.size() != to_size(size()))
    fail_value("{}: {} counts were given for a group of {} ranks; give one for each.", op, counts.size(), size());
  for (int64_t c : counts)
    if (c < 0) fail_value("{}: a count is {}; counts must be 0 or more.", op, c);
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

namespace {

// What a transport gets is a copy of RowPulls, which are small: nobody else sees the ones that a collective has made,
// so that the compiler knows their kind throughout.
const GroupPulls& for_transport(const GroupPulls& pulls) { return pulls; }
RowPulls for_transport(const RowPulls& pulls) { return pulls; }

}  // namespace

template <class Pulls>
[[gnu::always_inline]] inline void Communicator::pull_these(const CallInfo& info, const Pulls& pulls, const void* in,
                                                            size_t in_bytes, void* out, size_t out_bytes) {
  if (reads_peers_) {
    auto* result = static_cast<std::byte*>(out);
    pulls.run(0, info.dtype, open(info, in, in_bytes), result, out_bytes);
    if (const int phases = pulls.phases(); phases > 1) {
      CallInfo next = info;
      next.continues = true;
      for (int phase = 1; phase < phases; ++phase)
        pulls.run(phase, info.dtype, open(next, out, out_bytes), result, out_bytes);
    }
    close();
  } else {
    do_pull(info, for_transport(pulls), in, in_bytes, out, out_bytes);
  }
  if (const int64_t elements = pulls.elements_read(index_)) note_bytes(to_size(elements) * size_bytes(info.dtype));
}

void Communicator::pull(const CallInfo& info, const GroupPulls& pulls, const void* in, size_t in_bytes, void* out,
                        size_t out_bytes) {
  pull_these(info, pulls, in, in_bytes, out, out_bytes);
}

void Communicator::do_pull(const CallInfo&, const GroupPulls&, const void*, size_t, void*, size_t) {
  HOLON_CHECK(false, "the group {} can neither read its members' buffers nor pull otherwise", ranks_text(ranks()));
}

void Communicator::all_reduce(const void* in, void* out, int64_t count, DType dtype) {
  check_count("all_reduce", count);
  const size_t bytes = to_size(count) * size_bytes(dtype);
  pull_these({"all_reduce", dtype, {count}, static_cast<uint64_t>(count)},
             RowPulls(RowPulls::Kind::kAllReduce, size(), index_, {&count, 1}, dtype), in, bytes, out, bytes);
}

void Communicator::reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype) {
  check_counts("reduce_scatter", counts);
  const size_t unit = size_bytes(dtype);
  const int64_t count = total(counts);
  pull_these({"reduce_scatter", dtype, {count}, hash_counts(counts)},
             RowPulls(RowPulls::Kind::kReduceScatter, size(), index_, counts, dtype), in, to_size(count) * unit, out,
             to_size(at_index(counts, index_)) * unit);
}

void Communicator::all_gather(const void* in, void* out, std::span<const int64_t> counts, DType dtype) {
  check_counts("all_gather", counts);
  const size_t unit = size_bytes(dtype);
  const int64_t mine = at_index(counts, index_);
  pull_these({"all_gather", dtype, {mine}, hash_counts(counts)},
             RowPulls(RowPulls::Kind::kAllGather, size(), index_, counts, dtype), in, to_size(mine) * unit, out,
             to_size(total(counts)) * unit);
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
  const auto sent = exchange_counts(send_counts, recv_counts, dtype);
  const size_t unit = size_bytes(dtype);
  const int64_t count = total(send_counts);
  pull_these({"all_to_all", dtype, {count}, 0, true}, RowPulls(RowPulls::Kind::kAllToAll, size(), index_, sent, dtype),
             in, to_size(count) * unit, out, to_size(total(recv_counts)) * unit);
}

void Communicator::broadcast(void* data, int64_t count, DType dtype, int root_index) {
  check_count("broadcast", count);
  if (root_index < 0 || root_index >= size())
    fail_value("broadcast: the root is member {} of a group of {} ranks; members are counted from 0.", root_index,
               size());
  const size_t bytes = to_size(count) * size_bytes(dtype);
  const bool root = index_ == root_index;
  const int64_t counts[] = {count, root_index};
  pull_these({"broadcast", dtype, {count}, static_cast<uint64_t>(count) * 4096 + static_cast<uint64_t>(root_index)},
             RowPulls(RowPulls::Kind::kBroadcast, size(), index_, counts, dtype), root ? data : nullptr,
             root ? bytes : 0, data, bytes);
}

}  // namespace holon::comm
