#include "holon/models/layout.h"

#include <numeric>
#include <string>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/ops/values.h"

namespace holon::models {

namespace {

// The grid's axes in order; ep and cp have one only if there are several ranks, as each axis makes every choice of sbps
// larger.
int tensor_axis(const Layout& l) { return l.placement.hierarchy().size() - 1; }

}  // namespace

NdSbp Layout::tensor_parallel(int axis) const { return whole.with(tensor_axis(*this), sbp::split(axis)); }

NdSbp Layout::expert_tensor_parallel(int axis) const { return experts.with(tensor_axis(*this), sbp::split(axis)); }

NdSbp Layout::with_positions(const NdSbp& sbp, Sbp positions) const {
  return parallel.cp > 1 ? sbp.with(tensor_axis(*this) - 1, positions) : sbp;
}

std::vector<Layout> Layout::over(const Parallel& p, DType dtype, const std::string& device) {
  for (auto [name, n] : {std::pair{"dp", p.dp}, {"tp", p.tp}, {"pp", p.pp}, {"ep", p.ep}, {"cp", p.cp}})
    if (n < 1) fail_value("models: {} is {}; it is a number of ranks, 1 or more.", name, n);
  const int world = Context::current().world_size();
  if (p.size() != world)
    fail_value("models: dp {} x tp {} x pp {} x ep {}{} are {} ranks; {} are running. Start that many, or choose sizes "
               "whose product is {}.",
               p.dp, p.tp, p.pp, p.ep, p.cp > 1 ? " x cp " + std::to_string(p.cp) : "", p.size(), world, world);
  Dims grid;
  std::vector<Sbp> rows, experts;
  auto add = [&](int64_t ranks, Sbp of_rows, Sbp of_experts) {
    grid.push_back(ranks);
    rows.push_back(of_rows), experts.push_back(of_experts);
  };
  const Sbp whole = sbp::broadcast();
  add(p.dp, sbp::split(0), whole);
  if (p.ep > 1) add(p.ep, sbp::split(0), sbp::split(0));
  if (p.cp > 1) add(p.cp, sbp::split(1), whole);
  add(p.tp, whole, whole);
  const int64_t ranks_of_stage = grid.numel();
  std::vector<Layout> layouts;
  for (int64_t stage = 0; stage < p.pp; ++stage) {
    std::vector<int64_t> ranks(to_size(ranks_of_stage));
    std::iota(ranks.begin(), ranks.end(), stage * ranks_of_stage);
    layouts.push_back({.placement = Placement(device, grid, ranks),
                       .rows = NdSbp(rows),
                       .whole = NdSbp::filled(grid.size(), whole),
                       .experts = NdSbp(experts),
                       .dtype = dtype,
                       .parallel = p});
  }
  return layouts;
}

int64_t stage_of(int64_t layer, int64_t n_layers, const std::vector<Layout>& layouts) {
  return layer * static_cast<int64_t>(layouts.size()) / n_layers;
}

void check_stages(const char* model, int64_t n_layers, const std::vector<Layout>& layouts, bool splits_positions) {
  if (const int64_t cp = layouts.front().parallel.cp; cp > 1 && !splits_positions)
    fail_value("{}: cp is {}; this model does not split positions. Leave cp out, and divide rows by dp or heads by tp.",
               model, cp);
  if (n_layers < static_cast<int64_t>(layouts.size()))
    fail_value("{}: {} layers are fewer than the {} stages of pp. Each stage needs a layer: choose a smaller pp.",
               model, n_layers, layouts.size());
}

void check_divides(const char* model, const char* what, int64_t n, const Layout& layout) {
  if (n % layout.parallel.tp)
    fail_value("{}: tp {} does not divide the {} {}. Choose a tp that does.", model, layout.parallel.tp, n, what);
}

Tensor by_rows(const Tensor& x, const Layout& layout, int64_t rows) {
  const NdSbp& sbp = x.size(0) == 1 && rows != 1 ? layout.with_positions(layout.whole, sbp::split(1)) : layout.rows;
  if (!x.is_global()) return place(x, layout.placement, sbp);
  if (x.placement() == layout.placement && x.nd_sbp() == sbp) return x;
  return x.to_global(layout.placement, sbp);
}

Tensor whole_on_each(const Tensor& x) {
  return x.is_global() ? x.to_global(x.placement(), NdSbp::filled(x.nd_sbp().size(), sbp::broadcast())) : x;
}

Tensor added_up(const Tensor& x, const Layout& layout) { return x.to_global(layout.placement, layout.rows); }

Tensor to_stage(const Tensor& x, const Layout& layout) {
  return x.placement() == layout.placement ? x : x.to_global(layout.placement, layout.rows);
}

}  // namespace holon::models
