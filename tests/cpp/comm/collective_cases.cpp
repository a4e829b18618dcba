#include "tests/cpp/comm/collective_cases.h"

#include <cstring>
#include <numeric>
#include <vector>

#include "holon/array/storage.h"
#include "holon/base/error.h"

namespace holon::comm::test {

namespace {

// Element i of rank r's input: small whole numbers, so that sums are exact in every dtype that is not bool.
int value_of(int rank, int64_t i) { return static_cast<int>((static_cast<int64_t>(rank + 1) * 3 + i) % 5); }

// A buffer of elements, in memory that peers reach (shared) or not.
class Buffer {
 public:
  Buffer(int64_t count, DType dtype, bool shared)
      : dtype_(dtype), bytes_(static_cast<size_t>(count) * size_bytes(dtype)), shared_(shared) {
    if (shared_)
      block_ = allocate_block(bytes_ + 1);
    else
      own_.resize(bytes_ + 1);
    std::memset(data(), 0x5a, bytes_);
  }
  ~Buffer() {
    if (shared_) free_block(block_, bytes_ + 1);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() { return shared_ ? static_cast<std::byte*>(block_) : own_.data(); }

  void set(int64_t i, int v) {
    visit_dtype(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      reinterpret_cast<T*>(data())[i] = static_cast<T>(static_cast<float>(v));
    });
  }
  double get(int64_t i) {
    return visit_dtype(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      return static_cast<double>(reinterpret_cast<T*>(data())[i]);
    });
  }
  void expect(const char* what, int64_t i, int v) {
    double wanted = dtype_ == boolean ? v != 0 : v;
    if (get(i) != wanted)
      fail_runtime("{} {}: element {} is {} and should be {}", what, name(dtype_), i, get(i), wanted);
  }

 private:
  DType dtype_;
  size_t bytes_;
  bool shared_;
  void* block_ = nullptr;
  std::vector<std::byte> own_;
};

void check_all_reduce(Communicator& g, DType dtype, int64_t count, bool shared, bool in_place) {
  Buffer in(count, dtype, shared), other(count, dtype, shared);
  Buffer& out = in_place ? in : other;
  int me = g.ranks()[static_cast<size_t>(g.index())];
  for (int64_t i = 0; i < count; ++i) in.set(i, value_of(me, i));
  g.all_reduce(in.data(), out.data(), count, dtype);
  for (int64_t i = 0; i < count; ++i) {
    int sum = 0;
    for (int r : g.ranks()) sum += value_of(r, i);
    out.expect("all_reduce", i, sum);
  }
}

void check_uneven(Communicator& g, DType dtype, int64_t scale, bool shared) {
  const int n = g.size();
  const int me = g.ranks()[static_cast<size_t>(g.index())];
  // Member k has (k mod 3) * scale + k elements: the first has none.
  std::vector<int64_t> counts(static_cast<size_t>(n));
  for (int k = 0; k < n; ++k) counts[static_cast<size_t>(k)] = (k % 3) * scale + k;
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0}),
                mine = counts[static_cast<size_t>(g.index())];
  {
    Buffer in(all, dtype, shared), out(mine, dtype, shared);
    for (int64_t i = 0; i < all; ++i) in.set(i, value_of(me, i));
    g.reduce_scatter(in.data(), out.data(), counts, dtype);
    int64_t begin = std::accumulate(counts.begin(), counts.begin() + g.index(), int64_t{0});
    for (int64_t i = 0; i < mine; ++i) {
      int sum = 0;
      for (int r : g.ranks()) sum += value_of(r, begin + i);
      out.expect("reduce_scatter", i, sum);
    }
  }
  {
    Buffer in(mine, dtype, shared), out(all, dtype, shared);
    for (int64_t i = 0; i < mine; ++i) in.set(i, value_of(me, i));
    g.all_gather(in.data(), out.data(), counts, dtype);
    int64_t at = 0;
    for (int k = 0; k < n; ++k)
      for (int64_t i = 0; i < counts[static_cast<size_t>(k)]; ++i)
        out.expect("all_gather", at++, value_of(g.ranks()[static_cast<size_t>(k)], i));
  }
  {
    // Member i sends (i + k) mod 2 * scale + i elements to member k.
    auto sent = [&](int i, int k) { return (i + k) % 2 * scale + i; };
    std::vector<int64_t> send(static_cast<size_t>(n)), recv(static_cast<size_t>(n));
    for (int k = 0; k < n; ++k)
      send[static_cast<size_t>(k)] = sent(g.index(), k), recv[static_cast<size_t>(k)] = sent(k, g.index());
    const int64_t to_send = std::accumulate(send.begin(), send.end(), int64_t{0});
    const int64_t to_recv = std::accumulate(recv.begin(), recv.end(), int64_t{0});
    Buffer in(to_send, dtype, shared), out(to_recv, dtype, shared);
    for (int64_t i = 0; i < to_send; ++i) in.set(i, value_of(me, i));
    g.all_to_all(in.data(), out.data(), send, recv, dtype);
    int64_t at = 0;
    for (int k = 0; k < n; ++k) {
      int64_t begin = 0;
      for (int j = 0; j < g.index(); ++j) begin += sent(k, j);
      for (int64_t i = 0; i < recv[static_cast<size_t>(k)]; ++i)
        out.expect("all_to_all", at++, value_of(g.ranks()[static_cast<size_t>(k)], begin + i));
    }
  }
}

}  // namespace

void check_collectives(Communicator& g, DType dtype) {
  const int64_t border = static_cast<int64_t>(Communicator::kInlineBytes / size_bytes(dtype));
  g.barrier();
  for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{7}, border, border + 1, 3 * border + 5})
    for (bool in_place : {false, true}) check_all_reduce(g, dtype, count, count % 2 == 0, in_place);
  check_uneven(g, dtype, 0, true);
  check_uneven(g, dtype, 5, false);
  check_uneven(g, dtype, border + 3, true);
  check_uneven(g, dtype, border + 3, false);
  for (int root = 0; root < g.size(); ++root)
    for (int64_t count : {int64_t{0}, int64_t{9}, border + 9}) {
      Buffer data(count, dtype, root % 2 == 0);
      for (int64_t i = 0; i < count; ++i) data.set(i, value_of(g.ranks()[static_cast<size_t>(g.index())], i));
      g.broadcast(data.data(), count, dtype, root);
      for (int64_t i = 0; i < count; ++i)
        data.expect("broadcast", i, value_of(g.ranks()[static_cast<size_t>(root)], i));
    }
  for (size_t bytes : {size_t{0}, size_t{8}, size_t{5000}}) {
    std::vector<char> mine(bytes + 1, static_cast<char>('a' + g.index())),
        out(bytes * static_cast<size_t>(g.size()) + 1);
    g.all_gather_bytes({"test"}, mine.data(), bytes, out.data());
    for (size_t i = 0; i < bytes * static_cast<size_t>(g.size()); ++i)
      if (out[i] != static_cast<char>('a' + i / bytes)) fail_runtime("all_gather_bytes: byte {} is {}", i, int{out[i]});
  }
}

void check_subgroups(int rank, int world_size) {
  for (int a = 0; a < world_size; ++a)
    for (int b = a + 1; b < world_size; ++b)
      if (rank == a || rank == b) {
        int pair[] = {a, b};
        auto& g = communicator(pair);
        int64_t mine = rank, both[2];
        g.all_gather_bytes({"pair", int64}, &mine, sizeof mine, both);
        if (both[0] != a || both[1] != b) fail_runtime("the pair {}, {} got {} and {}", a, b, both[0], both[1]);
      }
  if (world_size > 2 && rank != 1) {
    std::vector<int> others;
    for (int r = 0; r < world_size; ++r)
      if (r != 1) others.push_back(r);
    check_collectives(communicator(others), float32);
  }
  std::vector<int> reversed(static_cast<size_t>(world_size));
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  auto& g = communicator(reversed);
  if (g.index() != world_size - 1 - rank) fail_runtime("index {} of rank {} in the reversed group", g.index(), rank);
  check_collectives(g, int64);
}

void check_byte_counts(Communicator& g) {
  const auto n = static_cast<size_t>(g.size());
  auto expect = [](const char* what, const CommStats& before, uint64_t calls, uint64_t bytes) {
    const CommStats& now = stats();
    if (now.calls - before.calls != calls || now.bytes_read - before.bytes_read != bytes)
      fail_runtime("{}: {} calls and {} bytes were counted, expected {} and {}", what, now.calls - before.calls,
                   now.bytes_read - before.bytes_read, calls, bytes);
  };
  std::vector<float> in(n * 4096, 1), out(n * 4096);
  CommStats before = stats();
  g.all_reduce(in.data(), out.data(), 10, float32);
  expect("small all_reduce", before, 1, (n - 1) * 40);
  before = stats();
  // n equal stretches: n - 1 peers' parts of one's own, and n - 1 sums.
  g.all_reduce(in.data(), out.data(), static_cast<int64_t>(n * 2048), float32);
  expect("large all_reduce", before, 1, 2 * (n - 1) * 2048 * 4);
  std::vector<int64_t> counts(n, 2048);
  before = stats();
  g.all_gather(in.data(), out.data(), counts, float32);
  expect("all_gather", before, 1, (n - 1) * 2048 * 4);
  before = stats();
  g.reduce_scatter(in.data(), out.data(), counts, float32);
  expect("reduce_scatter", before, 1, (n - 1) * 2048 * 4);
  before = stats();
  g.barrier();
  expect("barrier", before, 1, 0);
}

}  // namespace holon::comm::test
