#include "holon/contract/deviation.h"

#include <cmath>

#include "holon/base/fmt.h"

namespace holon::contract {

namespace {

std::string time_text(double s) {
  return s < 1e-3 ? fmt::format("{:.3g} us", s * 1e6) : fmt::format("{:.3g} ms", s * 1e3);
}

std::string times_text(double ratio) {
  const double rounded = std::round(ratio * 100) / 100;
  return fmt::format("{:g} times", rounded);
}

// The columns of an entry, for a message.
std::string short_text(const Entry& e) {
  if (e.kind == Entry::Kind::kChoice) return e.what;
  return fmt::format("{}: {}, {}, {}, at most {} bytes per rank, {} in all", e.what, e.change(), e.tensor(),
                     e.kind == Entry::Kind::kLocal ? "the first rank's value" : e.path_text(), e.most_bytes,
                     e.all_bytes);
}

const Lines* lines_of(const Section& s, const Site& site) {
  for (const Lines& l : s.lines)
    if (l.site == site) return &l;
  return nullptr;
}

// What the contract has on the line in any section, the wanted one first; and in which.
const Entry* nearest(const Deviation& d, const Section** in) {
  const Entry* best = nullptr;
  auto look = [&](const Section& s) {
    if (best) return;
    if (const Lines* l = lines_of(s, d.site)) best = most_like(l->entries, *d.asked);
    if (best) *in = &s;
  };
  if (d.section) look(*d.section);
  for (const Section& s : d.document->sections) look(s);
  return best;
}

}  // namespace

const Entry* most_like(const std::vector<Entry>& entries, const Entry& e) {
  const Entry* best = nullptr;
  int most = 0;
  for (const Entry& x : entries) {
    if (x.kind != e.kind) continue;
    const int score = 1 + 8 * (x.what == e.what) + 4 * (op_of(x) == op_of(e)) + 2 * (x.shape == e.shape) +
        2 * (x.from == e.from) + 2 * (x.to == e.to) + (x.dtype == e.dtype);
    if (score > most) most = score, best = &x;
  }
  return best;
}

std::string why(const Entry& had, const Entry& asked) {
  std::vector<std::string> reasons;
  const double elements = static_cast<double>(had.shape.numel()), now = static_cast<double>(asked.shape.numel());
  if (!(had.shape == asked.shape))
    reasons.push_back(
        elements > 0 && now != elements
            ? fmt::format("{} the elements ({} instead of {})", times_text(now / elements), asked.shape, had.shape)
            : fmt::format("the shape is {} instead of {}", asked.shape, had.shape));
  if (had.dtype != asked.dtype)
    reasons.push_back(fmt::format("{} instead of {}, {} the bytes of an element", name(asked.dtype), name(had.dtype),
                                  times_text(static_cast<double>(size_bytes(asked.dtype)) /
                                             static_cast<double>(size_bytes(had.dtype)))));
  if (had.from != asked.from || had.to != asked.to) {
    auto part = [](const Entry& e) {
      const double whole = static_cast<double>(e.shape.numel()) * static_cast<double>(size_bytes(e.dtype));
      return whole > 0 ? static_cast<double>(e.most_bytes) / whole : 0;
    };
    reasons.push_back(fmt::format("{} instead of {}: a rank reads up to {} the tensor instead of {}", asked.change(),
                                  had.change(), times_text(part(asked)), times_text(part(had))));
  }
  std::string text = asked.all_bytes == had.all_bytes ? "the same bytes"
      : asked.all_bytes > had.all_bytes ? fmt::format("{} bytes more each time", asked.all_bytes - had.all_bytes)
                                        : fmt::format("{} bytes less each time", had.all_bytes - asked.all_bytes);
  for (size_t i = 0; i < reasons.size(); ++i) text += (i ? "; " : ", because of ") + reasons[i];
  return text;
}

double seconds(const Entry& e, const Machine& machine) {
  if (e.kind != Entry::Kind::kMove || e.path.empty()) return 0;
  return boxing::plan_along(e.from, e.to, e.shape, e.dtype, e.path, machine).predicted_s();
}

int64_t bytes_of(const Section& section) {
  int64_t bytes = 0;
  for (const Lines& l : section.lines)
    for (const Entry& e : l.entries) bytes += e.all_bytes * e.most;
  return bytes;
}

std::string text_of(const Deviation& d) {
  const Machine machine{parse_costs(d.document->machine, {}), {}};
  const std::string part = d.section
      ? fmt::format("{} ({})", d.section->kind == Section::Kind::kGraph ? "the graph" : "the step", d.section->title())
      : "this part of the program";
  std::string text;
  auto say = [&](const char* label, const std::string& what) { text += fmt::format("\n  {:<9} {}", label, what); };
  const Entry& e = d.asked ? *d.asked : *d.had;
  int64_t more = 0;
  if (!d.asked) {
    text = fmt::format("contract {}: {} moves less than the contract has.", d.file, d.site.where());
    say("contract:", fmt::format("{}, {} in {}", short_text(e), d.had->times(), part));
    say("now:", d.times ? fmt::format("x{}", d.times) : "nothing");
    more = -e.all_bytes * (d.had->least - d.times);
    say("why:", fmt::format("{} of it left out", d.had->least - d.times));
  } else if (d.had) {
    text = fmt::format("contract {}: {} moves data more often than the contract has.", d.file, d.site.where());
    say("contract:", fmt::format("{}, {} in {}", short_text(*d.had), d.had->times(), part));
    say("now:", fmt::format("x{}", d.times));
    more = e.all_bytes * (d.times - d.had->most);
    say("why:", fmt::format("one more {}", e.what));
  } else {
    text = fmt::format("contract {}: {} moves data that is not in the contract.", d.file, d.site.where());
    const Section* in = nullptr;
    const Entry* like = nearest(d, &in);
    say("contract:",
        like ? fmt::format("{}, {} in {}", short_text(*like), like->times(), in->title()) : "nothing on this line");
    say("now:", short_text(e));
    more = e.all_bytes - (like ? like->all_bytes : 0);
    say("why:",
        like && like->key() == e.key()                                       ? "it is in another part of the program"
            : like && like->kind == e.kind && e.kind != Entry::Kind::kChoice ? why(*like, e)
                                                                             : fmt::format("one more {}", e.what));
  }
  if (e.kind != Entry::Kind::kChoice) {
    const double s = seconds(e, machine);
    std::string cost = fmt::format("{}{} bytes", more < 0 ? "-" : "+", std::abs(more));
    if (d.section) {
      const int64_t before = bytes_of(*d.section);
      cost = fmt::format("{} bytes before, {} now ({})", before, before + more, cost);
    }
    if (s > 0) cost += fmt::format("; {} takes {} by the cost model", e.what, time_text(s));
    say("costs:", cost);
  }
  return text + "\n  Undo the change, or record the contract again and review its diff.";
}

}  // namespace holon::contract
