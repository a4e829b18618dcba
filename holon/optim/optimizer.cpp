#include "holon/optim/optimizer.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/contract/contract.h"
#include "holon/kernels/copy.h"

namespace holon::optim {

namespace {

constexpr const char* kMaster = "master";

// A copy with the dtype, layout and device that the parameter's state has. Collective where it must be redistributed.
Tensor loaded(const Tensor& t, DType dtype, const GlobalSpec* spec, const Tensor& param) {
  Tensor redistributed = !spec || t.spec() == spec ? t : t.to_global(spec->placement, spec->nd_sbp);
  Array a;
  if (redistributed.array().defined()) {
    a = Array::empty(redistributed.array().shape, dtype, spec ? redistributed.array().device : param.device());
    kernels::copy(redistributed.array(), a);
  }
  return spec ? Tensor::global(std::move(a), t.shape(), dtype, spec) : Tensor::local(std::move(a));
}

// A slot's tensors by name.
template <class S, class F>
void for_state(const Rule& rule, S& slot, F&& f) {
  for (int k = 0; k < kMaxStates; ++k)
    if (const char* name = state_name(rule, k)) f(name, at_index(slot.state, k));
  if (rule.master_weights && size_bytes(slot.param.dtype()) == 2) f(kMaster, slot.master);
}

}  // namespace

void Optimizer::add(std::vector<Tensor> params, const Rule& rule, const GroupOptions& options) {
  if (params.empty()) fail_value("an optimizer got no parameters. Pass module.parameters().");
  check(rule);
  std::unordered_set<const TensorImpl*> known;
  for (const Tensor& p : parameters()) known.insert(p.impl());
  for (size_t i = 0; i < params.size(); ++i) {
    auto& p = params[i];
    if (!p.defined()) fail_value("an optimizer got an undefined tensor as parameter {}.", i);
    if (!p.is_leaf())
      fail_value("an optimizer got the result of an op as parameter {} {}. Pass the leaf that it was computed from.", i,
                 p.shape());
    if (!known.insert(p.impl()).second)
      fail_value("an optimizer got parameter {} {} twice. Each parameter belongs to one group, once.", i, p.shape());
  }
  Group g{{}, rule, options};
  for (Tensor& p : params) {
    g.slots.emplace_back();
    g.slots.back().param = std::move(p);
  }
  groups_.push_back(std::move(g));
}

void Optimizer::take_back() const {
  if (!borrower_) return;
  borrower_ = nullptr;
  auto give_back = std::exchange(give_back_, {});
  give_back();
}

void Optimizer::lend_state(const void* borrower, std::function<void()> give_back) {
  take_back();
  borrower_ = borrower;
  give_back_ = std::move(give_back);
}

std::span<Slot> Optimizer::slots(size_t group) {
  take_back();
  return groups_.at(group).slots;
}

void Optimizer::step() {
  take_back();
  for (auto& g : groups_) {
    for (Slot& s : g.slots) s.grad = s.param.grad();
    update(g.rule, g.slots);
    for (Slot& s : g.slots) s.grad = {};
  }
  contract::end_step();
}

Tensor Optimizer::step(const std::function<Tensor()>& closure) {
  Tensor loss;
  {
    NoGradGuard recording(true);
    loss = closure();
  }
  step();
  return loss;
}

void Optimizer::zero_grad(bool set_to_none) {
  for (Tensor p : parameters()) {
    Tensor g = p.grad();
    if (set_to_none || !g.defined()) {
      p.set_grad({});
    } else if (g.array().defined() && !g.array().is_placeholder()) {
      kernels::fill(g.impl()->array, 0);
      ++g.array().storage->version;
    }
  }
}

std::vector<Tensor> Optimizer::clip_grad(bool error_if_nonfinite) {
  std::vector<std::pair<Clip, std::vector<Tensor>>> together;
  for (auto& g : groups_) {
    if (g.options.clip_grad_max_norm < 0) continue;
    const Clip clip{Clip::By::kNorm, g.options.clip_grad_max_norm, g.options.clip_grad_norm_type, error_if_nonfinite};
    auto it = std::find_if(together.begin(), together.end(), [&](auto& e) { return e.first == clip; });
    if (it == together.end()) it = together.insert(it, {clip, {}});
    for (Slot& s : g.slots) it->second.push_back(s.param);
  }
  std::vector<Tensor> norms;
  for (auto& [clip, params] : together)
    norms.push_back(clip_grad_norm_(params, clip.limit, clip.norm_type, error_if_nonfinite));
  return norms;
}

void Optimizer::set_lr(double lr) {
  for (size_t i = 0; i < groups_.size(); ++i) set_lr(i, lr);
}

void Optimizer::set_lr(size_t group, double lr) {
  if (group >= groups_.size())
    fail(ErrorKind::kIndex, "set_lr: there is no group {}; the optimizer has {}.", group, groups_.size());
  if (!(lr >= 0)) fail_value("set_lr: the learning rate must not be negative, found {}.", lr);
  groups_[group].rule.lr = lr;
}

double Optimizer::lr(size_t group) const {
  if (group >= groups_.size()) fail(ErrorKind::kIndex, "lr: group {} of {}.", group, groups_.size());
  return groups_[group].rule.lr;
}

std::vector<Tensor> Optimizer::parameters() const {
  std::vector<Tensor> all;
  for (auto& g : groups_)
    for (auto& s : g.slots) all.push_back(s.param);
  return all;
}

std::vector<Tensor> Optimizer::parameters(size_t group) const {
  std::vector<Tensor> list;
  for (auto& s : groups_.at(group).slots) list.push_back(s.param);
  return list;
}

std::vector<std::pair<std::string, Tensor>> Optimizer::state() const { return state_dict().tensors; }

StateDict Optimizer::state_dict() const {
  take_back();
  StateDict dict;
  size_t index = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    dict.numbers.emplace_back(fmt::format("group{}.lr", i), groups_[i].rule.lr);
    dict.numbers.emplace_back(fmt::format("group{}.parameters", i), static_cast<double>(groups_[i].slots.size()));
    for (const Slot& s : groups_[i].slots) {
      for_state(groups_[i].rule, s, [&](const char* name, const Tensor& t) {
        if (t.defined()) dict.tensors.emplace_back(fmt::format("{}.{}", index, name), t);
      });
      if (s.step > 0) dict.numbers.emplace_back(fmt::format("{}.step", index), static_cast<double>(s.step));
      ++index;
    }
  }
  return dict;
}

void Optimizer::load_state_dict(const StateDict& dict) {
  take_back();
  std::unordered_map<std::string, Tensor> tensors;
  std::unordered_map<std::string, double> numbers;
  for (auto& [name, t] : dict.tensors)
    if (!tensors.emplace(name, t).second) fail_value("load_state_dict: '{}' appears twice in the state dict.", name);
  for (auto& [name, x] : dict.numbers)
    if (!numbers.emplace(name, x).second) fail_value("load_state_dict: '{}' appears twice in the state dict.", name);
  auto number = [&](const std::string& name) {
    auto it = numbers.find(name);
    if (it == numbers.end()) fail_value("load_state_dict: '{}' is missing. Load what state_dict() returned.", name);
    return it->second;
  };
  // Everything is looked at before anything is changed.
  size_t index = 0, found = 0, found_numbers = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    auto n = static_cast<size_t>(number(fmt::format("group{}.parameters", i)));
    number(fmt::format("group{}.lr", i));
    found_numbers += 2;
    if (n != groups_[i].slots.size())
      fail_value("load_state_dict: group {} has {} parameters in the state dict, {} here. Create the optimizer with "
                 "the same groups.",
                 i, n, groups_[i].slots.size());
    for (Slot& s : groups_[i].slots) {
      const std::string step = fmt::format("{}.step", index);
      const bool stepped = numbers.count(step);
      found_numbers += stepped;
      for_state(groups_[i].rule, s, [&](const char* name, const Tensor&) {
        const std::string key = fmt::format("{}.{}", index, name);
        auto it = tensors.find(key);
        if (it == tensors.end()) {
          if (stepped)
            fail_value("load_state_dict: '{}' is missing, although '{}' is present. Load what state_dict() returned.",
                       key, step);
          return;
        }
        const Tensor& t = it->second;
        if (!t.defined() || t.shape() != s.param.shape() || t.is_global() != s.param.is_global())
          fail_value("load_state_dict: '{}' is {}, its parameter {} {}.", key,
                     t.defined() ? fmt::format("{} {}", t.is_global() ? "global" : "local", t.shape()) : "undefined",
                     s.param.is_global() ? "global" : "local", s.param.shape());
        ++found;
      });
      ++index;
    }
  }
  if (found != tensors.size() || found_numbers != numbers.size()) {
    std::string extra;
    index = 0;
    for (auto& g : groups_)
      for (Slot& s : g.slots) {
        for_state(g.rule, s,
                  [&](const char* name, const Tensor&) { tensors.erase(fmt::format("{}.{}", index, name)); });
        numbers.erase(fmt::format("{}.step", index));
        ++index;
      }
    for (size_t i = 0; i < groups_.size(); ++i)
      numbers.erase(fmt::format("group{}.lr", i)), numbers.erase(fmt::format("group{}.parameters", i));
    for (auto& [name, t] : dict.tensors)
      if (extra.empty() && tensors.count(name)) extra = name;
    for (auto& [name, x] : dict.numbers)
      if (extra.empty() && numbers.count(name)) extra = name;
    fail_value("load_state_dict: this optimizer has no '{}'. Load it into one with the same rule, options and groups.",
               extra);
  }
  NoGradGuard guard;
  index = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& g = groups_[i];
    g.rule.lr = number(fmt::format("group{}.lr", i));
    for (Slot& s : g.slots) {
      auto step = numbers.find(fmt::format("{}.step", index));
      s.step = step == numbers.end() ? 0 : static_cast<int64_t>(step->second);
      for_state(g.rule, s, [&](const char* name, Tensor& t) {
        auto it = tensors.find(fmt::format("{}.{}", index, name));
        t = it == tensors.end() ? Tensor()
                                : loaded(it->second, state_dtype(s.param), state_spec(g.rule, s.param), s.param);
      });
      ++index;
    }
  }
}

}  // namespace holon::optim
