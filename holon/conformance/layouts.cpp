#include "holon/conformance/layouts.h"

#include <algorithm>
#include <functional>
#include <mutex>

#include "holon/autograd/engine.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/conformance/values.h"
#include "holon/global/slice.h"

namespace holon::conformance {

namespace {

// Inputs' values, and what the local call gives.
struct Truth {
  struct Out {
    std::vector<double> values;
    Dims shape;
    DType dtype;
    bool grad;
    std::vector<double> dy;
  };
  std::vector<std::vector<double>> in;
  std::vector<Out> out;
  std::vector<std::vector<double>> gradients;  // of the inputs, empty where there is none
  std::vector<double> in_place;                // what the in-place form leaves, empty where there is none
};

std::vector<Tensor> with_grad(const TensorVec& outs) {
  std::vector<Tensor> v;
  for (auto& t : outs)
    if (t.requires_grad()) v.push_back(t);
  return v;
}

std::vector<double> weights(size_t o, int64_t n) {
  std::vector<double> w(static_cast<size_t>(n));
  for (size_t e = 0; e < w.size(); ++e) w[e] = output_weight(o, e);
  return w;
}

bool runs_in_place(const Subject& s, const Truth& t) {
  return s.call_in_place && t.out.size() == 1 && s.has(0) && t.out[0].shape == s.in[0].shape &&
      t.out[0].dtype == s.in[0].dtype;
}

Truth local_truth(const Subject& s) {
  Truth t;
  TensorVec in;
  for (size_t i = 0; i < s.in.size(); ++i) {
    t.in.push_back(s.values(i));
    in.push_back(s.has(i) ? Tensor::local(array_of(t.in[i], s.in[i].shape, s.in[i].dtype)) : Tensor());
    if (s.has_gradient(i)) in[i].set_requires_grad();
  }
  TensorVec outs = s.call(in, {}, {});
  std::vector<Tensor> gradients;
  for (size_t o = 0; o < outs.size(); ++o) {
    auto& y = outs[o];
    t.out.push_back({values_of(y.array()), y.shape(), y.dtype(), y.requires_grad(), weights(o, y.numel())});
    if (y.requires_grad()) gradients.push_back(Tensor::local(array_of(t.out[o].dy, y.shape(), y.dtype())));
  }
  if (!gradients.empty()) autograd::backward(with_grad(outs), gradients, false, false);
  for (auto& x : in)
    t.gradients.push_back(x.defined() && x.grad().defined() ? values_of(x.grad().array()) : std::vector<double>());
  if (runs_in_place(s, t)) {
    NoGradGuard no_grad;
    in[0] = Tensor::local(array_of(t.in[0], s.in[0].shape, s.in[0].dtype));
    t.in_place = values_of(s.call_in_place(in).array());
  }
  return t;
}

// All ways to lay out a tensor along the axes of a placement.
std::vector<NdSbp> layouts(const Dims& shape, DType dtype, int axes) {
  std::vector<Sbp> one{sbp::broadcast()};
  for (int a = 0; a < shape.size(); ++a) one.push_back(sbp::split(a));
  if (is_floating(dtype) && !is_float8(dtype)) one.push_back(sbp::partial_sum());
  std::vector<NdSbp> all;
  for (Sbp s : one) {
    if (axes == 1)
      all.push_back(s);
    else
      for (Sbp t : one) all.push_back({s, t});
  }
  return all;
}

// Combinations of the inputs' layouts: all, or a reproducible sample.
std::vector<std::vector<NdSbp>> combinations(const std::vector<std::vector<NdSbp>>& choices, size_t most) {
  size_t total = 1;
  for (auto& c : choices) total *= c.size();
  std::vector<std::vector<NdSbp>> picked;
  for (size_t k = 0; k < std::min(total, most); ++k) {
    uint64_t code = total <= most ? k : mix(total, k) % total;
    std::vector<NdSbp> combination;
    for (auto& c : choices) {
      combination.push_back(c[code % c.size()]);
      code /= c.size();
    }
    picked.push_back(combination);
  }
  return picked;
}

std::string text_of(const std::vector<NdSbp>& list) {
  std::string s;
  for (auto& x : list) s += (s.empty() ? "" : ", ") + (x ? x.str() : std::string("-"));
  return s;
}

// One layout, on this rank. Returns what is wrong.
std::string run_one(const Subject& s, const Truth& truth, const Placement& placement, const std::vector<NdSbp>& sbps) {
  int index = placement.index_of(Context::current().rank());
  auto make = [&](size_t i) {
    if (!s.has(i)) return Tensor();
    Array part = index < 0 ? Array() : part_of(truth.in[i], s.in[i].shape, s.in[i].dtype, placement, sbps[i], index);
    return Tensor::global(part, s.in[i].shape, s.in[i].dtype, intern_spec(placement, sbps[i]));
  };
  TensorVec in;
  for (size_t i = 0; i < s.in.size(); ++i) {
    in.push_back(make(i));
    if (s.has_gradient(i)) in[i].set_requires_grad();
  }
  TensorVec outs = s.call(in, placement, sbps[0]);
  if (outs.size() != truth.out.size()) return fmt::format("{} outputs, not {}", outs.size(), truth.out.size());
  std::vector<Tensor> gradients;
  for (size_t o = 0; o < outs.size(); ++o) {
    const Tensor& y = outs[o];
    auto& want = truth.out[o];
    if (!y.is_global() || y.shape() != want.shape || y.dtype() != want.dtype || y.requires_grad() != want.grad)
      return fmt::format("output {} is {} {} {}", o, y.is_global() ? "global" : "local", y.shape(), name(y.dtype()));
    if (index >= 0 && y.array().shape != region_of(y.shape(), placement, y.nd_sbp(), index).shape)
      return fmt::format("output {} of {} has the part {} on {}", o, y.nd_sbp(), y.array().shape, rank_text());
    if (index < 0 && y.array().defined()) return "a rank that is not in the placement holds data";
    if (std::string d = differs(values_of(y.full().array()), want.values, tolerance(y.dtype())); !d.empty())
      return fmt::format("output {} as {}: {}", o, y.nd_sbp(), d);
    if (!want.grad) continue;
    auto choices = layouts(y.shape(), y.dtype(), placement.hierarchy().size());
    NdSbp dy = choices[mix(std::hash<std::string>()(text_of(sbps)), o) % choices.size()];
    Array part = index < 0 ? Array() : part_of(want.dy, y.shape(), y.dtype(), placement, dy, index);
    gradients.push_back(Tensor::global(part, y.shape(), y.dtype(), intern_spec(placement, dy)));
  }
  if (!gradients.empty()) autograd::backward(with_grad(outs), gradients, false, false);
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].defined()) continue;
    Tensor g = in[i].grad();
    if (g.defined() == truth.gradients[i].empty() && in[i].numel() > 0)
      return fmt::format("input {} has {} gradient", i, g.defined() ? "a" : "no");
    if (!g.defined()) continue;
    if (g.spec() != in[i].spec()) return fmt::format("the gradient of input {} is {}", i, g.nd_sbp());
    if (std::string d = differs(values_of(g.full().array()), truth.gradients[i], 3 * tolerance(g.dtype())); !d.empty())
      return fmt::format("gradient of input {}: {}", i, d);
  }
  if (!truth.in_place.empty()) {
    NoGradGuard no_grad;
    in[0] = make(0);
    Tensor y = s.call_in_place(in);
    if (!y.is_same(in[0]) || y.nd_sbp() != sbps[0]) return "in place: another tensor or sbp";
    if (std::string d = differs(values_of(y.full().array()), truth.in_place, tolerance(y.dtype())); !d.empty())
      return "in place: " + d;
  }
  return {};
}

// The first failure of these layouts, in one world.
std::string failures(const World& world, const Subject& s, const Truth& truth, const char* device,
                     boxing::ParameterPolicy parameters, const std::vector<std::vector<NdSbp>>& layouts) {
  std::mutex mutex;
  std::string first;
  try {
    comm::run_ranks(world.ranks, [&, layout_free = Context::current().layout_free()](int) {
      Context::current().set_layout_free(layout_free);
      const boxing::ParameterPolicyGuard policy(parameters);
      Placement placement(device, world.hierarchy, world.members);
      for (auto& sbps : layouts) {
        std::string wrong;
        try {
          wrong = run_one(s, truth, placement, sbps);
        } catch (const Error& e) {
          fail_runtime("{}: {}", text_of(sbps), e.what());
        }
        if (wrong.empty()) continue;
        std::lock_guard lock(mutex);
        if (first.empty()) first = text_of(sbps) + ": " + wrong;
      }
    });
  } catch (const std::exception& e) {
    if (first.empty()) first = e.what();
  }
  return first;
}

}  // namespace

std::span<const World> worlds() {
  static const std::vector<World> list{
      {"one rank", 1, {1}, {0}, 4},
      {"two ranks", 2, {2}, {0, 1}, 40},
      {"three ranks", 3, {3}, {0, 1, 2}, 20},
      {"two of three ranks", 3, {2}, {2, 0}, 6},
      {"2x2 ranks", 4, {2, 2}, {0, 1, 2, 3}, 40},
  };
  return list;
}

namespace {

// Of these layouts, those that are wrong, and what.
std::vector<std::string> wrong_ones(const Subject& s, const Truth& truth, const World& world, const char* device,
                                    boxing::ParameterPolicy parameters, const std::vector<std::vector<NdSbp>>& all) {
  std::vector<std::string> found;
  if (failures(world, s, truth, device, parameters, all).empty()) return found;
  // Something is wrong: each layout in a world of its own tells what, and which.
  for (auto& sbps : all)
    if (std::string wrong = failures(world, s, truth, device, parameters, {sbps}); !wrong.empty())
      found.push_back(std::move(wrong));
  return found;
}

}  // namespace

std::vector<std::string> differing_layouts(const Subject& s, const World& world, const char* device,
                                           boxing::ParameterPolicy parameters) {
  const Truth truth = local_truth(s);
  std::vector<std::vector<NdSbp>> choices;
  const int axes = world.hierarchy.size();
  for (size_t i = 0; i < s.in.size(); ++i)
    choices.push_back(s.has(i) ? layouts(s.in[i].shape, s.in[i].dtype, axes) : std::vector<NdSbp>{NdSbp()});
  if (s.in.empty()) choices.push_back(layouts(truth.out[0].shape, float32, axes));
  auto all = combinations(choices, world.most);
  std::vector<std::string> found = wrong_ones(s, truth, world, device, parameters, all);
  if (!Context::current().layout_free()) return found;
  // Addends of numbers with all digits do not add up to them exactly.
  Subject fine = s;
  fine.all_digits = true;
  std::erase_if(all, [](auto& sbps) {
    return std::any_of(sbps.begin(), sbps.end(), [](const NdSbp& sbp) { return sbp.has_partial(); });
  });
  for (std::string& wrong : wrong_ones(fine, local_truth(fine), world, device, parameters, all))
    found.push_back(std::move(wrong));
  return found;
}

}  // namespace holon::conformance
