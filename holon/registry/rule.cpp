#include "holon/registry/rule.h"

#include <algorithm>
#include <map>
#include <string>

#include "holon/base/error.h"
#include "holon/base/index.h"

namespace holon {

std::vector<Signature> Rule::signatures(uint32_t joint, uint32_t each) const {
  std::vector<Signature> all;
  auto blank = [&] {
    Signature s;
    for (size_t i = 0; i < in_.size(); ++i) s.in.push_back(sbp::broadcast());
    for (size_t i = 0; i < out_.size(); ++i) s.out.push_back(sbp::broadcast());
    return s;
  };
  all.push_back(blank());
  for (int f = 0; f < static_cast<int>(factors_.size()); ++f) {
    Signature s = blank();
    s.factor = f;
    s.even_units = at_index(factors_, f).even_units;
    bool used = false;
    auto mark = [&](const Axes& axes, Sbp& sbp) {
      for (int a = 0; a < kMaxAxes; ++a)
        if (at_index(axes, a) == f) {
          sbp = sbp::split(a);
          used = true;
          return true;
        }
      return false;
    };
    for (size_t i = 0; i < in_.size(); ++i) mark(in_[i], s.in[i]);
    bool out_ok = true;
    for (size_t i = 0; i < out_.size(); ++i) {
      if (mark(out_[i], s.out[i])) continue;
      if (at_index(factors_, f).contracts)
        s.out[i] = sbp::partial_sum();
      else
        out_ok = false;
    }
    if (used && out_ok) all.push_back(std::move(s));
  }
  for (auto& e : extra_) all.push_back(e);
  if (joint) {
    Signature s = blank();
    for (size_t i = 0; i < in_.size(); ++i)
      if (joint >> std::min<size_t>(i, 31) & 1) s.in[i] = sbp::partial_sum();
    for (auto& o : s.out) o = sbp::partial_sum();
    all.push_back(std::move(s));
  }
  for (size_t i = 0; i < in_.size() && i < 32; ++i) {
    if (!(each >> i & 1)) continue;
    Signature s = blank();
    s.in[i] = sbp::partial_sum();
    for (auto& o : s.out) o = sbp::partial_sum();
    all.push_back(std::move(s));
  }
  return all;
}

namespace {

struct Operand {
  bool ellipsis = false;
  std::vector<std::string> names;
};

std::vector<Operand> parse_side(std::string_view side) {
  std::vector<Operand> operands(1);
  std::string name;
  auto end_name = [&] {
    if (name == "...")
      operands.back().ellipsis = true;
    else if (!name.empty())
      operands.back().names.push_back(name);
    name.clear();
  };
  for (char c : side) {
    if (c == ' ')
      end_name();
    else if (c == ',') {
      end_name();
      operands.emplace_back();
    } else {
      name += c;
    }
  }
  end_name();
  return operands;
}

}  // namespace

void apply_rule_text(std::string_view text, std::span<const Meta> in, std::span<const Meta> out, Rule& rule,
                     const char* op) {
  auto arrow = text.find("->");
  HOLON_CHECK(arrow != std::string_view::npos, "rule of {} has no arrow: {}", op, text);
  auto ins = parse_side(text.substr(0, arrow)), outs = parse_side(text.substr(arrow + 2));
  HOLON_CHECK(ins.size() >= in.size() && outs.size() == out.size(),
              "rule of {} has {} inputs and {} outputs, the op {} and {}: {}", op, ins.size(), outs.size(), in.size(),
              out.size(), text);
  std::map<std::string, int> factors;
  auto is_whole = [](const std::string& n) { return n[0] >= 'A' && n[0] <= 'Z'; };
  auto in_outputs = [&](const std::string& n) {
    for (auto& o : outs)
      for (auto& m : o.names)
        if (m == n) return true;
    return false;
  };
  auto factor_of = [&](const std::string& n) {
    auto it = factors.find(n);
    return it != factors.end() ? it->second : factors[n] = rule.factor(!in_outputs(n));
  };
  // The ellipsis' factors are counted from its right end; "...0" is the axis next to the named ones.
  auto label = [&](std::span<const Meta> metas, const std::vector<Operand>& operands, auto set) {
    for (size_t i = 0; i < metas.size(); ++i) {
      int n_names = static_cast<int>(operands[i].names.size()), lead = metas[i].shape.size() - n_names;
      if (lead < 0) continue;  // an optional input that is absent
      HOLON_CHECK(lead == 0 || operands[i].ellipsis, "rule of {}: operand {} has shape {}: {}", op, i, metas[i].shape,
                  text);
      for (int a = 0; a < metas[i].shape.size(); ++a) {
        if (a < lead) {
          int64_t full = metas[i].shape[a];
          for (size_t o = 0; o < out.size(); ++o) {
            const int out_lead = out[o].shape.size() - static_cast<int>(outs[o].names.size());
            if (int at = out_lead - lead + a; at >= 0 && at < out_lead) full = std::max(full, out[o].shape[at]);
          }
          if (metas[i].shape[a] == 1 && full != 1) continue;
          std::string n = "...";
          n += std::to_string(lead - 1 - a);
          auto it = factors.find(n);
          set(i, a, it != factors.end() ? it->second : factors[n] = rule.factor(false));
        } else if (auto& n = at_index(operands[i].names, a - lead); !is_whole(n)) {
          set(i, a, factor_of(n));
        }
      }
    }
  };
  // Outputs first, so that factors come in the order of the output's axes.
  label(out, outs, [&](size_t i, int a, int f) { rule.out(i, a, f); });
  label(in, ins, [&](size_t i, int a, int f) { rule.in(i, a, f); });
}

std::vector<Dims> shapes_by_rule(std::string_view text, std::span<const Dims> in, const char* op) {
  auto arrow = text.find("->");
  if (arrow == std::string_view::npos)
    fail_value("{}: the sharding rule \"{}\" has no arrow. Write it like \"m k, k n -> m n\".", op, text);
  auto ins = parse_side(text.substr(0, arrow)), outs = parse_side(text.substr(arrow + 2));
  if (ins.size() != in.size())
    fail_value(
        "{}: the sharding rule \"{}\" has {} inputs, the call {}. Give the axes of each input, separated by commas.",
        op, text, ins.size(), in.size());
  std::map<std::string, int64_t> sizes;
  Dims lead;
  for (size_t i = 0; i < in.size(); ++i) {
    int n_names = static_cast<int>(ins[i].names.size()), n_lead = in[i].size() - n_names;
    if (n_lead < 0 || (n_lead > 0 && !ins[i].ellipsis))
      fail_value("{}: input {} has shape {}, its part of the sharding rule \"{}\" names {} axes{}.", op, i, in[i], text,
                 n_names, ins[i].ellipsis ? " and any number in front" : "");
    Dims front;
    for (int a = 0; a < n_lead; ++a) front.push_back(in[i][a]);
    lead = broadcast_shapes(lead, front, op);
    for (int a = 0; a < n_names; ++a) {
      auto& name = at_index(ins[i].names, a);
      auto [it, fresh] = sizes.try_emplace(name, in[i][n_lead + a]);
      if (!fresh && it->second != in[i][n_lead + a])
        fail_value("{}: {} of the sharding rule \"{}\" has size {} and, in input {} of shape {}, {}.", op, name, text,
                   it->second, i, in[i], in[i][n_lead + a]);
    }
  }
  std::vector<Dims> result;
  for (auto& o : outs) {
    Dims shape = o.ellipsis ? lead : Dims();
    for (auto& name : o.names) {
      auto it = sizes.find(name);
      if (it == sizes.end())
        fail_value(
            "{}: {} of the sharding rule \"{}\" appears in no input. Give infer, which computes the outputs' shapes.",
            op, name, text);
      shape.push_back(it->second);
    }
    result.push_back(shape);
  }
  return result;
}

void elementwise_rule(std::span<const Meta> in, std::span<const Meta> out, Rule& rule) {
  int n = out[0].shape.size();
  for (int a = 0; a < n; ++a) {
    int f = rule.factor();
    for (size_t o = 0; o < out.size(); ++o) rule.out(o, a, f);
    for (size_t i = 0; i < in.size(); ++i) {
      int at = a - (n - in[i].shape.size());
      if (at >= 0 && (in[i].shape[at] != 1 || out[0].shape[a] == 1)) rule.in(i, at, f);
    }
  }
}

}  // namespace holon
