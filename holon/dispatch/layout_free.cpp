#include "holon/dispatch/layout_free.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/dispatch/deterministic.h"
#include "holon/kernels/sum_tree.h"

namespace holon {

namespace {

bool has_partial(const SmallVec<Sbp, 4>& sbps) {
  return std::any_of(sbps.begin(), sbps.end(), [](Sbp s) { return s.is_partial(); });
}

// Its elements are those of its inputs, whatever these are addends of.
bool moves_elements(const OpDef& op, std::span<const Meta> in, std::span<const Meta> out) {
  return (op.view || op.takes_float8) &&
      std::all_of(in.begin(), in.end(), [&](const Meta& m) { return m.dtype == out[0].dtype; });
}

int split_axis(Sbp s, const Dims& shape) {
  for (int a = 0; a < shape.size(); ++a)
    if (s.is_split(a)) return a;
  return -1;
}

// Bit a: axis a of input 0.
uint32_t contracted_axes(std::span<const Meta> in, std::span<const Signature> signatures) {
  uint32_t axes = 0;
  for (const Signature& s : signatures)
    if (!s.in.empty() && has_partial(s.out) && !has_partial(s.in))
      if (const int a = split_axis(s.in[0], in[0].shape); a >= 0) axes |= 1u << a;
  return axes;
}

int64_t terms_of(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out,
                 uint32_t contracted) {
  int64_t terms = op.terms_inside ? op.terms_inside(CallShapes(op, attrs, in, out)) : 1;
  for (int a = 0; a < in[0].shape.size(); ++a)
    if (contracted >> a & 1) terms *= in[0].shape[a];
  return terms;
}

// The number of ranks of which all that divide it get subtrees when they split `axis` of input 0; 1: none do.
int64_t parts_of_tree(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out,
                      uint32_t contracted, int axis) {
  auto other = [](const Meta& m) { return m.dtype != DType::kFloat32; };
  if (std::any_of(out.begin(), out.end(), other) || other(in[0])) return 1;
  const Dims& shape = in[0].shape;
  for (int a = 0; a < axis; ++a)
    if (contracted >> a & 1 && shape[a] != 1) return 1;  // not the outermost: the parts are not adjacent
  const int64_t n = shape[axis], terms = terms_of(op, attrs, in, out, contracted);
  return n > 0 && terms > 0 ? std::min(kernels::subtrees(terms), n & -n) : 1;
}

}  // namespace

bool layout_free() { return Context::current().layout_free(); }

bool exchange_layout_free(bool on) {
  const bool before = layout_free();
  Context::current().set_layout_free(on);
  return before;
}

void deterministic(const Deterministic& options) { exchange_layout_free(options.layout_free); }

DeterministicGuard::DeterministicGuard(const Deterministic& options)
    : before_(exchange_layout_free(options.layout_free)) {}
DeterministicGuard::~DeterministicGuard() { exchange_layout_free(before_); }

void require_layout_free(const Placement& placement, std::string_view op) {
  if (!placement.device().is_host())
    fail_runtime("deterministic(layout_free=True): {} of tensors on {} adds up in another order; only kernels of "
                 "CPUs add up in one that no layout changes. Move them to \"cpu\", or leave the mode out.",
                 op, placement);
}

void keep_layout_free(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out,
                      std::vector<Signature>* signatures) {
  for (const Meta& m : out)
    if (op.sums == Sums::kTree && is_floating(m.dtype) && size_bytes(m.dtype) < 4)
      fail_type("deterministic(layout_free=True): {} of {} rounds in an order that depends on the layout; float32 does "
                "not. Convert its inputs by to(float32), or leave the mode out.",
                op.public_name(), name(m.dtype));
  const uint32_t contracted = contracted_axes(in, *signatures);
  std::erase_if(*signatures, [&](Signature& s) {
    if (s.communicates) return true;
    if (has_partial(s.in)) return !moves_elements(op, in, out);
    if (!has_partial(s.out) || op.sums == Sums::kOneTerm) return false;
    if (op.sums != Sums::kTree || s.in.empty()) return true;
    // What the only result's sum is not over is added to it, as a bias is, and has no place in the order of the whole.
    for (size_t i = 0; i < in.size() && out.size() == 1; ++i)
      if (!s.in[i].is_split() && !in[i].shape.empty()) return true;
    const int axis = split_axis(s.in[0], in[0].shape);
    if (axis < 0) return true;
    const int64_t parts = parts_of_tree(op, attrs, in, out, contracted, axis);
    if (parts == 1) return true;
    s.even_units = s.even_units ? std::gcd(s.even_units, parts) : parts;
    return false;
  });
}

int64_t terms_of_sums(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out) {
  Rule rule(in.size(), out.size());
  RuleCall call(op, attrs, in, out, rule);
  op.rule(call);
  const uint32_t contracted = contracted_axes(in, rule.signatures(0, 0));
  return contracted ? terms_of(op, attrs, in, out, contracted) : 0;
}

bool sums_on_one_axis(std::span<const Signature* const> along, const Dims& hierarchy) {
  int axes = 0;
  for (size_t a = 0; a < along.size(); ++a)
    axes += hierarchy[static_cast<int>(a)] > 1 && has_partial(along[a]->out) && !has_partial(along[a]->in);
  return axes <= 1;
}

}  // namespace holon
