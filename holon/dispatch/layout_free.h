// Results whose bits no layout changes: what dispatch leaves out for it.
//
// Where Context::layout_free() is set, float32 sums are trees by global index (kernels/sum_tree.h). An op's kernel adds
// up in that order (Sums::kTree), or whatever it contracts is brought together first: signatures that give partial sums
// in another order are left out, as are those that let partial sums through arithmetic, which rounds.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "holon/global/placement.h"
#include "holon/registry/op_def.h"

namespace holon {

// Sets whether this rank adds up so; returns what it was before. All ranks set it alike: else their next collective
// raises an error.
bool exchange_layout_free(bool on);
bool layout_free();

// Errors (RuntimeError): the placement's kernels have no such order.
void require_layout_free(const Placement& placement, std::string_view op);

// Drops the signatures of a call that do not keep the bits, and limits the others to the numbers of ranks that do: a
// contracted axis may be split in powers of two whose parts are subtrees. Errors (TypeError): sums of two-byte dtypes.
void keep_layout_free(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out,
                      std::vector<Signature>* signatures);

// How many terms the sums of such a call have, of logical tensors: those of the axes of input 0 that its rule
// contracts. 0 where it contracts none.
int64_t terms_of_sums(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out);

// Whether at most one axis of more than one rank makes partial sums: those of two are added up in an order of their
// own.
bool sums_on_one_axis(std::span<const Signature* const> along, const Dims& hierarchy);

}  // namespace holon
