#include "holon/graph/picture/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/boxing/planner.h"
#include "holon/graph/cost/node_cost.h"
#include "holon/graph/passes/variants.h"
#include "holon/graph/picture/memory_use.h"
#include "holon/graph/picture/outline.h"
#include "holon/graph/picture/svg.h"

namespace holon::graph {

namespace {

constexpr double kLane = 216, kBetween = 16, kInset = 7, kItem = 19, kType = 15, kTitle = 18, kSkips = 26, kMargin = 24,
                 kApart = 90, kHeads = 92;
constexpr size_t kLetters = 34;  // that fit into a lane

enum class Lane : uint8_t { kForward, kBackward };

struct Style {
  const char *fill, *stroke, *text;
};
constexpr Style kForwardStyle{"#d9e8f5", "#7fb0d8", "#222"}, kBackwardStyle{"#fde6cd", "#e9a86b", "#222"},
    kWeightStyle{"#dcf1d7", "#86c07f", "#222"}, kOnceStyle{"#eeeeee", "#bbbbbb", "#222"};

Style style_of(Section s) {
  return s == Section::kForward ? kForwardStyle
      : s == Section::kBackward ? kBackwardStyle
      : s == Section::kWeight   ? kWeightStyle
                                : kOnceStyle;
}

const char* colour(boxing::StepKind kind) {
  static constexpr const char* kColours[] = {"#8a8a8a", "#a08f70", "#8657b5", "#b0478f",
                                             "#c7742a", "#c23b3b", "#1f8a7d", "#5d6fc0"};
  return at_index(kColours, kind);
}

size_t letters_of(const std::string& s) {
  return to_size(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// The first so many letters of a text in UTF-8.
std::string cut(const std::string& s, size_t letters) {
  if (letters_of(s) <= letters) return s;
  size_t end = 0;
  for (size_t n = 0; end < s.size(); ++end)
    if ((s[end] & 0xc0) != 0x80 && ++n > letters - 1) break;
  return s.substr(0, end) + "\u2026";
}

std::string last_part(const std::string& path) {
  return path.substr(path.rfind('.') == path.npos ? 0 : path.rfind('.') + 1);
}

std::string type_text(const Value& v) {
  std::string s = fmt::format("{} {}", holon::name(v.dtype), v.shape);
  return v.spec ? s + fmt::format(" {}", v.spec->nd_sbp) : s;
}

struct Item {
  std::string label, type, title;
  Style style = kForwardStyle;
  Lane lane = Lane::kForward;
  double x = 0, y = 0;
  int stage = 0, place = 0;  // place: among the lane's items, in the order in which they run
  bool boxing = false;
};

// What a boxing does and moves, by the plan.
struct Moves {
  boxing::StepKind kind = boxing::StepKind::kSlice;  // of the most expensive step
  std::string steps;
  int64_t bytes = 0;
  double seconds = 0;
};

class Drawing {
 public:
  Drawing(const Graph& g, const PlotOptions& options)
      : g_(g), options_(options), made_by_(producers(g)), item_of_(g.nodes.size(), -1) {
    for (size_t e = 0; e < g.externals.size(); ++e) stage_of_external_.push_back(std::max(0, g.stages - 1));
    std::vector<bool> seen(g.externals.size(), false);
    for (auto& n : g.nodes)
      if (n.section == Section::kForward || n.section == Section::kOnceBefore)
        for (ValueId v : n.in)
          if (v != kNoValue && g.value(v).kind == ValueKind::kExternal) {
            const auto e = to_size(g.value(v).index);
            if (!seen[e]) stage_of_external_[e] = stage_of(n), seen[e] = true;
          }
  }

  std::string draw() {
    double x = kMargin, bottom = 0;
    for (int s = 0; s < std::max(1, g_.stages); ++s) {
      auto [width, height] = column(s, x, kHeads);
      x += width + kApart;
      bottom = std::max(bottom, height);
    }
    // Arrows are drawn over the frames and under the items.
    arrows();
    Svg d;
    d.body = frames_.body + arrows_.body + items_svg_.body;
    head(d);
    return d.page(std::max(x - kApart + kMargin, 720.0), bottom + kMargin);
  }

 private:
  int stage_of(const Node& n) const { return std::clamp<int>(n.stage, 0, std::max(0, g_.stages - 1)); }
  const Node& node(NodeId n) const { return at_index(g_.nodes, n); }

  Moves moves_of(const Node& n) const {
    Moves m;
    double dearest = -1;
    for (size_t i = 0; i < n.in.size() && i < n.out.size(); ++i) {
      const Value &from = g_.value(n.in[i]), &to = g_.value(n.out[i]);
      if (!from.spec || !to.spec) continue;
      auto plan = boxing::plan(from.spec, to.spec, from.shape, from.dtype);
      m.bytes += plan.max_read_bytes();
      m.seconds += plan.predicted_s();
      for (auto& step : plan.steps()) {
        if (i == 0) m.steps += (m.steps.empty() ? "" : ", ") + step.label;
        if (step.communicates() && step.predicted_s > dearest) dearest = step.predicted_s, m.kind = step.kind;
        if (!step.communicates() && dearest < 0) m.kind = step.kind;
      }
    }
    return m;
  }

  std::string call_text(const Node& n) const {
    std::string s = n.op ? n.op->name() : name(n.kind);
    if (n.kind == NodeKind::kFused) {
      s = "fused:";
      for (auto& p : at_index(g_.bodies, n.target).parts) s += std::string(" ") + p.op->name();
    }
    if (n.kind == NodeKind::kAccumulate) s = "sum over micro-batches";
    if (n.kind == NodeKind::kAssign) s = "write " + last_part(at_index(g_.externals, n.target).name);
    for (ValueId v : n.in) {
      if (v == kNoValue) continue;
      const Value& value = g_.value(v);
      if (value.kind == ValueKind::kInput) s += fmt::format(" \u00b7 input{}", value.index);
      if (value.kind == ValueKind::kExternal && !at_index(g_.externals, value.index).name.empty())
        s += " \u00b7 " + last_part(at_index(g_.externals, value.index).name);
    }
    return s;
  }

  Item item_of(const Node& n) {
    Item item;
    item.style = style_of(n.section);
    item.stage = stage_of(n);
    item.lane = n.section == Section::kForward ? Lane::kForward : Lane::kBackward;
    item.title = str(g_, n);
    item.label = call_text(n);
    if (!n.out.empty()) item.type = type_text(g_.value(n.out[0]));
    if (n.out.size() > 1 && n.kind != NodeKind::kBoxing) item.type += fmt::format(" +{}", n.out.size() - 1);
    if (n.kind == NodeKind::kBoxing) {
      const Moves m = moves_of(n);
      item.boxing = true;
      kinds_.insert(m.kind);
      item.style = {colour(m.kind), "#444", "#fff"};
      auto *from = g_.value(n.in[0]).spec, *to = g_.value(n.out[0]).spec;
      const bool crosses = from && to && !(from->placement == to->placement);
      item.label = fmt::format("{}{} {}", n.in.size() > 1 ? fmt::format("{} \u00d7 ", n.in.size()) : "", m.steps,
                               bytes_text(m.bytes));
      if (letters_of(item.label) > kLetters)
        item.label = fmt::format("{}{} {}", n.in.size() > 1 ? fmt::format("{} \u00d7 ", n.in.size()) : "",
                                 boxing::name(m.kind), bytes_text(m.bytes));
      if (crosses)
        item.type = fmt::format("{} {} from {}", holon::name(g_.value(n.out[0]).dtype), g_.value(n.out[0]).shape,
                                ranks_text(from));
      item.title += fmt::format("\n{}\n{} bytes read by a rank at most, {:.0f} us", m.steps, m.bytes, m.seconds * 1e6);
    }
    return item;
  }

  static std::string ranks_text(const GlobalSpec* spec) {
    std::string all = spec->placement.str();
    auto at = all.find("ranks=");
    return at == all.npos ? all : "ranks " + all.substr(at + 6, all.size() - at - 7);
  }

  // A frame that is one item, in one of its lanes.
  Item summary(const std::string& name, const std::vector<NodeId>& nodes, Lane lane) {
    Item item;
    item.lane = lane;
    std::map<std::string, int> count;
    int64_t bytes = 0;
    int boxings = 0, ops = 0;
    double dearest = -1;
    boxing::StepKind kind = boxing::StepKind::kSlice;
    const Node* last = nullptr;
    for (NodeId id : nodes) {
      const Node& n = node(id);
      last = &n;
      if (n.kind != NodeKind::kBoxing) {
        ++ops;
        ++count[n.op ? n.op->name() : graph::name(n.kind)];
        continue;
      }
      const Moves m = moves_of(n);
      ++boxings;
      bytes += m.bytes;
      if (m.seconds > dearest) dearest = m.seconds, kind = m.kind;
    }
    item.stage = last ? stage_of(*last) : 0;
    item.style = lane == Lane::kForward ? kForwardStyle : kBackwardStyle;
    const std::string counted = fmt::format("{} op{}", ops, ops == 1 ? "" : "s");
    item.label = fmt::format("{}: {}", name, counted);
    for (auto& [op, n] : count) item.title += fmt::format("{}{} {}", item.title.empty() ? "" : ", ", n, op);
    if (boxings) {
      kinds_.insert(kind);
      item.label = fmt::format("{}: {}, {}", name, counted, bytes_text(bytes));
      item.title += fmt::format("\n{} boxings, {} bytes read by a rank at most", boxings, bytes);
      item.style.stroke = colour(kind);
      item.boxing = true;
    }
    if (last && !last->out.empty()) item.type = type_text(g_.value(last->out[0]));
    return item;
  }

  // The extent of rows, in items of a lane each.
  void place(Item item, const std::vector<NodeId>& nodes, double y) {
    item.x = at_index(lane_x_, item.lane);
    item.y = y;
    for (NodeId n : nodes) at_index(item_of_, n) = static_cast<int>(items_.size());
    items_.push_back(std::move(item));
  }

  double rows(const Outline& o, double left, double width, double y, int depth) {
    for (auto& row : o.rows) {
      if (!row.group) {
        const size_t n = std::max(row.forward.size(), row.backward.size());
        for (size_t i = 0; i < row.forward.size(); ++i)
          place(item_of(node(row.forward[i])), {row.forward[i]}, y + static_cast<double>(i) * (kItem + kType));
        // What is not as long is at the end where the other lane goes on.
        for (size_t i = 0; i < row.backward.size(); ++i)
          place(item_of(node(row.backward[i])), {row.backward[i]}, y + static_cast<double>(i) * (kItem + kType));
        y += static_cast<double>(n) * (kItem + kType) + (n ? 4 : 0);
        continue;
      }
      const Outline* group = row.group.get();
      std::string title = title_of(*group);
      // A module that only holds another one needs no frame of its own.
      while (group->rows.size() == 1 && group->rows[0].group && group->repeats == 1) {
        group = group->rows[0].group.get();
        title += "." + title_of(*group);
      }
      if (depth <= 1) {
        std::vector<NodeId> forward, backward;
        for (NodeId n : group->nodes()) (node(n).section == Section::kForward ? forward : backward).push_back(n);
        std::sort(forward.begin(), forward.end());
        std::sort(backward.begin(), backward.end());
        if (!forward.empty()) place(summary(title, forward, Lane::kForward), forward, y);
        if (!backward.empty()) place(summary(title, backward, Lane::kBackward), backward, y);
        hide(*group);
        y += kItem + kType + 4;
        continue;
      }
      const size_t under = frames_.body.size();
      const double top = y, inner = rows(*group, left + kInset, width - 2 * kInset, y + kTitle, depth - 1);
      Svg frame;
      for (int k = std::min(group->repeats, 3) - 1; k >= 0; --k)
        frame.rect(left + 4.0 * k, top + 4.0 * k, width, inner - top, "rx=\"5\" fill=\"#fafafa\" stroke=\"#aaa\"");
      items_svg_.text(left + 7, top + 13, title, "class=\"note over\" font-weight=\"bold\"");
      frames_.body.insert(under, frame.body);
      hide(*group);
      y = inner + 6 + (group->repeats > 1 ? 8 : 0);
    }
    return y;
  }

  static std::string title_of(const Outline& o) {
    return o.repeats == 1 ? o.name : fmt::format("{} \u2026 {}  (\u00d7 {})", o.name, o.last_name, o.repeats);
  }

  // Copies that are not drawn represent the one that is.
  void hide(const Outline& o) {
    const auto own = o.nodes();
    for (auto& other : o.others)
      for (size_t i = 0; i < own.size() && i < other.size(); ++i)
        at_index(item_of_, other[i]) = at_index(item_of_, own[i]);
  }

  // What happens once per step: a line for all that look alike.
  double once(Section section, int stage, double left, double width, double y) {
    std::map<std::string, std::pair<int, Item>> lines;
    std::vector<std::string> order;
    for (auto& n : g_.nodes) {
      if (n.section != section || stage_of(n) != stage || n.kind == NodeKind::kUpdate || n.kind == NodeKind::kRelabel)
        continue;
      Item item = item_of(n);
      const std::string key = n.kind == NodeKind::kBoxing ? fmt::format("{}{}", item.label, item.title.size() < 2)
                                                          : (n.op ? n.op->name() : name(n.kind));
      auto [it, fresh] = lines.try_emplace(key, 0, item);
      if (fresh) order.push_back(key);
      if (++it->second.first > 1) it->second.second.type = "";
      if (n.kind != NodeKind::kBoxing) it->second.second.label = it->second.first > 1 ? key : item.label;
    }
    for (auto& n : g_.nodes) {
      if (n.kind != NodeKind::kUpdate || n.section != section) continue;
      int own = 0;
      int64_t bytes = 0;
      for (int32_t e : at_index(g_.updates, n.target).externals)
        if (at_index(stage_of_external_, e) == stage)
          ++own, bytes += part_bytes(g_.value(at_index(g_.externals, e).value));
      if (!own) continue;
      Item item;
      item.style = {"#d6d0e8", "#8f7fc0", "#222"};
      item.label = fmt::format("update {}: {} parameters, {}", n.target, own, bytes_text(bytes));
      item.title = str(g_, n);
      const std::string key = fmt::format("update {}", n.target);
      lines.try_emplace(key, 1, item);
      order.push_back(key);
    }
    if (order.empty()) return y;
    const double top = y;
    const size_t under = frames_.body.size();
    frames_.text(left + 7, y + 13,
                 section == Section::kOnceBefore ? "once, before the first micro-batch"
                                                 : "once, after the last micro-batch",
                 "class=\"note\" font-style=\"italic\"");
    y += kTitle + 2;
    for (auto& key : order) {
      auto& [count, item] = lines[key];
      if (count > 1) item.label = fmt::format("{} \u00d7 {}", count, item.label);
      item.x = lane_x_[0];
      item.y = y;
      draw_item(item, width - 2 * (lane_x_[0] - left));
      y += kItem + 4;
    }
    frames_.body.insert(under,
                        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"5\" "
                                    "fill=\"#f6f6f6\" stroke=\"#bbb\" "
                                    "stroke-dasharray=\"4 3\"/>\n",
                                    left, top, width, y - top + 2));
    return y + 12;
  }

  std::string head_of(int stage) const {
    std::set<std::string> where;
    int64_t kept = 0;
    std::vector<bool> counted(g_.values.size(), false);
    for (auto& n : g_.nodes) {
      if (stage_of(n) != stage) continue;
      if (n.kind != NodeKind::kBoxing && n.section == Section::kForward)
        for (ValueId v : n.out)
          if (auto* spec = g_.value(v).spec) where.insert(ranks_text(spec));
      if (n.section != Section::kBackward && n.section != Section::kWeight) continue;
      for (ValueId v : n.in) {
        if (v == kNoValue || at_index(counted, v)) continue;
        at_index(counted, v) = true;
        const NodeId by = at_index(made_by_, v);
        if (by >= 0 && node(by).section == Section::kForward) kept += part_bytes(g_.value(v));
      }
    }
    std::string s;
    for (auto& w : where) s += (s.empty() ? "" : " and ") + w;
    if (s.empty()) s = "local tensors";
    return kept ? s +
            fmt::format("; keeps {} for backward{}", bytes_text(kept), g_.micro_batches > 1 ? " of a micro-batch" : "")
                : s;
  }

  std::pair<double, double> column(int stage, double x, double y) {
    Outline o = outline(g_, stage, options_.fold);
    int depth = o.depth() + 1;
    while (depth > 2 && o.items(depth) > options_.most_items) --depth;
    two_lanes_ = false;
    for (auto& n : g_.nodes)
      two_lanes_ |= stage_of(n) == stage && (n.section == Section::kBackward || n.section == Section::kWeight);
    const double inset = kInset * depth + kSkips;
    lane_x_ = {x + inset, x + inset + kLane + kBetween};
    const double width = 2 * inset + kLane + (two_lanes_ ? kLane + kBetween : 0);
    columns_.push_back({x, width, two_lanes_});
    frames_.text(x, y, fmt::format("stage {}", stage), "class=\"head\"");
    // Up to where the next stage's begins.
    frames_.text(x + 70, y, cut(head_of(stage), static_cast<size_t>((width + kApart - 80) / 6.8)), "class=\"note\"");
    y = once(Section::kOnceBefore, stage, x, width, y + 18);
    frames_.text(lane_x_[0], y + 12, "forward \u2193", "class=\"axis\"");
    if (two_lanes_) frames_.text(lane_x_[1], y + 12, "backward \u2191", "class=\"axis\"");
    const size_t first = items_.size();
    y = rows(o, x, width, y + 20, depth);
    for (size_t i = first; i < items_.size(); ++i) draw_item(items_[i], kLane);
    y = once(Section::kOnceAfter, stage, x, width, y + 8);
    return {width, y};
  }

  void draw_item(const Item& item, double width) {
    items_svg_.rect(item.x, item.y, width, kItem,
                    fmt::format("rx=\"3\" fill=\"{}\" stroke=\"{}\"{}", item.style.fill, item.style.stroke,
                                item.boxing && item.style.text[1] != 'f' ? " stroke-width=\"2.5\"" : ""),
                    item.title);
    items_svg_.text(item.x + 6, item.y + 13.5, cut(item.label, static_cast<size_t>(width / kLane * kLetters)),
                    fmt::format("class=\"op\" fill=\"{}\" pointer-events=\"none\"", item.style.text).c_str());
    if (!item.type.empty() && width == kLane)
      items_svg_.text(item.x + 18, item.y + kItem + 10.5, cut(item.type, kLetters + 2), "class=\"type over\"");
  }

  // From who makes a value to who reads it. Neighbours of a lane get a short arrow, others a curve next to the lane;
  // from stage to stage a thick one with what moves.
  void arrows() {
    std::set<std::pair<int, int>> done;
    for (auto& n : g_.nodes) {
      const int to = at_index(item_of_, &n - g_.nodes.data());
      if (to < 0) continue;
      for (ValueId v : n.in) {
        const NodeId by = v == kNoValue ? -1 : at_index(made_by_, v);
        const int from = by < 0 ? -1 : at_index(item_of_, by);
        if (from < 0 || from == to || !done.insert({from, to}).second) continue;
        arrow(at_index(items_, from), at_index(items_, to));
      }
    }
  }

  // The way from an item to one of another stage. From a lane that has another one before it, and past whole stages, it
  // goes up between the lanes and along under the heads, so that it crosses no item.
  std::string between_stages(const Item& a, const Item& b) {
    const bool right = b.x > a.x;
    const double side = right ? 1 : -1, x1 = right ? a.x + kLane : a.x, x2 = right ? b.x : b.x + kLane,
                 y1 = a.y + kItem / 2, y2 = b.y + kItem / 2;
    const Column &from = at_index(columns_, a.stage), &to = at_index(columns_, b.stage);
    // Whether an item's lane is the last one towards the other stage.
    auto outer = [](const Column& c, const Item& i, bool right) {
      return !c.two_lanes || (i.lane == Lane::kBackward) == right;
    };
    const bool leaves = outer(from, a, right), enters = outer(to, b, !right);
    if (leaves && enters && std::abs(a.stage - b.stage) == 1) {
      const double bend = side * std::clamp(std::abs(x2 - x1) / 2, 30.0, 120.0);
      return fmt::format("M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", x1, y1, x1 + bend, y1, x2 - bend,
                         y2, x2, y2);
    }
    // Several ways are next to each other.
    const double apart = 3.0 * (ways_++ % 3), along = kHeads + 8 + apart;
    const double up = leaves ? (right ? from.x + from.width : from.x) + side * (kApart / 4 + apart)
                             : x1 + side * (kBetween / 2 - 3 + apart),
                 down = enters ? (right ? to.x : to.x + to.width) - side * (kApart / 4 + apart)
                               : x2 - side * (kBetween / 2 - 3 + apart);
    return fmt::format("M{:.1f} {:.1f}H{:.1f}V{:.1f}H{:.1f}V{:.1f}H{:.1f}", x1, y1, up, along, down, y2, x2);
  }

  void arrow(const Item& a, const Item& b) {
    auto colour_of = [](const Item& i) { return i.style.text[1] == 'f' ? i.style.fill : i.style.stroke; };
    const char* colour = b.boxing ? colour_of(b) : a.boxing ? colour_of(a) : "#999";
    if (a.stage != b.stage) {
      arrows_.path(between_stages(a, b),
                   fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"2.2\" stroke-linejoin=\"round\" "
                               "marker-end=\"url(#tip)\"",
                               b.boxing ? colour_of(b) : "#1f8a7d"));
      return;
    }
    if (a.lane != b.lane) return;  // what backward keeps of forward: the frame next to it shows it
    const bool up = b.lane == Lane::kBackward;
    const double distance = (up ? a.y - b.y : b.y - a.y);
    if (distance <= 0) return;
    bool between = false;
    for (auto& other : items_)
      between |= other.stage == a.stage && other.lane == a.lane && other.y > std::min(a.y, b.y) &&
          other.y < std::max(a.y, b.y);
    if (!between) {
      const double x = a.x + 9, y1 = up ? a.y : a.y + kItem, y2 = up ? b.y + kItem : b.y;
      arrows_.line(x, y1, x, y2, fmt::format("stroke=\"{}\" marker-end=\"url(#tip)\"", colour));
      return;
    }
    const double out = std::min(kSkips - 4.0, 8 + distance / 40), side = up ? a.x + kLane : a.x,
                 x = up ? side + out : side - out;
    arrows_.path(fmt::format("M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", side, a.y + kItem / 2, x,
                             a.y + kItem / 2, x, b.y + kItem / 2, side, b.y + kItem / 2),
                 "fill=\"none\" stroke=\"#b5b5b5\" marker-end=\"url(#tip)\"");
  }

  void head(Svg& d) const {
    const std::string title = options_.title.empty() ? "plan of a step" : cut(options_.title, 40);
    d.text(kMargin, 30, title, "class=\"head\"");
    std::string sizes =
        fmt::format("{} nodes, {} stage{}, {}", g_.nodes.size(), g_.stages, g_.stages == 1 ? "" : "s",
                    g_.micro_batches == 1 ? "1 micro-batch" : fmt::format("{} micro-batches", g_.micro_batches));
    d.text(kMargin + std::max(260.0, 10.5 * static_cast<double>(letters_of(title))), 30, sizes, "class=\"note\"");
    double x = kMargin;
    auto legend = [&](const char* fill, const std::string& words) {
      d.rect(x, 44, 13, 13, fmt::format("rx=\"2\" fill=\"{}\"", fill));
      d.text(x + 18, 55, words, "class=\"note\"");
      x += 34 + 6.6 * static_cast<double>(words.size());
    };
    legend(kForwardStyle.fill, "forward");
    bool backward = false, weight = false;
    for (auto& n : g_.nodes) backward |= n.section == Section::kBackward, weight |= n.section == Section::kWeight;
    if (backward) legend(kBackwardStyle.fill, "backward");
    if (weight) legend(kWeightStyle.fill, "gradients of weights");
    for (auto kind : kinds_) legend(colour(kind), boxing::name(kind));
    if (!kinds_.empty()) d.text(x, 55, "Bytes: what a rank reads at most.", "class=\"axis\"");
  }

  const Graph& g_;
  const PlotOptions& options_;
  std::vector<NodeId> made_by_;
  std::vector<int> item_of_, stage_of_external_;
  std::vector<Item> items_;
  struct Column {
    double x, width;
    bool two_lanes;
  };
  std::vector<Column> columns_;  // of the stages
  int ways_ = 0;                 // between stages along the heads
  std::array<double, 2> lane_x_{};
  bool two_lanes_ = false;
  std::set<boxing::StepKind> kinds_;
  Svg frames_, arrows_, items_svg_;
};

}  // namespace

std::string plan_svg(const Graph& g, const PlotOptions& options) {
  if (g.variants() == 1) return Drawing(g, options).draw();
  const Graph one = only_variant(g, 0);
  return Drawing(one, options).draw();
}

}  // namespace holon::graph
