#include "holon/graph/passes/node_layouts.h"

#include <vector>

#include "holon/base/fmt.h"
#include "holon/contract/entry.h"

namespace holon::graph {

namespace {

constexpr std::string_view kArrow = " -> ";

template <class Specs>
std::string operands_text(const Specs& specs) {
  std::vector<NdSbp> list;
  for (auto* spec : specs) list.push_back(spec ? spec->nd_sbp : NdSbp());
  return contract::text_of(list);
}

template <class Specs>
bool change(Specs& specs, const std::vector<NdSbp>& to) {
  if (specs.size() != to.size()) return false;
  for (size_t i = 0; i < to.size(); ++i) {
    if (!specs[i]) continue;
    if (to[i].size() != specs[i]->nd_sbp.size()) return false;
    specs[i] = intern_spec(specs[i]->placement, to[i]);
  }
  return true;
}

}  // namespace

std::string call_text(const Graph& g, const Node& n, const KnownSignatures::Of& known, const NodeLayouts& layouts) {
  std::string text = fmt::format("{}: {}", place_text(g, n), n.op->name());
  for (size_t i = 0; i < layouts.in.size(); ++i)
    text += (i ? ", " : " ") +
        (layouts.in[i] ? fmt::format("{} {} {}", name(known.in[i].dtype), known.in[i].shape, layouts.in[i]->nd_sbp)
                       : "-");
  text += " gives";
  for (auto* spec : layouts.out) text += spec ? " " + spec->nd_sbp.str() : " -";
  return fmt::format("{} {}", text, contract::text_of(layouts.out[0]->placement));
}

std::string layouts_text(const NodeLayouts& layouts) {
  return fmt::format("{}{}{}", operands_text(layouts.in), kArrow, operands_text(layouts.out));
}

std::optional<NodeLayouts> layouts_from(std::string_view text, const NodeLayouts& before) {
  const size_t arrow = text.find(kArrow);
  if (arrow == std::string_view::npos) return std::nullopt;
  NodeLayouts made = before;
  if (change(made.in, contract::parse_operands(text.substr(0, arrow))) &&
      change(made.out, contract::parse_operands(text.substr(arrow + kArrow.size()))))
    return made;
  return std::nullopt;
}

}  // namespace holon::graph
