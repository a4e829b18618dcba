#include "holon/checkpoint/core/key_map.h"

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
  constexpr int64_t kMostParts = int64_t{1} << 40;  // whose sum is far from overflowing
  if (std::any_of(rule.how.parts.begin(), rule.how.parts.end(), [&](int64_t p) { return p > kMostParts; }))
    wrong("a part is more than 2^40");
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

// The tensors that one rule makes results of.
struct Group {
  const KeyRule* rule = nullptr;
  Bindings bindings;
  std::map<int64_t, size_t> numbers;  // of the tensors, by their place among the names, or by {e}
};

class Resolution {
 public:
  Resolution(const std::vector<KeyRule>& rules, const std::vector<NamedShape>& tensors)
      : rules_(rules), tensors_(tensors) {}

  std::vector<MappedTensor> run() {
    for (size_t i = 0; i < tensors_.size(); ++i) sort_in(i);
    for (auto& group : groups_) finish(group);
    return std::move(out_);
  }

 private:
  void sort_in(size_t number) {
    const std::string& name = tensors_[number].name;
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
    if (!groups_[it->second].numbers.emplace(place, number).second) fail_value("KeyMap: '{}' is there twice.", name);
  }

  void emit(const Group& group, std::string name, Dims shape, int64_t begin = 0) {
    if (!names_.insert(name).second) fail_value("KeyMap: two tensors get the name '{}'.", name);
    MappedTensor made;
    made.name = std::move(name);
    made.dtype = first(group).dtype;
    made.shape = std::move(shape);
    made.how = group.rule->how;
    made.begin = begin;
    for (auto& [place, number] : group.numbers) made.from.push_back(number);
    out_.push_back(std::move(made));
  }

  const NamedShape& first(const Group& group) const { return tensors_[group.numbers.begin()->second]; }

  void finish(const Group& group) {
    const KeyRule& rule = *group.rule;
    const auto& how = rule.how;
    Dims shape = first(group).shape;
    switch (how.kind) {
      case KeyRule::kSame: return emit(group, filled(rule.to[0], group.bindings), shape);
      case KeyRule::kTranspose:
        check_axis(group, how.axis);
        check_axis(group, how.other);
        std::swap(shape[how.axis], shape[how.other]);
        return emit(group, filled(rule.to[0], group.bindings), shape);
      case KeyRule::kJoin: return join(group);
      case KeyRule::kSplit: return split(group);
      case KeyRule::kStack: return stack(group);
      case KeyRule::kUnstack: {
        check_axis(group, how.axis);
        Dims one;
        for (int a = 0; a < shape.size(); ++a)
          if (a != how.axis) one.push_back(shape[a]);
        Bindings with = group.bindings;
        std::string& number = with[extra_variable(rule.to[0], rule.from[0])];
        for (int64_t i = 0; i < shape[how.axis]; ++i) {
          number = std::to_string(i);
          emit(group, filled(rule.to[0], with), one, i);
        }
      }
    }
  }

  void check_axis(const Group& group, int axis) const {
    const NamedShape& t = first(group);
    if (axis < 0 || axis >= t.shape.size())
      fail_value("KeyMap: '{}' {} has no axis {}, which the rule {} needs.", t.name, t.shape, axis, shown(*group.rule));
  }

  [[noreturn]] static void missing(const Group& group, const std::string& name) {
    fail_value("KeyMap: '{}' needs '{}', which is not there.", filled(group.rule->to[0], group.bindings), name);
  }

  void check_dtype(const Group& group, const NamedShape& t) const {
    if (t.dtype != first(group).dtype)
      fail_value("KeyMap: '{}' is {} and '{}' is {}; '{}' is made of tensors of one dtype. Convert them first.",
                 first(group).name, holon::name(first(group).dtype), t.name, holon::name(t.dtype),
                 filled(group.rule->to[0], group.bindings));
  }

  static std::vector<int64_t> parts_of(const KeyRule& rule) {
    if (!rule.how.parts.empty()) return rule.how.parts;
    return std::vector<int64_t>(std::max(rule.to.size(), rule.from.size()), 1);
  }

  void join(const Group& group) {
    const KeyRule& rule = *group.rule;
    const int axis = rule.how.axis;
    const auto parts = parts_of(rule);
    for (size_t i = 0; i < rule.from.size(); ++i)
      if (!group.numbers.contains(static_cast<int64_t>(i))) missing(group, filled(rule.from[i], group.bindings));
    check_axis(group, axis);
    Dims shape = first(group).shape;
    const int64_t unit = shape[axis];
    shape[axis] = 0;
    for (auto& [place, number] : group.numbers) {
      const NamedShape& t = tensors_[number];
      check_dtype(group, t);
      const int64_t part = parts[to_size(place)];
      Dims expected = first(group).shape;
      // Otherwise the way back would cut it elsewhere.
      int64_t its = 0, wanted = 0;
      if (t.shape.size() == expected.size() && !__builtin_mul_overflow(t.shape[axis], parts[0], &its) &&
          !__builtin_mul_overflow(unit, part, &wanted) && its == wanted)
        expected[axis] = t.shape[axis];
      else
        expected = {};
      if (t.shape != expected)
        fail_value("KeyMap: '{}' {} and '{}' {} are not as {} to {} along axis {}. Correct the rule's parts.",
                   first(group).name, first(group).shape, t.name, t.shape, parts[0], part, axis);
      shape[axis] += t.shape[axis];
    }
    emit(group, filled(rule.to[0], group.bindings), shape);
  }

  void split(const Group& group) {
    const KeyRule& rule = *group.rule;
    const int axis = rule.how.axis;
    check_axis(group, axis);
    const auto parts = parts_of(rule);
    const NamedShape& whole = first(group);
    const int64_t size = whole.shape[axis], sum = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    if (size % sum != 0)
      fail_value("KeyMap: '{}' {} cannot be split along axis {} into parts as {}. Correct the rule's parts.",
                 whole.name, whole.shape, axis, fmt::format("{}", fmt::join(parts, " : ")));
    int64_t begin = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      Dims shape = whole.shape;
      shape[axis] = parts[i] * (size / sum);
      emit(group, filled(rule.to[i], group.bindings), shape, begin);
      begin += shape[axis];
    }
  }

  void stack(const Group& group) {
    const KeyRule& rule = *group.rule;
    const NamedShape& one = first(group);
    if (rule.how.axis < 0 || rule.how.axis > one.shape.size())
      fail_value("KeyMap: '{}' {} cannot be stacked along axis {}, as the rule {} has it.", one.name, one.shape,
                 rule.how.axis, shown(rule));
    int64_t n = 0;
    for (auto& [place, number] : group.numbers) {
      const NamedShape& t = tensors_[number];
      if (place != n++) {
        Bindings with = group.bindings;
        with[extra_variable(rule.from[0], rule.to[0])] = std::to_string(n - 1);
        missing(group, filled(rule.from[0], with));
      }
      check_dtype(group, t);
      if (t.shape != one.shape)
        fail_value("KeyMap: '{}' {} and '{}' {} are stacked by the rule {}, and differ in shape.", one.name, one.shape,
                   t.name, t.shape, shown(rule));
    }
    Dims shape;
    for (int a = 0; a <= one.shape.size(); ++a) {
      if (a == rule.how.axis) shape.push_back(n);
      if (a < one.shape.size()) shape.push_back(one.shape[a]);
    }
    emit(group, filled(rule.to[0], group.bindings), shape);
  }

  const std::vector<KeyRule>& rules_;
  const std::vector<NamedShape>& tensors_;
  std::vector<Group> groups_;  // in the order of their first tensors
  std::map<std::pair<const KeyRule*, Bindings>, size_t> places_;
  std::set<std::string> names_;
  std::vector<MappedTensor> out_;
};

}  // namespace

KeyMap::KeyMap(std::vector<KeyRule> rules) : rules_(std::move(rules)) {
  for (auto& rule : rules_) check_rule(rule);
}

std::vector<MappedTensor> KeyMap::resolve(const std::vector<NamedShape>& tensors) const {
  return Resolution(rules_, tensors).run();
}

nn::StateDict KeyMap::apply(const nn::StateDict& state) const {
  NoGradGuard guard;
  std::vector<NamedShape> shapes;
  for (auto& [name, t] : state) {
    if (!t.defined()) fail_value("KeyMap: '{}' is undefined. Leave it out.", name);
    shapes.push_back({name, t.dtype(), t.shape()});
  }
  const auto all = resolve(shapes);
  nn::StateDict out;
  for (size_t i = 0; i < all.size();) {
    const auto& how = all[i].how;
    std::vector<Tensor> from, to;
    for (size_t number : all[i].from) from.push_back(state[number].second);
    // What one tensor is cut into comes one after the other.
    std::vector<int64_t> sizes;
    size_t end = i;
    do
      if (how.kind == KeyRule::kSplit) sizes.push_back(all[end].shape[how.axis]);
    while (++end < all.size() && all[end].begin > 0);
    switch (how.kind) {
      case KeyRule::kSame: to = from; break;
      case KeyRule::kTranspose: to = {contiguous(transpose(from[0], how.axis, how.other))}; break;
      case KeyRule::kJoin: to = {cat(from, how.axis)}; break;
      case KeyRule::kStack: to = {stack(from, how.axis)}; break;
      case KeyRule::kSplit: to = split(from[0], sizes, how.axis); break;
      case KeyRule::kUnstack: to = unbind(from[0], how.axis); break;
    }
    const bool cut = how.kind == KeyRule::kSplit || how.kind == KeyRule::kUnstack;
    for (size_t k = 0; i < end; ++i, ++k) out.emplace_back(all[i].name, cut ? contiguous(to[k]) : to[k]);
  }
  return out;
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
