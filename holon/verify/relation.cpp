#include "holon/verify/relation.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/global/region_at.h"

namespace holon::verify {

namespace {

// Below this many numbers a multiple may be a coincidence.
constexpr size_t kManyNumbers = 4;

bool near(double a, double b, double tolerance) {
  return a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= tolerance;
}

bool all_near(std::span<const double> found, std::span<const double> expected, double factor, double tolerance) {
  for (size_t i = 0; i < found.size(); ++i)
    if (!near(found[i], factor * expected[i], tolerance)) return false;
  return true;
}

Dims coordinate_of(int64_t index, const Dims& hierarchy) {
  Dims at = Dims::filled(hierarchy.size(), 0);
  for (int a = hierarchy.size() - 1; a >= 0; --a) at[a] = index % hierarchy[a], index /= hierarchy[a];
  return at;
}

// Calls f(place in the part, place in the whole) for the elements of a region.
template <class F>
void for_elements(const Region& region, const Dims& shape, F&& f) {
  const int64_t n = region.shape.numel();
  Dims at = Dims::filled(shape.size(), 0);
  for (int64_t i = 0; i < n; ++i) {
    int64_t where = 0;
    for (int d = 0; d < shape.size(); ++d) where = where * shape[d] + region.offset[d] + at[d];
    f(to_size(i), to_size(where));
    for (int d = shape.size() - 1; d >= 0 && ++at[d] == region.shape[d]; --d) at[d] = 0;
  }
}

}  // namespace

Match match(std::span<const double> found, std::span<const double> expected, double tolerance,
            std::span<const double> numbers, bool only_numbers) {
  Match m;
  if (found.size() != expected.size()) return m;
  double worst = -1, up = 0, down = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double f = found[i], e = expected[i];
    if (!near(f, e, tolerance)) {
      const double by = std::isnan(f - e) ? INFINITY : std::abs(f - e);
      if (by > worst) worst = by, m.element = static_cast<int64_t>(i), m.found = f, m.expected = e;
    }
    if (std::isfinite(f) && std::isfinite(e)) up += f * e, down += e * e;
  }
  if (worst < 0) {
    m.level = Match::Level::kSame;
    return m;
  }
  if (down == 0) return m;
  auto scaled = [&](double factor) {
    if (!all_near(found, expected, factor, tolerance * (1 + std::abs(factor)))) return false;
    m.level = Match::Level::kScaled;
    m.factor = factor;
    return true;
  };
  for (double number : numbers)
    if (scaled(number)) return m;
  const auto distinct =
      static_cast<size_t>(std::count_if(expected.begin(), expected.end(), [&](double e) { return e != 0; }));
  const double factor = up / down;
  // A zero is a multiple of everything.
  if (!only_numbers && distinct >= kManyNumbers && std::abs(factor) > 1e-3) scaled(factor);
  return m;
}

Assembled assemble(std::span<const Value* const> parts) {
  Assembled a;
  const Value* model = nullptr;
  for (const Value* v : parts)
    if (v) model = model ? model : v;
  if (!model || !model->global) return a;
  const Value& m = *model;
  a.value.assign(to_size(m.shape.numel()), 0);
  a.whole = true;
  std::vector<const double*> first(a.value.size(), nullptr);
  for (size_t i = 0; i < m.ranks.size(); ++i) {
    const int rank = m.ranks[i];
    const Value* v = rank < static_cast<int>(parts.size()) ? parts[to_size(rank)] : nullptr;
    const Dims at = coordinate_of(static_cast<int64_t>(i), m.hierarchy);
    const Region region = region_at(m.shape, m.hierarchy, m.nd_sbp, at);
    if (!v || !v->here || v->part_shape != region.shape || v->shape != m.shape) {
      a.whole = false;
      continue;
    }
    // Copies along broadcast axes: the first of each counts.
    size_t copy_of = i;
    Dims origin = at;
    for (int d = 0; d < origin.size(); ++d)
      if (m.nd_sbp[to_size(d)].is_broadcast()) origin[d] = 0;
    if (origin != at) {
      copy_of = 0;
      for (int d = 0; d < origin.size(); ++d) copy_of = copy_of * to_size(m.hierarchy[d]) + to_size(origin[d]);
      const int first_rank = m.ranks[copy_of];
      const Value* o = first_rank < static_cast<int>(parts.size()) ? parts[to_size(first_rank)] : nullptr;
      if (!o || o->part.size() != v->part.size()) continue;
      for (size_t e = 0; e < v->part.size() && a.drifted_rank < 0; ++e)
        if (std::bit_cast<uint64_t>(v->part[e]) != std::bit_cast<uint64_t>(o->part[e]))
          a.drifted_rank = rank, a.drifted_element = static_cast<int64_t>(e), a.first = o->part[e],
          a.other = v->part[e];
      continue;
    }
    for_elements(region, m.shape, [&](size_t in_part, size_t in_whole) { a.value[in_whole] += v->part[in_part]; });
  }
  return a;
}

bool Relation::is_whole() const {
  return interleaved < 0 && !nd_sbp.empty() &&
      std::all_of(nd_sbp.begin(), nd_sbp.end(), [](Sbp s) { return s.is_broadcast(); });
}

bool Relation::is_partial() const {
  return std::any_of(nd_sbp.begin(), nd_sbp.end(), [](Sbp s) { return s.is_partial(); });
}

std::string Relation::str() const {
  if (interleaved >= 0) return fmt::format("every {}th along axis {}", hierarchy.numel(), interleaved);
  std::string list;
  for (Sbp s : nd_sbp) list += (list.empty() ? "" : ", ") + s.str();
  if (nd_sbp.size() > 1) list = "(" + list + ")";
  return mean ? list + ", as a mean" : list;
}

std::vector<double> factors_of(int ranks, std::span<const int64_t> hierarchy) {
  std::vector<double> sizes{static_cast<double>(ranks)};
  for (int64_t h : hierarchy)
    if (h > 1 && h != ranks) sizes.push_back(static_cast<double>(h));
  for (double d : {2.0, 3.0})
    if (ranks > d && std::fmod(ranks, d) == 0) sizes.push_back(d);
  std::vector<double> factors;
  for (double n : sizes)
    if (n > 1)
      for (double f : {n, 1 / n, n * n, 1 / (n * n), std::sqrt(n), 1 / std::sqrt(n), n * n * n})
        if (std::find(factors.begin(), factors.end(), f) == factors.end()) factors.push_back(f);
  return factors;
}

namespace {

// The grids that n ranks can be, a row first.
std::vector<Dims> grids(int n) {
  std::vector<Dims> found{{n}};
  for (int a = 2; a * 2 <= n; ++a)
    if (n % a == 0) found.push_back({a, n / a});
  return found;
}

struct Search {
  std::span<const Value* const> parts;
  const Dims& shape;
  std::span<const double> expected;
  double tolerance;
  std::vector<double> numbers;
  std::optional<Relation> best;

  bool better(const Match& m) const {
    return !best || m.level < best->match.level ||
        (m.level == best->match.level && m.level == Match::Level::kScaled &&
         std::abs(std::log(std::abs(m.factor))) < std::abs(std::log(std::abs(best->match.factor))) - 1e-9);
  }

  void try_layout(const Dims& hierarchy, const std::vector<Sbp>& nd_sbp) {
    std::vector<Value> as_global(parts.size());
    std::vector<const Value*> list(parts.size());
    for (size_t r = 0; r < parts.size(); ++r) {
      const Dims at = coordinate_of(static_cast<int64_t>(r), hierarchy);
      if (region_at(shape, hierarchy, nd_sbp, at).shape != parts[r]->part_shape) return;
    }
    std::vector<double> sum(expected.size(), 0);
    double addends = 1;
    for (size_t a = 0; a < nd_sbp.size(); ++a)
      if (nd_sbp[a].is_partial()) addends *= static_cast<double>(hierarchy[static_cast<int>(a)]);
    for (size_t r = 0; r < parts.size(); ++r) {
      const Dims at = coordinate_of(static_cast<int64_t>(r), hierarchy);
      const Region region = region_at(shape, hierarchy, nd_sbp, at);
      bool copy = false;
      for (int a = 0; a < at.size(); ++a) copy = copy || (nd_sbp[to_size(a)].is_broadcast() && at[a] > 0);
      bool same = true;
      const auto& part = parts[r]->part;
      if (!copy) {
        for_elements(region, shape, [&](size_t i, size_t e) { sum[e] += part[i]; });
        continue;
      }
      Dims origin = at;
      for (int a = 0; a < at.size(); ++a)
        if (nd_sbp[to_size(a)].is_broadcast()) origin[a] = 0;
      size_t first = 0;
      for (int a = 0; a < at.size(); ++a) first = first * to_size(hierarchy[a]) + to_size(origin[a]);
      for (size_t i = 0; i < part.size() && same; ++i) same = near(part[i], parts[first]->part[i], tolerance);
      if (!same) return;
    }
    // Any two tensors add up to something.
    Match m = match(sum, expected, tolerance * addends, numbers, addends > 1);
    bool mean = false;
    if (addends > 1 && m.level == Match::Level::kScaled && std::abs(m.factor - addends) < 1e-6 * addends)
      m.level = Match::Level::kSame, mean = true;
    if (better(m)) best = Relation{m, nd_sbp, hierarchy, mean};
  }

  void all_layouts(const Dims& hierarchy, std::vector<Sbp>& nd_sbp) {
    if (best && best->match.level == Match::Level::kSame) return;
    if (nd_sbp.size() == to_size(hierarchy.size())) return try_layout(hierarchy, nd_sbp);
    auto with = [&](Sbp s) {
      nd_sbp.push_back(s);
      all_layouts(hierarchy, nd_sbp);
      nd_sbp.pop_back();
    };
    with(sbp::broadcast());
    for (int d = 0; d < shape.size(); ++d) with(sbp::split(d));
    with(sbp::partial_sum());
  }

  void interleaved(int axis) {
    const auto n = static_cast<int64_t>(parts.size());
    std::vector<double> value(expected.size());
    for (int64_t r = 0; r < n; ++r) {
      Dims want = shape;
      want[axis] = (shape[axis] - r + n - 1) / n;
      if (parts[to_size(r)]->part_shape != want) return;
      int64_t inner = 1;
      for (int d = axis + 1; d < shape.size(); ++d) inner *= shape[d];
      const auto& part = parts[to_size(r)]->part;
      for (size_t i = 0; i < part.size(); ++i) {
        const int64_t rest = static_cast<int64_t>(i) % inner, row = static_cast<int64_t>(i) / inner % want[axis],
                      outer = static_cast<int64_t>(i) / inner / want[axis];
        value[to_size((outer * shape[axis] + row * n + r) * inner + rest)] = part[i];
      }
    }
    const Match m = match(value, expected, tolerance, numbers);
    if (better(m) && m.level != Match::Level::kDiffers) {
      best = Relation{m, {}, {n}};
      best->interleaved = axis;
    }
  }
};

}  // namespace

std::optional<Relation> relation_of(std::span<const Value* const> parts, const Dims& shape,
                                    std::span<const double> expected, double tolerance) {
  for (const Value* v : parts)
    if (!v || !v->here || v->part_shape.size() != shape.size()) return std::nullopt;
  const int n = static_cast<int>(parts.size());
  Search s{parts, shape, expected, tolerance, factors_of(n, {}), std::nullopt};
  for (const Dims& grid : grids(n)) {
    std::vector<Sbp> nd_sbp;
    s.all_layouts(grid, nd_sbp);
  }
  for (int d = 0; d < shape.size() && n > 1; ++d)
    if (!s.best || s.best->match.level != Match::Level::kSame) s.interleaved(d);
  return s.best;
}

int64_t place_of(std::span<const double> part, const Dims& part_shape, std::span<const double> whole, const Dims& shape,
                 int axis, double tolerance, int64_t from) {
  for (int d = 0; d < shape.size(); ++d)
    if (d != axis && part_shape[d] != shape[d]) return -1;
  int64_t inner = 1;
  for (int d = axis + 1; d < shape.size(); ++d) inner *= shape[d];
  for (int64_t begin = from; begin + part_shape[axis] <= shape[axis]; ++begin) {
    bool same = true;
    for (size_t i = 0; i < part.size() && same; ++i) {
      const int64_t rest = static_cast<int64_t>(i) % inner, row = static_cast<int64_t>(i) / inner % part_shape[axis],
                    outer = static_cast<int64_t>(i) / inner / part_shape[axis];
      same = near(part[i], whole[to_size((outer * shape[axis] + begin + row) * inner + rest)], tolerance);
    }
    if (same) return begin;
  }
  return -1;
}

}  // namespace holon::verify
