#include "holon/optim/over_ranks.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/kernels/on_device.h"
#include "holon/tensor/tensor.h"
#include "holon/tensor/tracer.h"

namespace holon::optim {

namespace {

double nothing(Combine how) { return how == Combine::kSmallest ? std::numeric_limits<double>::infinity() : 0; }

double add(Combine how, double a, double b) {
  if (how == Combine::kSum) return a + b;
  return b != b || (how == Combine::kLargest ? b > a : b < a) ? b : a;
}

}  // namespace

bool counts_once(const GlobalSpec& spec, int index) {
  Dims at = spec.placement.coordinate(index);
  for (int d = 0; d < spec.nd_sbp.size(); ++d)
    if (!spec.nd_sbp[d].is_split() && at[d] != 0) return false;
  return true;
}

void combine_over_ranks(std::span<const GlobalSpec* const> specs, int width, Combine how, bool everywhere,
                        std::span<double> values) {
  const Context& context = Context::current();
  // Placements in the order of first use, so that every rank talks about them in the same order.
  std::vector<std::pair<Placement, std::vector<size_t>>> by_placement;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!specs[i]) continue;
    HOLON_CHECK(!specs[i]->nd_sbp.has_partial(), "numbers about addends do not add up");
    const Placement& p = specs[i]->placement;
    // Every rank that needs the number has it already.
    if (specs[i]->nd_sbp.is_broadcast() && (!everywhere || p.size() == context.world_size())) continue;
    auto it = std::find_if(by_placement.begin(), by_placement.end(), [&](auto& e) { return e.first == p; });
    if (it == by_placement.end()) it = by_placement.insert(by_placement.end(), {p, {}});
    it->second.push_back(i);
  }
  NoGradGuard guard;
  const auto w = to_size(width);
  for (auto& [placement, which] : by_placement) {
    const int64_t n = static_cast<int64_t>(which.size() * w), ranks = placement.size();
    const int index = placement.index_of(context.rank());
    Placement row("cpu", std::vector<int64_t>(placement.ranks().begin(), placement.ranks().end()));
    Array part;
    if (index >= 0) {
      part = Array::empty({1, n}, float64);
      for (size_t k = 0; k < which.size(); ++k)
        for (size_t j = 0; j < w; ++j)
          part.data<double>()[k * w + j] =
              counts_once(*specs[which[k]], index) ? values[which[k] * w + j] : nothing(how);
      part = kernels::on_device(part, row.device());
    }
    Tensor all = Tensor::global(part, {ranks, n}, float64, intern_spec(row, sbp::split(0)));
    if (!everywhere)
      all = all.to_global(row, sbp::broadcast());
    else if (tracer())
      all = all.to_global(Placement::all("cpu"), sbp::broadcast());  // as full() does, where there are values
    else
      all = all.full();
    if (!all.array().defined() || all.array().is_placeholder()) continue;
    const Array totals = kernels::on_device(all.array(), {});
    const double* found = totals.data<double>();
    for (size_t k = 0; k < which.size(); ++k)
      for (size_t j = 0; j < w; ++j) {
        double total = nothing(how);
        for (int64_t r = 0; r < ranks; ++r) total = add(how, total, found[r * n + static_cast<int64_t>(k * w + j)]);
        values[which[k] * w + j] = total;
      }
  }
}

}  // namespace holon::optim
