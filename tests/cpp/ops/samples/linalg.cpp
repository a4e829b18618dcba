// Small linear algebra.
#include <limits>

#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("bmm", {x({3, 4, 5}), x({3, 5, 2})});
  add("mm", {x({4, 5}), x({5, 3})});
  add("mv", {x({4, 5}), x({5})});
  for (const char* op : {"dot", "vdot"}) add(op, {x({5}), x({5})});
  add("vector_matrix_product", {x({5}), x({5, 3})});
  add("outer", {x({5}), x({3})});
  add("inner", {x({4, 5}), x({3, 5})});
  add("inner", {x({}), x({3, 5})});
  add("addmm", {x({3}), x({4, 5}), x({5, 3})}, {{"beta", 0.5}, {"alpha", 2}});
  add("addmm", {x({4, 3}), x({4, 5}), x({5, 3})}, {{"beta", 0}}, false);
  add("addmv", {x({4}), x({4, 5}), x({5})});
  add("baddbmm", {x({3, 4, 2}), x({3, 4, 5}), x({3, 5, 2})}, {{"alpha", 0.5}});
  add("addbmm", {x({4, 2}), x({3, 4, 5}), x({3, 5, 2})});
  add("einsum", {x({4, 5}), x({5, 3})}, {{"equation", "ij,jk->ik"}});
  add("einsum", {x({4, 5}), x({5, 3})}, {{"equation", "ij,jk"}});
  add("einsum", {x({3, 4, 5}), x({3, 5, 2})}, {{"equation", "bij,bjk->bik"}});
  add("einsum", {x({2, 4, 3, 5}), x({2, 6, 3, 5})}, {{"equation", "bqhd,bkhd->bhqk"}});
  add("einsum", {x({2, 3, 4}), x({4, 5})}, {{"equation", "...i,ij->...j"}});
  add("einsum", {x({5, 5})}, {{"equation", "ii->i"}});
  add("einsum", {x({5, 5})}, {{"equation", "ii"}});
  add("einsum", {x({5, 3})}, {{"equation", "ij->ji"}});
  add("einsum", {x({5}), x({3})}, {{"equation", "i,j->ij"}});
  add("einsum", {x({5, 3}), x({5, 3}), x({3})}, {{"equation", "ij,ij,j->i"}});
  add("tensordot", {x({4, 5}), x({5, 3})}, {{"dims", 1}});
  add("tensordot", {x({4, 5, 3}), x({5, 3})});
  add("tensordot_axes", {x({4, 5, 3}), x({3, 4})}, {{"dims_x", Dims{0, 2}}, {"dims_other", Dims{1, 0}}});
  add("linalg_cross", {x({5, 3}), x({5, 3})});
  add("cross", {x({3, 5}), x({3, 5})});
  add("kron", {x({2, 3}), x({5})});
  add("trace", {x({5, 3})});
  for (const char* op : {"norm", "linalg_vector_norm"}) {
    std::string p = std::string(op) == "norm" ? "p" : "ord";
    add(op, {x({5, 3})});
    add(op, {x({5, 3})}, {{p, 1}, {"dim", Dims{0}}});
    add(op, {x({5, 3})}, {{p, 3}, {"dim", Dims{-1}}, {"keepdim", true}});
    add(op, {x({5, 3}, 0.5, 2)}, {{p, -1.5}, {"dim", Dims{0}}});
    add(op, {distinct({5, 3})}, {{p, std::numeric_limits<double>::infinity()}, {"dim", Dims{1}}});
    add(op, {distinct({5, 3})}, {{p, 0}}, false);
  }
  add("norm_fro", {x({5, 3})}, {{"p", "fro"}, {"dim", Dims{0, 1}}});
  add("linalg_norm", {x({5, 3})});
  add("linalg_norm", {distinct({5, 3})}, {{"ord", 1}});
  add("linalg_norm_fro", {x({5, 3})}, {{"ord", "fro"}});
  add("linalg_matrix_norm", {x({2, 5, 3})}, {{"ord", -std::numeric_limits<double>::infinity()}});
  add("linalg_matrix_norm_fro", {x({2, 5, 3})});
});

}  // namespace holon::testing
