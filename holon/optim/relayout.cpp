#include "holon/optim/relayout.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "holon/array/storage.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/boxing/executor.h"
#include "holon/boxing/planner.h"
#include "holon/comm/core/communicator.h"
#include "holon/global/slice.h"
#include "holon/kernels/copy.h"
#include "holon/tensor/replace_value.h"
#include "holon/tensor/tracer.h"

namespace holon::optim {

namespace {

// Blocks of sizes that are not in use any more are given back to the system above this.
constexpr size_t kMostCached = size_t{32} << 20;

struct Item {
  std::string name;
  Tensor tensor;
  const GlobalSpec* to;
};

const GlobalSpec* spec_for(const std::string& name, const Tensor& t, const Layout& layout) {
  if (!t.is_global())
    fail_value("relayout: '{}' {} is local and has no layout to change from. Make it global by to_global() first, or "
               "give it no layout.",
               name, t.shape());
  const int n = layout.placement.hierarchy().size();
  NdSbp sbp = layout.sbp.size() == 1 ? NdSbp::filled(n, layout.sbp[0]) : layout.sbp;
  if (sbp.size() != n || sbp.has_partial())
    fail_value(
        "relayout: the sbp {} of '{}' does not fit {}. Give a split or broadcast for each axis of its hierarchy.",
        layout.sbp, name, layout.placement);
  for (int a = 0; a < n; ++a)
    if (sbp[a].is_split() && sbp[a].axis >= t.shape().size()) sbp = sbp.with(a, sbp::broadcast());
  return intern_spec(layout.placement, sbp);
}

// Errors: the ranks would move different tensors. Collective over the world.
void check_alike(const std::vector<Item>& items) {
  const auto ranks = Placement::all("cpu").ranks();
  if (ranks.size() < 2) return;
  std::vector<int> world(ranks.begin(), ranks.end());
  std::string all;
  for (auto& item : items)
    all += fmt::format("{} {} {} {} {}\n", item.name, name(item.tensor.dtype()), item.tensor.shape(),
                       item.tensor.spec()->str(), item.to->str());
  struct Sum {
    uint64_t hash, items;
    bool operator==(const Sum&) const = default;
  };
  const Sum mine{hash_text(all), items.size()};
  std::vector<Sum> sums(world.size());
  comm::communicator(world).all_gather_bytes({"relayout"}, &mine, sizeof mine, sums.data());
  for (size_t r = 0; r < sums.size(); ++r)
    if (sums[r] != sums[0])
      fail_value(
          "relayout: ranks 0 and {} move different tensors ({} and {}), or to different layouts. Call it with the "
          "same objects and layouts on every rank.",
          r, sums[0].items, sums[r].items);
}

// What each rank of the world holds of a tensor before and after, in bytes. A part that stays as it is counts nothing.
struct Parts {
  std::vector<int64_t> before, after;
};

Parts parts_of(const Item& item) {
  const Tensor& t = item.tensor;
  const auto bytes = static_cast<int64_t>(size_bytes(t.dtype()));
  Parts parts;
  for (int r = 0; r < Context::current().world_size(); ++r) {
    auto region = [&](const GlobalSpec& spec) {
      const int at = spec.placement.index_of(r);
      return at < 0 ? Region{} : region_of(t.shape(), spec.placement, spec.nd_sbp, at);
    };
    const bool before = t.placement().contains(r), after = item.to->placement.contains(r);
    const Region from = region(*t.spec()), to = region(*item.to);
    const bool stays = before && after && from == to;
    parts.before.push_back(before && !stays ? from.shape.numel() * bytes : 0);
    parts.after.push_back(after && !stays ? to.shape.numel() * bytes : 0);
  }
  return parts;
}

// Tensors that are alike, of which there are few kinds.
struct Kind {
  Parts parts;
  boxing::Plan plan;
  std::vector<size_t> items;  // that have not been moved
};

// The order in which ranks hold the least. Of those tensors whose new parts fit into what has become free, the largest
// is next, as the slack that is there at the beginning (where ranks hold more in the end) is best used for the large
// ones; where none fits, that which exceeds least, meanwhile and afterwards.
class Order {
 public:
  explicit Order(const std::vector<Item>& items) {
    std::map<std::tuple<const GlobalSpec*, const GlobalSpec*, std::vector<int64_t>, DType>, size_t> known;
    for (size_t i = 0; i < items.size(); ++i) {
      const Tensor& t = items[i].tensor;
      const std::vector<int64_t> shape(t.shape().begin(), t.shape().end());
      auto [it, is_new] = known.try_emplace({t.spec(), items[i].to, shape, t.dtype()}, kinds_.size());
      if (is_new)
        kinds_.push_back({parts_of(items[i]), boxing::direct_plan(t.spec(), items[i].to, t.shape(), t.dtype()), {}});
      kinds_[it->second].items.push_back(i);
    }
    slack_.resize(to_size(Context::current().world_size()));
    for (size_t r = 0; r < slack_.size(); ++r) {
      int64_t more = 0;
      for (auto& k : kinds_) more += (k.parts.after[r] - k.parts.before[r]) * static_cast<int64_t>(k.items.size());
      slack_[r] = std::max<int64_t>(more, 0);
    }
  }

  // The next tensor's number, and how it moves. Pre: there is one.
  std::pair<size_t, const boxing::Plan*> next() {
    Kind* best = nullptr;
    std::array<int64_t, 3> least;  // by how much it exceeds meanwhile and afterwards, and its size, negative
    for (auto& k : kinds_) {
      if (k.items.empty()) continue;
      std::array<int64_t, 3> found{};
      for (size_t r = 0; r < slack_.size(); ++r) {
        const int64_t before = k.parts.before[r], after = k.parts.after[r];
        found[0] = std::max(found[0], after - slack_[r]);
        found[1] = std::max(found[1], after - before - slack_[r]);
        found[2] = std::min(found[2], -(before + after));
      }
      if (best && found >= least) continue;
      best = &k;
      least = found;
    }
    for (size_t r = 0; r < slack_.size(); ++r) slack_[r] += best->parts.before[r] - best->parts.after[r];
    const size_t item = best->items.back();
    best->items.pop_back();
    return {item, &best->plan};
  }

 private:
  std::vector<Kind> kinds_;
  std::vector<int64_t> slack_;  // of each rank: what it may hold in addition to what it holds
};

// Collective over the ranks of both layouts.
void move(const Item& item, const boxing::Plan& plan) {
  const Tensor& t = item.tensor;
  const int rank = Context::current().rank();
  Array part;
  if (t.placement().contains(rank) || item.to->placement.contains(rank)) {
    part = boxing::execute(plan, t.array());
    // A window would keep all of the old part.
    if (part.defined() && t.array().defined() && part.nbytes() < t.array().nbytes() &&
        part.storage.get() == t.array().storage.get()) {
      Array own = Array::empty(part.shape, part.dtype, part.device);
      kernels::copy(part, own);
      part = std::move(own);
    }
  }
  replace_value(t, Tensor::global(std::move(part), t.shape(), t.dtype(), item.to));
  if (memory_stats().cached_bytes > kMostCached) release_cached_memory();
}

int64_t move_all(const std::vector<Item>& items) {
  require_real_rank("relayout");
  if (tracer()) fail_runtime("relayout: it is called while a graph is captured. Call it between steps.");
  check_alike(items);
  NoGradGuard guard;
  const uint64_t before = comm::stats().bytes_read;
  Order order(items);
  for (size_t i = 0; i < items.size(); ++i) {
    auto [item, plan] = order.next();
    move(items[item], *plan);
  }
  return static_cast<int64_t>(comm::stats().bytes_read - before);
}

}  // namespace

int64_t relayout(std::vector<Move> moves) {
  std::vector<Item> items;
  std::unordered_map<const TensorImpl*, size_t> known;
  for (auto& m : moves) {
    if (!m.tensor.defined()) fail_value("relayout: '{}' is undefined. Leave it out.", m.name);
    if (!m.to.placement) continue;
    const GlobalSpec* to = spec_for(m.name, m.tensor, m.to);
    auto [it, is_new] = known.try_emplace(m.tensor.impl(), items.size());
    if (is_new) {
      items.push_back({std::move(m.name), std::move(m.tensor), to});
    } else if (const Item& first = items[it->second]; first.to != to) {
      fail_value("relayout: '{}' and '{}' are one tensor, and are to have different layouts: {} and {}.", first.name,
                 m.name, first.to->str(), to->str());
    }
  }
  std::erase_if(items, [](const Item& item) { return item.tensor.spec() == item.to; });
  return move_all(items);
}

int64_t relayout(const std::vector<nn::Module>& modules, const std::vector<Optimizer*>& optimizers,
                 const LayoutOf& layout_of) {
  std::vector<Move> moves;
  std::unordered_map<const TensorImpl*, std::pair<std::string, Layout>> known;
  auto add = [&](const std::string& name, const Tensor& t) {
    auto [it, is_new] = known.try_emplace(t.impl(), name, Layout());
    if (!is_new) return;
    it->second.second = layout_of(name, t);
    moves.push_back({name, t, it->second.second});
    if (Tensor grad = t.grad(); grad.defined()) moves.push_back({name + ".grad", grad, it->second.second});
  };
  for (auto& module : modules) {
    for (auto& [name, t] : module.named_parameters()) add(name, t);
    for (auto& [name, t] : module.named_buffers()) add(name, t);
  }
  for (auto* optimizer : optimizers)
    for (size_t g = 0; g < optimizer->n_groups(); ++g) {
      const Rule& rule = optimizer->rule(g);
      for (Slot& slot : optimizer->slots(g)) {
        auto it = known.find(slot.param.impl());
        if (it == known.end())
          fail_value("relayout: an optimizer's parameter {} in group {} is in none of the modules. Pass its module, "
                     "too.",
                     slot.param.shape(), g);
        auto& [name, layout] = it->second;
        for (int k = 0; k < kMaxStates; ++k)
          if (Tensor& state = at_index(slot.state, k); state.defined())
            moves.push_back({fmt::format("{}.{}", name, state_name(rule, k)), state, layout});
        if (slot.master.defined()) moves.push_back({name + ".master", slot.master, layout});
      }
    }
  return relayout(std::move(moves));
}

}  // namespace holon::optim
