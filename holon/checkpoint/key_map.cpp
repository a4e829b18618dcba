#include "holon/checkpoint/key_map.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/ops/rearrange.h"
#include "holon/ops/shape.h"

namespace holon::checkpoint {

namespace {

using Bindings = std::map<std::string, std::string>;  // what is in the place of each {i}

constexpr const char* kKinds[] = {"same", "transpose", "join", "split", "stack", "unstack"};

std::string shown(const KeyRule& rule) {
  return fmt::format("{} {} <- {}", at_index(kKinds, rule.how.kind), fmt::join(rule.to, ", "),
                     fmt::join(rule.from, ", "));
}

// The names in braces, in order. Errors: braces without a name, or that do not match.
std::vector<std::string> variables(const std::string& pattern) {
  std::vector<std::string> out;
  for (size_t at = 0; (at = pattern.find_first_of("{}", at)) != pattern.npos;) {
    const size_t end = pattern.find('}', at);
    const size_t next = pattern.find('{', at + 1);
    if (pattern[at] == '}' || end == pattern.npos || next < end || end == at + 1)
      fail_value("KeyMap: '{}' has braces without a name. Write a number as {{i}}, and any text as {{name*}}.",
                 pattern);
    out.push_back(pattern.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return out;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == text.npos &&
      (text == "0" || text[0] != '0');
}

// Whether a name is of the pattern; each pattern has at most one {name*}, so that the search is short.
bool match(std::string_view pattern, std::string_view name, Bindings& found) {
  for (;;) {
    const size_t brace = pattern.find('{');
    if (brace == pattern.npos) return pattern == name;
    if (name.substr(0, brace) != pattern.substr(0, brace)) return false;
    const size_t end = pattern.find('}', brace);
    const std::string variable(pattern.substr(brace + 1, end - brace - 1));
    name.remove_prefix(brace);
    pattern.remove_prefix(end + 1);
    if (variable.ends_with('*')) {
      for (size_t n = 1; n <= name.size(); ++n) {
        Bindings with = found;
        auto [it, fresh] = with.emplace(variable, name.substr(0, n));
        if (!fresh && it->second != name.substr(0, n)) continue;
        if (!match(pattern, name.substr(n), with)) continue;
        found = std::move(with);
        return true;
      }
      return false;
    }
    const std::string_view digits = name.substr(0, std::min(name.find_first_not_of("0123456789"), name.size()));
    if (!is_number(digits)) return false;
    auto [it, fresh] = found.emplace(variable, digits);
    if (!fresh && it->second != digits) return false;
    name.remove_prefix(digits.size());
  }
}

std::string filled(const std::string& pattern, const Bindings& with) {
  std::string out;
  size_t at = 0;
  for (size_t brace; (brace = pattern.find('{', at)) != pattern.npos;) {
    const size_t end = pattern.find('}', brace);
    out += pattern.substr(at, brace - at) + with.at(pattern.substr(brace + 1, end - brace - 1));
    at = end + 1;
  }
  return out + pattern.substr(at);
}

// The number that the names of one side have and those of the other have not; empty: none.
std::string extra_variable(const std::string& many, const std::string& one) {
  const auto ones = variables(one);
  for (auto& v : variables(many))
    if (std::find(ones.begin(), ones.end(), v) == ones.end()) return v;
  return "";
}

void check_rule(const KeyRule& rule) {
  auto wrong = [&](std::string_view what) { fail_value("KeyMap: the rule {}: {}.", shown(rule), what); };
  const KeyRule::Kind kind = rule.how.kind;
  const bool many_to = kind == KeyRule::kSplit, many_from = kind == KeyRule::kJoin;
  if (rule.to.empty() || rule.from.empty()) wrong("a side has no name");
  if (!many_to && rule.to.size() != 1) wrong("it makes one tensor, and has several names for it");
  if (!many_from && rule.from.size() != 1) wrong("it is made of one name, and has several");
  const size_t n = std::max(rule.to.size(), rule.from.size());
  if (!rule.how.parts.empty() && (rule.how.parts.size() != n || !(many_to || many_from)))
    wrong("parts are not one for each of several names");
  if (std::any_of(rule.how.parts.begin(), rule.how.parts.end(), [](int64_t p) { return p < 1; }))
    wrong("a part is less than 1");
  std::optional<std::set<std::string>> all;
  auto add = [&](const std::vector<std::string>& names, const std::string& without) {
    for (auto& name : names) {
      auto found = variables(name);
      if (std::count_if(found.begin(), found.end(), [](auto& v) { return v.ends_with('*'); }) > 1)
        wrong("a name has more than one place for any text");
      std::set<std::string> here(found.begin(), found.end());
      here.erase(without);
      if (all && here != *all) wrong("its names have different places for numbers or text");
      all = here;
    }
  };
  std::string extra;
  if (kind == KeyRule::kStack) extra = extra_variable(rule.from[0], rule.to[0]);
  if (kind == KeyRule::kUnstack) extra = extra_variable(rule.to[0], rule.from[0]);
  if ((kind == KeyRule::kStack || kind == KeyRule::kUnstack) && (extra.empty() || extra.ends_with('*')))
    wrong("one side needs a number, such as {e}, that the other has not");
  add(rule.to, extra);
  add(rule.from, extra);
}

KeyRule::Kind inverse_of(KeyRule::Kind kind) {
  switch (kind) {
    case KeyRule::kJoin: return KeyRule::kSplit;
    case KeyRule::kSplit: return KeyRule::kJoin;
    case KeyRule::kStack: return KeyRule::kUnstack;
    case KeyRule::kUnstack: return KeyRule::kStack;
    default: return kind;
  }
}

// The tensors that one rule makes one result of.
struct Group {
  const KeyRule* rule = nullptr;
  Bindings bindings;
  std::map<int64_t, Tensor> tensors;  // by their place among the names, or their number
};

class Application {
 public:
  explicit Application(const std::vector<KeyRule>& rules) : rules_(rules) {}

  nn::StateDict run(const nn::StateDict& state) {
    for (auto& [name, tensor] : state) sort_in(name, tensor);
    for (auto& group : groups_) finish(group);
    return std::move(out_);
  }

 private:
  void sort_in(const std::string& name, const Tensor& tensor) {
    const KeyRule* rule = nullptr;
    Bindings bindings;
    int64_t place = 0;
    for (auto& r : rules_)
      for (size_t i = 0; i < r.from.size(); ++i) {
        Bindings found;
        if (!match(r.from[i], name, found)) continue;
        if (rule) fail_value("KeyMap: two rules have the name '{}': {}; {}.", name, shown(*rule), shown(r));
        rule = &r;
        bindings = std::move(found);
        place = static_cast<int64_t>(i);
      }
    if (!rule) fail_value("KeyMap: no rule has the name '{}'. Add one, or leave the tensor out.", name);
    if (rule->how.kind == KeyRule::kStack) {
      auto it = bindings.find(extra_variable(rule->from[0], rule->to[0]));
      place = std::stoll(it->second);
      bindings.erase(it);
    }
    auto [it, fresh] = places_.try_emplace({rule, bindings}, groups_.size());
    if (fresh) groups_.push_back({rule, bindings, {}});
    if (!groups_[it->second].tensors.emplace(place, tensor).second) fail_value("KeyMap: '{}' is there twice.", name);
  }

  void emit(const std::string& name, Tensor tensor) {
    if (!names_.insert(name).second) fail_value("KeyMap: two tensors get the name '{}'.", name);
    out_.emplace_back(name, std::move(tensor));
  }

  void finish(const Group& group) {
    const KeyRule& rule = *group.rule;
    const auto& how = rule.how;
    const Tensor& first = group.tensors.begin()->second;
    switch (how.kind) {
      case KeyRule::kSame: return emit(filled(rule.to[0], group.bindings), first);
      case KeyRule::kTranspose: {
        check_axis(rule, group, how.axis);
        check_axis(rule, group, how.other);
        return emit(filled(rule.to[0], group.bindings), contiguous(transpose(first, how.axis, how.other)));
      }
      case KeyRule::kJoin: return join(group);
      case KeyRule::kSplit: return split_into(group);
      case KeyRule::kStack: {
        std::vector<Tensor> all;
        for (auto& [number, tensor] : group.tensors) {
          if (number != static_cast<int64_t>(all.size())) missing(group, std::to_string(all.size()));
          all.push_back(tensor);
        }
        return emit(filled(rule.to[0], group.bindings), stack(all, how.axis));
      }
      case KeyRule::kUnstack: {
        check_axis(rule, group, how.axis);
        Bindings with = group.bindings;
        std::string& number = with[extra_variable(rule.to[0], rule.from[0])];
        auto all = unbind(first, how.axis);
        for (size_t i = 0; i < all.size(); ++i) {
          number = std::to_string(i);
          emit(filled(rule.to[0], with), contiguous(all[i]));
        }
      }
    }
  }

  static void check_axis(const KeyRule& rule, const Group& group, int axis) {
    const Tensor& t = group.tensors.begin()->second;
    if (axis < 0 || axis >= t.ndim())
      fail_value("KeyMap: '{}' {} has no axis {}, which the rule {} needs.", filled(rule.from[0], group.bindings),
                 t.shape(), axis, shown(rule));
  }

  [[noreturn]] static void missing(const Group& group, const std::string& number) {
    Bindings with = group.bindings;
    with[extra_variable(group.rule->from[0], group.rule->to[0])] = number;
    fail_value("KeyMap: '{}' needs '{}', which is not there.", filled(group.rule->to[0], group.bindings),
               filled(group.rule->from[0], with));
  }

  static std::vector<int64_t> parts_of(const KeyRule& rule) {
    if (!rule.how.parts.empty()) return rule.how.parts;
    return std::vector<int64_t>(std::max(rule.to.size(), rule.from.size()), 1);
  }

  void join(const Group& group) {
    const KeyRule& rule = *group.rule;
    const auto parts = parts_of(rule);
    std::vector<Tensor> all;
    for (size_t i = 0; i < rule.from.size(); ++i) {
      auto it = group.tensors.find(static_cast<int64_t>(i));
      if (it == group.tensors.end())
        fail_value("KeyMap: '{}' needs '{}', which is not there.", filled(rule.to[0], group.bindings),
                   filled(rule.from[i], group.bindings));
      all.push_back(it->second);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const int axis = rule.how.axis;
      check_axis(rule, group, axis);
      // Otherwise the way back would cut it elsewhere.
      if (all[i].ndim() != all[0].ndim() || all[i].shape()[axis] * parts[0] != all[0].shape()[axis] * parts[i])
        fail_value("KeyMap: '{}' {} and '{}' {} are not as {} to {} along axis {}. Correct the rule's parts.",
                   filled(rule.from[0], group.bindings), all[0].shape(), filled(rule.from[i], group.bindings),
                   all[i].shape(), parts[0], parts[i], axis);
    }
    emit(filled(rule.to[0], group.bindings), cat(all, rule.how.axis));
  }

  void split_into(const Group& group) {
    const KeyRule& rule = *group.rule;
    check_axis(rule, group, rule.how.axis);
    auto parts = parts_of(rule);
    const Tensor& whole = group.tensors.begin()->second;
    const int64_t size = whole.shape()[rule.how.axis], sum = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    if (size % sum != 0)
      fail_value("KeyMap: '{}' {} cannot be split along axis {} into parts as {}. Correct the rule's parts.",
                 filled(rule.from[0], group.bindings), whole.shape(), rule.how.axis,
                 fmt::format("{}", fmt::join(parts, " : ")));
    for (auto& part : parts) part *= size / sum;
    auto all = split(whole, parts, rule.how.axis);
    for (size_t i = 0; i < all.size(); ++i) emit(filled(rule.to[i], group.bindings), contiguous(all[i]));
  }

  const std::vector<KeyRule>& rules_;
  std::vector<Group> groups_;  // in the order of their first tensors
  std::map<std::pair<const KeyRule*, Bindings>, size_t> places_;
  std::set<std::string> names_;
  nn::StateDict out_;
};

}  // namespace

KeyMap::KeyMap(std::vector<KeyRule> rules) : rules_(std::move(rules)) {
  for (auto& rule : rules_) check_rule(rule);
}

nn::StateDict KeyMap::apply(const nn::StateDict& state) const {
  NoGradGuard guard;
  return Application(rules_).run(state);
}

KeyMap KeyMap::inverse() const {
  std::vector<KeyRule> back;
  for (auto& rule : rules_) {
    KeyRule r{rule.from, rule.to, rule.how};
    r.how.kind = inverse_of(rule.how.kind);
    back.push_back(std::move(r));
  }
  return KeyMap(std::move(back));
}

}  // namespace holon::checkpoint
