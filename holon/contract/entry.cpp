#include "holon/contract/entry.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/boxing/agree.h"
#include "holon/boxing/explain.h"
#include "holon/cost/machine.h"

namespace holon::contract {

namespace {

thread_local int any_device = 0;

// Links are named in placements up to this size: who reads of whom is found rank by rank.
constexpr int kLinked = 64;
constexpr std::string_view kTwoPhases = " in two phases";

[[noreturn]] void fail_part(std::string_view part, std::string_view text) {
  fail_value("\"{}\" is not {}", text, part);
}

// Where every rank reads as much of every other, one figure says it.
std::string who_reads(const std::vector<boxing::Link>& links) {
  std::set<int> ranks;
  for (auto& link : links) ranks.insert({link.from, link.to});
  const bool alike = std::all_of(links.begin(), links.end(), [&](auto& l) { return l.bytes == links[0].bytes; });
  if (alike && ranks.size() > 2 && links.size() == ranks.size() * (ranks.size() - 1))
    return fmt::format("each of {} links: {} bytes", links.size(), links[0].bytes);
  return boxing::links_text(links);
}

int64_t number_in(std::string_view text, std::string_view whole) {
  int64_t n = 0;
  const char* end = text.data() + text.size();
  if (std::from_chars(text.data(), end, n).ptr != end || text.empty() || n < 0) fail_part("a number", whole);
  return n;
}

// Pieces of a list that may hold lists: "(S(0), B), P" at ", " outside of brackets.
std::vector<std::string_view> list_items(std::string_view text) {
  std::vector<std::string_view> items;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    if (depth == 0 && text.substr(i, 2) == ", ") {
      items.push_back(text.substr(begin, i - begin));
      begin = i + 2;
    }
  }
  items.push_back(text.substr(begin));
  return items;
}

Sbp parse_sbp(std::string_view text) {
  if (text == "B") return sbp::broadcast();
  if (text == "P") return sbp::partial_sum();
  if (!text.starts_with("S(") || !text.ends_with(")")) fail_part("an sbp such as S(0), B or P", text);
  const int64_t axis = number_in(text.substr(2, text.size() - 3), text);
  if (axis >= kMaxAxes) fail_part("an sbp of an axis that a tensor may have", text);
  return sbp::split(static_cast<int>(axis));
}

// A spec whose placement may be left out.
const GlobalSpec* parse_spec(std::string_view text, const std::optional<Placement>& placement) {
  int depth = 0;
  size_t end = 0;
  for (; end < text.size() && !(depth == 0 && text[end] == ' '); ++end)
    depth += text[end] == '(' ? 1 : text[end] == ')' ? -1 : 0;
  const NdSbp sbp = parse_nd_sbp(text.substr(0, end));
  if (end == text.size() && !placement) fail_part("a layout with the ranks that it is on", text);
  const Placement on = end < text.size() ? parse_placement(text.substr(end + 1)) : *placement;
  if (sbp.size() != static_cast<int>(on.hierarchy().size())) fail_part("a layout with an sbp for each axis", text);
  return intern_spec(on, sbp);
}

DType parse_dtype(std::string_view text) {
  for (int d = 0; d < kDTypeCount; ++d)
    if (text == name(static_cast<DType>(d))) return static_cast<DType>(d);
  fail_part("a dtype", text);
}

Dims parse_shape(std::string_view text) {
  if (!text.starts_with("[") || !text.ends_with("]")) fail_part("a shape", text);
  Dims shape;
  text = text.substr(1, text.size() - 2);
  if (text.empty()) return shape;
  for (std::string_view n : list_items(text)) {
    if (shape.size() == kMaxAxes) fail_part("a shape of at most 8 axes", text);
    shape.push_back(number_in(n, text));
  }
  return shape;
}

void parse_times(std::string_view text, Entry* e) {
  if (!text.starts_with("x")) fail_part("how often, as x12 or x0-1", text);
  const size_t dash = text.find('-');
  e->least = number_in(text.substr(1, dash == std::string_view::npos ? dash : dash - 1), text);
  e->most = dash == std::string_view::npos ? e->least : number_in(text.substr(dash + 1), text);
  if (e->most < e->least || e->most == 0) fail_part("how often, as x12 or x0-1", text);
}

void parse_change(std::string_view text, Entry* e) {
  const size_t arrow = text.find(" -> ");
  if (arrow == std::string_view::npos) fail_part("a change of layout such as S(0) -> B cpu:0-3", text);
  e->to = parse_spec(text.substr(arrow + 4), std::nullopt);
  if (text.starts_with("local ->")) {
    e->kind = Entry::Kind::kLocal;
    return;
  }
  e->from = parse_spec(text.substr(0, arrow), e->to->placement);
}

void parse_path(std::string_view text, Entry* e) {
  if (text == "nothing to do") return;
  for (std::string_view item : list_items(text)) {
    const GlobalSpec* to = e->to;
    if (const size_t at = item.find(" to "); at != std::string_view::npos) {
      to = parse_spec(item.substr(at + 4), e->from->placement);
      item = item.substr(0, at);
    }
    const bool two_phase = item.ends_with(kTwoPhases);
    if (two_phase) item.remove_suffix(kTwoPhases.size());
    e->path.push_back({to, two_phase});
    e->kinds.emplace_back(item);
  }
}

void parse_bytes(std::string_view text, Entry* e) {
  // "most 24, all 96 bytes"
  const size_t comma = text.find(", all ");
  if (!text.starts_with("most ") || comma == std::string_view::npos || !text.ends_with(" bytes"))
    fail_part("bytes such as most 24, all 96 bytes", text);
  e->most_bytes = number_in(text.substr(5, comma - 5), text);
  e->all_bytes = number_in(text.substr(comma + 6, text.size() - comma - 6 - 6), text);
}

}  // namespace

AnyDevice::AnyDevice() { ++any_device; }
AnyDevice::~AnyDevice() { --any_device; }

std::string text_of(const Placement& p) {
  std::string text = std::string(name(p.device_type())) + ":";
  if (p.hierarchy().size() > 1) {
    for (int a = 0; a < p.hierarchy().size(); ++a) text += fmt::format("{}{}", a ? "x" : "", p.hierarchy()[a]);
    text += ":";
  }
  auto ranks = p.ranks();
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += i ? "," : "";
    text += end - i < 2 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string text_of(const GlobalSpec& spec) { return spec.nd_sbp.str() + " " + text_of(spec.placement); }

Placement parse_placement(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) fail_part("a placement such as cpu:0-3", text);
  const std::string_view type = any_device ? std::string_view("cpu") : text.substr(0, colon);
  std::string_view rest = text.substr(colon + 1);
  Dims hierarchy;
  if (const size_t second = rest.find(':'); second != std::string_view::npos) {
    std::string_view grid = rest.substr(0, second);
    while (true) {
      const size_t x = grid.find('x');
      if (hierarchy.size() == kMaxAxes) fail_part("a grid of at most 8 axes", text);
      hierarchy.push_back(number_in(grid.substr(0, x), text));
      if (x == std::string_view::npos) break;
      grid.remove_prefix(x + 1);
    }
    rest.remove_prefix(second + 1);
  }
  std::vector<int64_t> ranks;
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t dash = item.find('-');
    const int64_t first = number_in(item.substr(0, dash), text);
    const int64_t last = dash == std::string_view::npos ? first : number_in(item.substr(dash + 1), text);
    if (last < first || last - first > (1 << 20)) fail_part("a list of ranks", text);
    for (int64_t r = first; r <= last; ++r) ranks.push_back(r);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return hierarchy.empty() ? Placement(type, std::move(ranks)) : Placement(type, hierarchy, std::move(ranks));
}

NdSbp parse_nd_sbp(std::string_view text) {
  if (!text.starts_with("(")) return parse_sbp(text);
  if (!text.ends_with(")")) fail_part("a list of sbps", text);
  std::vector<Sbp> list;
  for (std::string_view item : list_items(text.substr(1, text.size() - 2))) list.push_back(parse_sbp(item));
  return list;
}

std::string text_of(std::span<const NdSbp> operands) {
  std::string text;
  for (const NdSbp& sbp : operands) text += (text.empty() ? "" : ", ") + (sbp ? sbp.str() : "-");
  return "(" + text + ")";
}

std::vector<NdSbp> parse_operands(std::string_view text) {
  if (!text.starts_with("(") || !text.ends_with(")")) fail_part("layouts in brackets such as (S(0), B)", text);
  std::vector<NdSbp> list;
  for (std::string_view item : list_items(text.substr(1, text.size() - 2)))
    list.push_back(item == "-" ? NdSbp() : parse_nd_sbp(item));
  return list;
}

boxing::Plan plan_of(const Entry& e, const std::string& file, const std::string& where) {
  // Of a placement of one rank the planner asks no figures of the machine.
  const bool alone = e.from->placement == e.to->placement && e.from->placement.size() == 1;
  boxing::Plan plan = boxing::plan_along(e.from, e.to, e.shape, e.dtype, e.path, alone ? Machine{} : *machine());
  const Entry now = entry_of("", plan);
  if (now.most_bytes != e.most_bytes || now.all_bytes != e.all_bytes)
    fail_runtime("contract {}: {}: the file says most {}, all {} bytes of {}, but the path that it names reads most "
                 "{}, all {}. It was edited, or made by another version of Holon: record it again.",
                 file, where, e.most_bytes, e.all_bytes, e.what, now.most_bytes, now.all_bytes);
  return plan;
}

std::vector<std::string_view> columns_of(std::string_view line) {
  std::vector<std::string_view> columns;
  while (true) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin == std::string_view::npos) return columns;
    line.remove_prefix(begin);
    const size_t end = line.find("  ");
    columns.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return columns;
    line.remove_prefix(end);
  }
}

std::string Entry::tensor() const { return fmt::format("{} {}", name(dtype), shape); }

std::string Entry::change() const {
  if (kind == Kind::kLocal) return "local -> " + text_of(*to);
  if (from->placement == to->placement) return from->nd_sbp.str() + " -> " + text_of(*to);
  return text_of(*from) + " -> " + text_of(*to);
}

std::string Entry::path_text() const {
  if (path.empty()) return "nothing to do";
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    text += i ? ", " : "";
    text += kinds[i];
    if (path[i].two_phase) text += kTwoPhases;
    if (i + 1 < path.size())
      text += " to " + (path[i].to->placement == from->placement ? path[i].to->nd_sbp.str() : text_of(*path[i].to));
  }
  return text;
}

std::string Entry::times() const {
  return least == most ? fmt::format("x{}", most) : fmt::format("x{}-{}", least, most);
}

std::string Entry::key() const {
  return kind == Kind::kChoice ? what : fmt::format("{}  {}  {}", what, tensor(), change());
}

std::string Entry::str() const {
  if (kind == Kind::kChoice) return fmt::format("  {:<5}  {}", times(), what);
  std::string text = fmt::format("  {:<5}  {:<24}  {:<20}  {:<20}  ", times(), what, tensor(), change());
  if (kind == Kind::kLocal)
    text += fmt::format("{:<16}  ", "agree");
  else
    text += fmt::format("{:<16}  ", path_text());
  text += fmt::format("most {}, all {} bytes", most_bytes, all_bytes);
  if (!links.empty()) text += "  " + links;
  return text;
}

Entry entry_of(std::string what, const boxing::Plan& plan) {
  Entry e;
  e.what = std::move(what);
  e.from = plan.from();
  e.to = plan.to();
  e.shape = plan.shape();
  e.dtype = plan.dtype();
  e.path = boxing::path_of(plan);
  for (auto& step : plan.steps()) {
    e.kinds.emplace_back(boxing::name(step.kind));
    for (int64_t bytes : step.read_bytes) e.all_bytes += bytes;
  }
  e.most_bytes = plan.max_read_bytes();
  if (e.most_bytes > 0 && std::max(e.from->placement.size(), e.to->placement.size()) <= kLinked)
    e.links = who_reads(plan.links());
  return e;
}

Entry entry_of_local(std::string what, const GlobalSpec* to, const Dims& shape, DType dtype) {
  Entry e;
  e.kind = Entry::Kind::kLocal;
  e.what = std::move(what);
  e.to = to;
  e.shape = shape;
  e.dtype = dtype;
  for (int64_t bytes : boxing::agreed_bytes(*to, shape, dtype)) {
    e.most_bytes = std::max(e.most_bytes, bytes);
    e.all_bytes += bytes;
  }
  return e;
}

Entry entry_of_choice(std::string_view op, std::string_view choice) {
  Entry e;
  e.kind = Entry::Kind::kChoice;
  e.what = fmt::format("{} takes {}", op, choice);
  return e;
}

Entry parse_entry(std::string_view line) {
  const auto columns = columns_of(line);
  if (columns.size() != 2 && columns.size() < 6)
    fail_value("an entry has the columns times, what, tensor, change, path and bytes, with two spaces between them; "
               "found {} in \"{}\"",
               columns.size(), line);
  Entry e;
  parse_times(columns[0], &e);
  e.what = columns[1];
  if (columns.size() == 2) {
    e.kind = Entry::Kind::kChoice;
    if (e.what.find(" takes ") == std::string::npos) fail_part("a choice such as attention takes ring", e.what);
    return e;
  }
  const size_t space = columns[2].find(' ');
  if (space == std::string_view::npos) fail_part("a dtype and a shape", columns[2]);
  e.dtype = parse_dtype(columns[2].substr(0, space));
  e.shape = parse_shape(columns[2].substr(space + 1));
  parse_change(columns[3], &e);
  if (e.kind == Entry::Kind::kMove) parse_path(columns[4], &e);
  parse_bytes(columns[5], &e);
  if (columns.size() > 6) e.links = columns[6];
  return e;
}

std::string_view op_of(const Entry& e) {
  std::string_view what = e.what;
  if (e.kind != Entry::Kind::kMove || !what.ends_with(")")) return {};
  what = what.substr(0, what.find(" ("));
  return what.substr(0, what.rfind('.'));
}

std::vector<NdSbp> targets_of(const Entry& e) {
  const size_t open = e.what.find(" (");
  if (op_of(e).empty() || open == std::string::npos) return {};
  return parse_operands(std::string_view(e.what).substr(open + 1));
}

}  // namespace holon::contract
