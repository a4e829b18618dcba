// Random boxings: any placements of up to eight ranks as threads, hierarchies of up to three axes, any shape and dtype,
// against a tensor that one process holds; and the memory that they take.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "boxing/specs.h"
#include "holon/array/storage.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/boxing/executor.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/regions.h"

namespace holon::boxing {
namespace {

using namespace testing_boxing;

struct Case {
  const GlobalSpec* from;
  const GlobalSpec* to;
  Dims shape;
  DType dtype;
  bool strided;
  std::string str() const { return explain(from, to, shape, dtype); }
};

// Calls f(T()) for the dtype's type.
template <class F>
void with_type(DType dtype, F&& f) {
  visit_dtype(dtype, [&](auto tag) { f(typename decltype(tag)::type()); });
}

// Small enough that eight of them have an exact sum in every dtype.
int64_t noise(int64_t a, int64_t b, DType dtype) {
  uint64_t h = (static_cast<uint64_t>(a) * 0x9e3779b97f4a7c15ull) ^ (static_cast<uint64_t>(b) + 0x7f4a7c15ull);
  h = ((h ^ (h >> 31)) * 0xbf58476d1ce4e5b9ull) >> 40;
  return dtype == DType::kBool ? static_cast<int64_t>(h % 3 == 0) : static_cast<int64_t>(h % 13) - 6;
}
// The last addend: what makes the sum of `places` the element's value.
int64_t addend(int64_t element, int64_t place, int64_t places, DType dtype) {
  if (place < places - 1) return noise(element, place, dtype);
  int64_t v = noise(element, 1000, dtype);
  for (int64_t q = 0; q < place; ++q) dtype == DType::kBool ? v : v -= noise(element, q, dtype);
  return v;
}
int64_t value_of(int64_t element, int64_t places, DType dtype) {
  int64_t v = 0;
  for (int64_t q = 0; q < places; ++q) v += addend(element, q, places, dtype);
  return dtype == DType::kBool ? v != 0 : dtype == DType::kUInt8 ? v & 255 : v;
}

int64_t places_of(const GlobalSpec& s, int index, int64_t* place) {
  Dims at = s.placement.coordinate(index);
  int64_t places = 1;
  *place = 0;
  for (int a = 0; a < at.size(); ++a)
    if (s.nd_sbp[a].is_partial()) {
      *place = *place * s.placement.hierarchy()[a] + at[a];
      places *= s.placement.hierarchy()[a];
    }
  return places;
}

// The logical index of each element of a slice, in order.
std::vector<int64_t> elements_of(const Dims& shape, const Region& slice) {
  std::vector<int64_t> list(static_cast<size_t>(slice.shape.numel()));
  Dims strides = contiguous_strides(shape);
  for (size_t i = 0; i < list.size(); ++i) {
    auto rest = static_cast<int64_t>(i);
    for (int a = shape.size() - 1; a >= 0; --a) {
      list[i] += (slice.offset[a] + rest % slice.shape[a]) * strides[a];
      rest /= slice.shape[a];
    }
  }
  return list;
}

Array part_of(const Case& c, int rank) {
  int index = c.from->placement.index_of(rank);
  if (index < 0) return {};
  Region slice = region_of(c.shape, c.from->placement, c.from->nd_sbp, index);
  int64_t place, places = places_of(*c.from, index, &place);
  auto elements = elements_of(c.shape, slice);
  Array flat = Array::empty(slice.shape, c.dtype), a = flat;
  with_type(c.dtype, [&](auto t) {
    using T = decltype(t);
    for (size_t i = 0; i < elements.size(); ++i)
      flat.data<T>()[i] = static_cast<T>(static_cast<double>(addend(elements[i], place, places, c.dtype)));
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      for (size_t i = 0; i < elements.size(); ++i)
        flat.data<T>()[i] = static_cast<T>(addend(elements[i], place, places, c.dtype));
  });
  if (!c.strided) return a;
  Dims strides;
  int64_t step = 2;
  for (int64_t n : slice.shape) strides.push_back(step), step *= std::max<int64_t>(n, 1);
  a = Array::empty({step + 3}, c.dtype).view(slice.shape, strides, 3);
  kernels::copy_region(a.bytes(), a.strides, flat.bytes(), flat.strides, a.shape,
                       static_cast<int64_t>(size_bytes(c.dtype)));
  return a;
}

std::vector<int64_t> numbers(const Array& part) {
  Array flat = kernels::contiguous(part);
  std::vector<int64_t> list(static_cast<size_t>(flat.numel()));
  with_type(flat.dtype, [&](auto t) {
    using T = decltype(t);
    for (size_t i = 0; i < list.size(); ++i) {
      if constexpr (std::is_integral_v<T>)
        list[i] = static_cast<int64_t>(flat.data<T>()[i]);
      else
        list[i] = static_cast<int64_t>(static_cast<double>(flat.data<T>()[i]));
    }
  });
  return list;
}

// Empty if the parts make up the tensor, else what is wrong.
std::string wrong(const Case& c, const std::vector<Array>& parts) {
  auto& to = *c.to;
  int64_t place;
  const int64_t places = places_of(*c.from, 0, &place);
  std::map<std::vector<int64_t>, std::pair<int, std::vector<int64_t>>> sums;  // by the coordinates that are not of P
  for (int rank = 0; rank < static_cast<int>(parts.size()); ++rank) {
    auto& part = parts[static_cast<size_t>(rank)];
    int index = to.placement.index_of(rank);
    if (index < 0) {
      if (part.defined()) return fmt::format("rank {} is outside and has a part", rank);
      continue;
    }
    Dims shape = region_of(c.shape, to.placement, to.nd_sbp, index).shape;
    if (!part.defined() || !(part.shape == shape) || part.dtype != c.dtype)
      return fmt::format("rank {} should have a part of {}", rank, shape);
    Dims at = to.placement.coordinate(index);
    std::vector<int64_t> key;
    for (int a = 0; a < at.size(); ++a)
      if (!to.nd_sbp[a].is_partial()) key.push_back(at[a]);
    auto& [first, sum] =
        sums.try_emplace(key, index, std::vector<int64_t>(static_cast<size_t>(shape.numel()))).first->second;
    auto mine = numbers(part);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += mine[i];
  }
  for (auto& [key, entry] : sums) {
    auto& [index, sum] = entry;
    auto elements = elements_of(c.shape, region_of(c.shape, to.placement, to.nd_sbp, index));
    for (size_t i = 0; i < sum.size(); ++i) {
      int64_t got = c.dtype == DType::kBool ? sum[i] != 0 : c.dtype == DType::kUInt8 ? sum[i] & 255 : sum[i];
      int64_t expected = value_of(elements[i], places, c.dtype);
      if (got != expected)
        return fmt::format("element {} at place {} is {}, not {}", elements[i], index, got, expected);
    }
  }
  return {};
}

// int8 and uint8 wrap; the others' sums are small.
bool same_bytes(const Array& a, const Array& b) {
  Array x = kernels::contiguous(a), y = kernels::contiguous(b);
  return x.nbytes() == y.nbytes() && std::memcmp(x.bytes(), y.bytes(), x.nbytes()) == 0;
}

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  const GlobalSpec* spec(int world, int tensor_axes) {
    Dims grid;
    int64_t ranks = 1;
    for (int64_t axes = 1 + below(3), a = 0; a < axes; ++a) {
      int64_t n = 1 + below(world / ranks);
      if (a + 1 == axes && below(2)) n = world / ranks;
      grid.push_back(n);
      ranks *= n;
    }
    std::vector<int64_t> list(static_cast<size_t>(world));
    std::iota(list.begin(), list.end(), 0);
    if (below(2)) std::shuffle(list.begin(), list.end(), random_);
    list.resize(static_cast<size_t>(ranks));
    return on(Placement("cpu", grid, list), tensor_axes);
  }
  const GlobalSpec* on(const Placement& p, int tensor_axes) {
    std::vector<Sbp> sbps;
    auto options = options_of(tensor_axes);
    for (int a = 0; a < p.hierarchy().size(); ++a)
      sbps.push_back(options[static_cast<size_t>(below(static_cast<int64_t>(options.size())))]);
    return intern_spec(p, NdSbp(sbps));
  }
  Case boxing(int world) {
    constexpr int64_t kSizes[] = {0, 1, 1, 2, 3, 4, 5, 7, 8, 13, 17};
    Case c{};
    for (int64_t axes = below(5); axes > 0; --axes) c.shape.push_back(kSizes[below(11)]);
    if (below(8) == 0) c.shape = {61, 97};  // above what travels inside of messages
    c.from = spec(world, c.shape.size());
    c.to = below(3) ? on(c.from->placement, c.shape.size()) : spec(world, c.shape.size());
    c.dtype = static_cast<DType>(below(kComputedDTypeCount));
    c.strided = below(4) == 0;
    return c;
  }

 private:
  std::mt19937 random_;
};

class RandomTest : public testing::Test {
 protected:
  Context context_{0, 8, 0, 8};
  ContextGuard guard_{context_};
};

TEST_F(RandomTest, AnyBoxingGivesTheTensorAndReadsWhatIsPlanned) {
  for (int world : {1, 2, 3, 4, 6, 8}) {
    Draw draw(static_cast<unsigned>(100 + world));
    std::vector<Case> cases;
    for (int i = 0; i < 220; ++i) cases.push_back(draw.boxing(world));
    std::vector<std::vector<Array>> parts(cases.size(), std::vector<Array>(static_cast<size_t>(world)));
    std::vector<std::string> complaints(static_cast<size_t>(world));
    comm::run_ranks(world, [&](int rank) {
      auto& complaint = complaints[static_cast<size_t>(rank)];
      for (size_t i = 0; i < cases.size(); ++i) {
        auto& c = cases[i];
        Array in = part_of(c, rank);
        auto before = comm::stats().bytes_read;
        Array out = redistribute(c.from, c.to, c.shape, c.dtype, in);
        auto read = static_cast<int64_t>(comm::stats().bytes_read - before);
        int64_t planned = plan(c.from, c.to, c.shape, c.dtype).read_bytes(rank), linked = 0;
        for (auto& link : plan(c.from, c.to, c.shape, c.dtype).links()) linked += link.to == rank ? link.bytes : 0;
        if (complaint.empty() && (read != planned || linked != planned))
          complaint = fmt::format("rank {} has read {} bytes, of {} planned and {} in links: {}", rank, read, planned,
                                  linked, c.str());
        if (complaint.empty() && in.defined() && !same_bytes(in, part_of(c, rank)))
          complaint = fmt::format("the input of rank {} has changed: {}", rank, c.str());
        parts[i][static_cast<size_t>(rank)] = std::move(out);
      }
    });
    for (auto& text : complaints) EXPECT_EQ(text, "");
    int failures = 0;
    for (size_t i = 0; i < cases.size() && failures < 5; ++i) {
      std::string text = wrong(cases[i], parts[i]);
      if (text.empty()) continue;
      ++failures;
      ADD_FAILURE() << text << " of " << world << " ranks\n" << cases[i].str();
    }
  }
}

// The process's memory grows by no more than the plans of its ranks say, which the bound of the design limits.
TEST_F(RandomTest, NoPairTakesMoreMemoryThanItsPlanSays) {
  auto specs = all_specs(Placement::nested("cpu", {{0, 1}, {2, 3}}), options_of(2));
  for (auto* s : all_specs(Placement("cpu", {1, 2}), options_of(2))) specs.push_back(s);
  const Dims shape = {96, 160};
  const int64_t slack = 64 << 10;  // rounding, and what communicators take
  std::vector<std::string> complaints;
  comm::run_ranks(4, [&](int rank) {
    const int all[] = {0, 1, 2, 3};
    auto& world = comm::communicator(all);
    for (auto* from : specs)
      for (auto* to : specs) {
        if (from == to) continue;
        Case c{from, to, shape, float32, false};
        Plan p = plan(from, to, shape, float32);
        for (size_t s = 0; s < p.steps().size(); ++s)
          if (p.steps()[s].communicates() && (from->placement.contains(rank) || to->placement.contains(rank)))
            p.transfer(s, rank);
        Array in = part_of(c, rank);
        world.barrier();
        if (rank == 0) reset_peak_memory();
        const auto before = static_cast<int64_t>(memory_stats().in_use_bytes);
        world.barrier();
        Array out = redistribute(from, to, shape, float32, in);
        world.barrier();
        if (rank == 0) {
          auto grown = static_cast<int64_t>(memory_stats().peak_bytes) - before;
          // Blocks are up to a quarter larger than what is asked for.
          if (grown > p.peak_bytes() * 4 * 5 / 4 + slack)
            complaints.push_back(
                fmt::format("{} bytes more at once, {} planned on each rank: {}", grown, p.peak_bytes(), p));
        }
        auto part = [&](const GlobalSpec* s) { return region_of(shape, s->placement, s->nd_sbp, 0).shape.numel() * 4; };
        if (rank == 0 && p.between_bytes() > std::max(part(from), part(to)))
          complaints.push_back(fmt::format("{} bytes between the ends: {}", p.between_bytes(), p));
        world.barrier();
      }
  });
  for (size_t i = 0; i < complaints.size() && i < 5; ++i) ADD_FAILURE() << complaints[i];
}

}  // namespace
}  // namespace holon::boxing
