#include "holon/graph/program/row_order.h"

#include <algorithm>
#include <numeric>

#include "holon/global/slice.h"

namespace holon::graph {

RowOrder::RowOrder(const Graph& g, int rank) : g_(g), rank_(rank) {
  for (size_t p = 0; p < g.row_parts_of(0).size(); ++p) {
    start_.push_back(all_);
    for (int m = 0; m < g.micro_batches; ++m) all_ += g.row_parts_of(g.variant(m))[p];
  }
}

int64_t RowOrder::rows_of(int m) const {
  auto& parts = g_.row_parts_of(g_.variant(m));
  return std::accumulate(parts.begin(), parts.end(), int64_t{0});
}

std::optional<std::vector<RowPiece>> RowOrder::of(const Value& v, int m) const {
  if (!knows(v)) return std::nullopt;
  // A value may have several rows for each of the batch's, or one for several.
  const int64_t count = v.shape[0], unit = rows_of(m);
  if (unit == 0 || count * all_ % unit) return std::nullopt;
  Dims whole = v.shape;
  whole[0] = count * all_ / unit;
  const int index = v.spec->placement.index_of(rank_);
  const Region own = region_of(v.shape, v.spec->placement, v.spec->nd_sbp, index),
               full = region_of(whole, v.spec->placement, v.spec->nd_sbp, index);
  const int64_t begin = own.offset[0], end = begin + own.shape[0];
  auto& parts = g_.row_parts_of(g_.variant(m));
  std::vector<RowPiece> pieces;
  int64_t at = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    int64_t before = start_[p];
    for (int k = 0; k < m; ++k) before += g_.row_parts_of(g_.variant(k))[p];
    if (parts[p] * count % unit || before * count % unit) return std::nullopt;
    const int64_t rows = parts[p] * count / unit, first = std::max(at, begin), last = std::min(at + rows, end);
    if (first < last) {
      const int64_t to = before * count / unit + first - at - full.offset[0];
      if (to < 0 || to + last - first > full.shape[0]) return std::nullopt;
      if (!pieces.empty() && pieces.back().to + pieces.back().rows == to)
        pieces.back().rows += last - first;
      else
        pieces.push_back({first - begin, to, last - first});
    }
    at += rows;
  }
  return pieces;
}

}  // namespace holon::graph
