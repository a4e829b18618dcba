// Small linear algebra: products with their own name, contractions by index letters, norms. All are made of the
// products in matmul.cpp, reductions and views, so that their distribution follows from those.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "holon/base/index.h"
#include "holon/internal_ops/reduce.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/linalg.h"
#include "holon/ops/matmul.h"
#include "holon/ops/rearrange.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

void require_axes(const char* op, const char* name, const Tensor& t, int n) {
  if (t.ndim() != n) fail_value("{}: {} is {}; it takes {} {}.", op, name, t.shape(), n, n == 1 ? "axis" : "axes");
}

void require_inner(const char* op, const Tensor& a, const Tensor& b, int64_t inner_a, int64_t inner_b) {
  if (inner_a != inner_b)
    fail_value("{}: inner sizes differ: {} and {}. Transpose one of them first.", op, a.shape(), b.shape());
}

// beta x + alpha product
Tensor blend(const BodyCall& c, const Tensor& x, Tensor product) {
  Scalar beta = c.scalar("beta"_attr), alpha = c.scalar("alpha"_attr);
  if (alpha.as_double() != 1) product = mul(product, alpha);
  if (broadcast_shapes(x.shape(), product.shape(), c.op().public_name()) != product.shape())
    fail_value("{}: x {} does not broadcast to the product {}.", c.op().public_name(), x.shape(), product.shape());
  // As in PyTorch, x is not read where beta is 0.
  if (beta.as_double() == 0) return product;
  return add(beta.as_double() == 1 ? x : mul(x, beta), product);
}

Tensor batched(const char* op, const Tensor& a, const Tensor& b) {
  require_axes(op, "the first matrix", a, 3);
  require_axes(op, "the second matrix", b, 3);
  if (a.shape()[0] != b.shape()[0])
    fail_value("{}: the numbers of matrices differ: {} and {}.", op, a.shape(), b.shape());
  require_inner(op, a, b, a.shape()[2], b.shape()[1]);
  return matmul(a, b);
}

Tensor matrices(const char* op, const Tensor& a, const Tensor& b) {
  require_axes(op, "the first matrix", a, 2);
  require_axes(op, "the second matrix", b, 2);
  require_inner(op, a, b, a.shape()[1], b.shape()[0]);
  return matmul(a, b);
}

Tensor matrix_vector(const char* op, const Tensor& a, const Tensor& v) {
  require_axes(op, "the matrix", a, 2);
  require_axes(op, "the vector", v, 1);
  require_inner(op, a, v, a.shape()[1], v.shape()[0]);
  return matmul(a, v);
}

Tensor vectors(const char* op, const Tensor& a, const Tensor& b) {
  require_axes(op, "the first vector", a, 1);
  require_axes(op, "the second vector", b, 1);
  require_inner(op, a, b, a.shape()[0], b.shape()[0]);
  return matmul(a, b);
}

Tensor reshaped(const Tensor& t, const Dims& shape) { return t.shape() == shape ? t : reshape(t, shape); }

Tensor permuted(const Tensor& t, const Dims& order) {
  for (int a = 0; a < order.size(); ++a)
    if (order[a] != a) return permute(t, order);
  return t;
}

// ---- contraction by letters. A label is a letter's code, or -1 - k for the axis of the ellipsis that is k-th from its
// end.
using Labels = std::vector<int>;

bool has(const Labels& l, int label) { return std::find(l.begin(), l.end(), label) != l.end(); }

struct Operand {
  Tensor t;
  Labels labels;
  int64_t size(int label) const {
    for (size_t a = 0; a < labels.size(); ++a)
      if (labels[a] == label) return t.shape()[static_cast<int>(a)];
    return 1;
  }
};

// The operand's axes in the order of the labels, which it all has.
Tensor ordered(const Operand& o, const Labels& labels) {
  Dims order;
  for (int l : labels) order.push_back(std::find(o.labels.begin(), o.labels.end(), l) - o.labels.begin());
  return permuted(o.t, order);
}

// Axes of one letter become their diagonal.
void take_diagonals(Operand& o) {
  for (size_t a = 0; a < o.labels.size(); ++a)
    for (size_t b = a + 1; b < o.labels.size(); ++b)
      if (o.labels[a] == o.labels[b]) {
        int label = o.labels[a];
        o.t = diagonal(o.t, 0, static_cast<int64_t>(a), static_cast<int64_t>(b));
        o.labels.erase(o.labels.begin() + static_cast<int64_t>(b));
        o.labels.erase(o.labels.begin() + static_cast<int64_t>(a));
        o.labels.push_back(label);
        return take_diagonals(o);
      }
}

// Sums over the axes whose labels `keep` does not need.
template <class F>
void sum_out(Operand& o, F keep) {
  Dims axes;
  Labels left;
  for (size_t a = 0; a < o.labels.size(); ++a) {
    if (keep(o.labels[a]))
      left.push_back(o.labels[a]);
    else
      axes.push_back(static_cast<int64_t>(a));
  }
  if (axes.empty()) return;
  DType dtype = o.t.dtype();
  o.t = sum(o.t, axes);
  if (o.t.dtype() != dtype) o.t = cast(o.t, dtype);
  o.labels = left;
}

template <class F>
Operand contract(Operand a, Operand b, F needed) {
  sum_out(a, [&](int l) { return needed(l) || has(b.labels, l); });
  sum_out(b, [&](int l) { return needed(l) || has(a.labels, l); });
  Labels batch, inner, only_a, only_b;
  for (int l : a.labels) (!has(b.labels, l) ? only_a : needed(l) ? batch : inner).push_back(l);
  for (int l : b.labels)
    if (!has(a.labels, l)) only_b.push_back(l);
  // An axis of size 1 of the ellipsis represents any size.
  for (auto it = inner.begin(); it != inner.end();) {
    if (a.size(*it) == b.size(*it)) {
      ++it;
      continue;
    }
    Operand& small = a.size(*it) == 1 ? a : b;
    Operand& large = a.size(*it) == 1 ? b : a;
    int label = *it;
    sum_out(small, [&](int l) { return l != label; });
    sum_out(large, [&](int l) { return l != label; });
    it = inner.erase(it);
  }
  auto joined = [](std::initializer_list<const Labels*> parts) {
    Labels all;
    for (auto* p : parts) all.insert(all.end(), p->begin(), p->end());
    return all;
  };
  Dims shape_a, shape_b, out;
  int64_t m = 1, n = 1, k = 1;
  for (int l : batch) {
    shape_a.push_back(a.size(l));
    shape_b.push_back(b.size(l));
    out.push_back(std::max(a.size(l), b.size(l)) * (a.size(l) && b.size(l)));
  }
  for (int l : only_a) m *= a.size(l), out.push_back(a.size(l));
  for (int l : only_b) n *= b.size(l), out.push_back(b.size(l));
  for (int l : inner) k *= a.size(l);
  Operand c{{}, joined({&batch, &only_a, &only_b})};
  if (inner.empty()) {
    Dims wide_a = shape_a, wide_b = shape_b;
    for (int l : only_a) wide_a.push_back(a.size(l)), wide_b.push_back(1);
    for (int l : only_b) wide_a.push_back(1), wide_b.push_back(b.size(l));
    c.t = mul(reshaped(ordered(a, joined({&batch, &only_a})), wide_a),
              reshaped(ordered(b, joined({&batch, &only_b})), wide_b));
    return c;
  }
  shape_a.push_back(m), shape_a.push_back(k);
  shape_b.push_back(k), shape_b.push_back(n);
  c.t = reshaped(matmul(reshaped(ordered(a, joined({&batch, &only_a, &inner})), shape_a),
                        reshaped(ordered(b, joined({&batch, &inner, &only_b})), shape_b)),
                 out);
  return c;
}

// One side of the equation; ellipsis: how many axes "..." represents, -1 where it is not allowed.
Labels read_labels(std::string_view text, int ellipsis, std::string_view equation) {
  Labels labels;
  bool seen = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '.') {
      if (seen || text.substr(i, 3) != "...")
        fail_value("einsum: \"{}\" has a '.' outside \"...\", or two \"...\" in one operand.", equation);
      for (int k = ellipsis - 1; k >= 0; --k) labels.push_back(-1 - k);
      seen = true;
      i += 2;
    } else if ((text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z')) {
      labels.push_back(text[i]);
    } else {
      fail_value("einsum: \"{}\" has the character '{}'. An index must be a letter.", equation, text[i]);
    }
  }
  return labels;
}

std::string name_of(int label) { return label < 0 ? "..." : std::string(1, static_cast<char>(label)); }

Tensor einsum_of(std::string_view equation, std::span<const Tensor> tensors) {
  std::string text;
  for (char ch : equation)
    if (ch != ' ') text += ch;
  size_t arrow = text.find("->");
  std::string left = text.substr(0, arrow);
  std::vector<std::string> terms(1);
  for (char ch : left) {
    if (ch == ',')
      terms.emplace_back();
    else
      terms.back() += ch;
  }
  if (terms.size() != tensors.size())
    fail_value("einsum: \"{}\" has {} operands, {} tensors were given.", equation, terms.size(), tensors.size());
  std::vector<Operand> operands;
  std::map<int, int64_t> sizes;
  std::map<int, int> seen;
  int most = 0;
  bool any_ellipsis = false;
  for (size_t i = 0; i < terms.size(); ++i) {
    bool dots = terms[i].find('.') != std::string::npos;
    int letters = static_cast<int>(terms[i].size()) - (dots ? 3 : 0), rest = tensors[i].ndim() - letters;
    if (rest < 0 || (rest > 0 && !dots))
      fail_value("einsum: operand {} of \"{}\" is \"{}\", and its tensor has the shape {}. Give one letter for each "
                 "axis, or \"...\".",
                 i, equation, terms[i], tensors[i].shape());
    any_ellipsis |= dots;
    most = std::max(most, dots ? rest : 0);
    Operand o{tensors[i], read_labels(terms[i], rest, equation)};
    for (size_t a = 0; a < o.labels.size(); ++a) {
      int64_t n = o.t.shape()[static_cast<int>(a)];
      auto [it, fresh] = sizes.try_emplace(o.labels[a], n);
      if (!fresh && it->second != n && !(o.labels[a] < 0 && (n == 1 || it->second == 1)))
        fail_value("einsum: index {} of \"{}\" has the sizes {} and {} (operand {} is {}).", name_of(o.labels[a]),
                   equation, it->second, n, i, o.t.shape());
      if (it->second == 1) it->second = n;
      ++seen[o.labels[a]];
    }
    take_diagonals(o);
    operands.push_back(std::move(o));
  }
  Labels out;
  if (arrow == std::string::npos) {
    for (int k = most - 1; k >= 0; --k) out.push_back(-1 - k);
    for (auto& [label, times] : seen)
      if (label > 0 && times == 1) out.push_back(label);
  } else {
    std::string right = text.substr(arrow + 2);
    if (right.find('.') != std::string::npos && !any_ellipsis)
      fail_value("einsum: the result of \"{}\" has \"...\", but no operand has one.", equation);
    out = read_labels(right, most, equation);
    for (size_t a = 0; a < out.size(); ++a) {
      if (!seen.count(out[a]))
        fail_value("einsum: index {} of the result of \"{}\" appears in no operand.", name_of(out[a]), equation);
      if (std::count(out.begin(), out.end(), out[a]) > 1)
        fail_value("einsum: index {} appears twice in the result of \"{}\".", name_of(out[a]), equation);
    }
  }
  Operand all = operands[0];
  for (size_t i = 1; i < operands.size(); ++i)
    all = contract(std::move(all), operands[i], [&](int l) {
      bool needed = has(out, l);
      for (size_t j = i + 1; j < operands.size(); ++j) needed |= has(operands[j].labels, l);
      return needed;
    });
  sum_out(all, [&](int l) { return has(out, l); });
  return ordered(all, out);
}

Tensor tensordot_of(const Tensor& a, const Tensor& b, const Dims& dims_a, const Dims& dims_b) {
  if (dims_a.size() != dims_b.size())
    fail_value("tensordot: {} axes of the first tensor and {} of the second are named. Name the same number.",
               dims_a.size(), dims_b.size());
  if (!dims_a.empty() && (a.ndim() == 0 || b.ndim() == 0))
    fail_value("tensordot: axes {} of {} and {} of {} are named; a tensor without axes has none to name.", dims_a,
               a.shape(), dims_b, b.shape());
  Operand x{a, {}}, y{b, {}};
  for (int d = 0; d < a.ndim(); ++d) x.labels.push_back(1 + d);
  for (int d = 0; d < b.ndim(); ++d) y.labels.push_back(101 + d);
  for (int i = 0; i < dims_a.size(); ++i) {
    auto p = to_size(normalize_axis(dims_a[i], a.ndim(), "tensordot")),
         q = to_size(normalize_axis(dims_b[i], b.ndim(), "tensordot"));
    if (a.shape()[static_cast<int>(p)] != b.shape()[static_cast<int>(q)])
      fail_value("tensordot: axis {} of {} and axis {} of {} differ in size.", p, a.shape(), q, b.shape());
    if (x.labels[p] > 200 || y.labels[q] > 200)
      fail_value("tensordot: an axis is named twice: {} and {}.", dims_a, dims_b);
    x.labels[p] = y.labels[q] = 201 + i;
  }
  Labels out;
  for (int l : x.labels)
    if (l < 200) out.push_back(l);
  for (int l : y.labels)
    if (l < 200) out.push_back(l);
  return ordered(contract(x, y, [&](int l) { return has(out, l); }), out);
}

// ---- norms
Tensor norm_input(const BodyCall& c) {
  Tensor x = c.in(0);
  if (c.has("dtype"_attr)) x = x.dtype() == c.dtype("dtype"_attr) ? x : cast(x, c.dtype("dtype"_attr));
  if (!is_floating(x.dtype()))
    fail_runtime("{}: x is {}; a norm is defined for floating point tensors. Convert it first, e.g. x.to(float32).",
                 c.op().public_name(), name(x.dtype()));
  if (c.has("dim"_attr))
    for (int64_t d : c.ints("dim"_attr)) normalize_axis(d, x.ndim(), c.op().public_name());
  return x;
}

Tensor as(const Tensor& t, DType dtype) { return t.dtype() == dtype ? t : cast(t, dtype); }

Tensor vector_norm_of(const Tensor& x, double p, const std::optional<Dims>& dim, bool keepdim) {
  if (p == 2) return as(root(sum_squares(x, dim, keepdim)), x.dtype());
  if (p == 1) return as(sum_abs(x, dim, keepdim), x.dtype());
  if (p == std::numeric_limits<double>::infinity()) return amax(abs(x), dim, keepdim);
  if (p == -std::numeric_limits<double>::infinity()) return amin(abs(x), dim, keepdim);
  if (p == 0) {  // ones and zeros in the place of x, which have the gradient 0
    Tensor zero = eq(x, 0);
    return sum(masked_fill(masked_fill(x, zero, 0), logical_not(zero), 1), dim, keepdim);
  }
  if (std::isnan(p)) fail_value("norm: the order is NaN.");
  Tensor wide = x.dtype() == float64 ? x : as(x, float32);
  Tensor s = sum(pow(abs(wide), p), dim, keepdim);
  if (p < 0) return as(pow(s, 1 / p), x.dtype());
  Tensor zero = eq(s, 0.0);  // with the gradient 0 there
  return as(masked_fill(pow(masked_fill(s, zero, 1.0), 1 / p), zero, 0.0), x.dtype());
}

Tensor matrix_norm_of(const char* op, const Tensor& x, double p, const Dims& dim, bool keepdim) {
  if (dim.size() != 2) fail_value("{}: dim {} names {} axes; a matrix norm has two.", op, dim, dim.size());
  int rows = normalize_axis(dim[0], x.ndim(), op), cols = normalize_axis(dim[1], x.ndim(), op);
  if (rows == cols || x.ndim() < 2) fail_value("{}: dim {} of x {} does not name two axes.", op, dim, x.shape());
  bool by_columns = std::abs(p) == 1;
  if (!by_columns && !std::isinf(p))
    fail(ErrorKind::kNotImplemented,
         "{}: the norm of order {} needs singular values, which are not supported. Use 'fro', 1, -1, inf or -inf.", op,
         p);
  Tensor sums = sum_abs(x, Dims{by_columns ? rows : cols}, true);
  Dims other{by_columns ? cols : rows};
  Tensor y = as(p > 0 ? amax(sums, other, true) : amin(sums, other, true), x.dtype());
  if (keepdim) return y;
  Dims shape;
  for (int a = 0; a < x.ndim(); ++a)
    if (a != rows && a != cols) shape.push_back(x.shape()[a]);
  return reshape(y, shape);
}

std::optional<Dims> dims_of(const BodyCall& c) {
  if (!c.has("dim"_attr)) return std::nullopt;
  return Dims(c.ints("dim"_attr));
}

void require_frobenius(const char* op, std::string_view p) {
  if (p == "nuc")
    fail(ErrorKind::kNotImplemented,
         "{}: the nuclear norm needs singular values, which are not supported. Use 'fro' or a number.", op);
  if (p != "fro") fail_value("{}: '{}' is not a norm. It can be 'fro' or a number.", op, p);
}

}  // namespace

HOLON_OP(bmm, "bmm(Tensor x, Tensor mat2) -> Tensor")
    .doc("Products of the matrices of x [b, m, k] and mat2 [b, k, n].", "bmm(ones(2, 3, 4), ones(2, 4, 5))")
    .autocast(Autocast::kLower)
    .body([](BodyCall& c) { c.out.push_back(batched("bmm", c.in(0), c.in(1))); });
HOLON_OP(mm, "mm(Tensor x, Tensor mat2) -> Tensor")
    .doc("The product of two matrices.", "mm(ones(2, 3), ones(3, 4))")
    .autocast(Autocast::kLower)
    .body([](BodyCall& c) { c.out.push_back(matrices("mm", c.in(0), c.in(1))); });
HOLON_OP(mv, "mv(Tensor x, Tensor vec) -> Tensor")
    .doc("The product of a matrix and a vector.", "mv(ones(2, 3), ones(3))")
    .autocast(Autocast::kLower)
    .body([](BodyCall& c) { c.out.push_back(matrix_vector("mv", c.in(0), c.in(1))); });
HOLON_OP(dot, "dot(Tensor x, Tensor other) -> Tensor")
    .doc("The sum of the products of two vectors' elements.", "dot(ones(3), ones(3))")
    .autocast(Autocast::kPromote)
    .body([](BodyCall& c) { c.out.push_back(vectors("dot", c.in(0), c.in(1))); });
HOLON_OP(vdot, "vdot(Tensor x, Tensor other) -> Tensor")
    .doc("As dot() of two vectors [n], for real numbers.", "vdot(ones(3), ones(3))")
    .autocast(Autocast::kPromote)
    .body([](BodyCall& c) { c.out.push_back(vectors("vdot", c.in(0), c.in(1))); });
HOLON_OP(vector_matrix_product, "vector_matrix_product(Tensor vec, Tensor x) -> Tensor")
    .doc("The product of a row vector [k] and a matrix [k, n].", "vector_matrix_product(ones(3), ones(3, 4))")
    .body([](BodyCall& c) {
      require_axes("vector_matrix_product", "the vector", c.in(0), 1);
      require_axes("vector_matrix_product", "the matrix", c.in(1), 2);
      require_inner("vector_matrix_product", c.in(0), c.in(1), c.in(0).shape()[0], c.in(1).shape()[0]);
      c.out.push_back(matmul(c.in(0), c.in(1)));
    });
HOLON_OP(outer, "outer(Tensor x, Tensor vec2) -> Tensor")
    .doc("The products of each element of a vector with each of another: [m, n].", "outer(ones(2), ones(3))")
    .autocast(Autocast::kPromote)
    .body([](BodyCall& c) {
      require_axes("outer", "the first vector", c.in(0), 1);
      require_axes("outer", "the second vector", c.in(1), 1);
      c.out.push_back(mul(unsqueeze(c.in(0), 1), unsqueeze(c.in(1), 0)));
    });
HOLON_ALIAS(ger, outer);
HOLON_OP(inner, "inner(Tensor x, Tensor other) -> Tensor")
    .doc("The sums of products over the last axes: [..., ...] without them; a tensor without axes multiplies.",
         "inner(ones(2, 3), ones(4, 3))")
    .body([](BodyCall& c) {
      if (c.in(0).ndim() == 0 || c.in(1).ndim() == 0)
        c.out.push_back(mul(c.in(0), c.in(1)));
      else {
        require_inner("inner", c.in(0), c.in(1), c.in(0).shape().back(), c.in(1).shape().back());
        c.out.push_back(tensordot_of(c.in(0), c.in(1), {-1}, {-1}));
      }
    });

HOLON_OP(addmm, "addmm(Tensor x, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor")
    .doc("beta x + alpha mat1 @ mat2; x broadcasts.", "addmm(ones(4), ones(2, 3), ones(3, 4))")
    .autocast(Autocast::kLower)
    .body([](BodyCall& c) { c.out.push_back(blend(c, c.in(0), matrices("addmm", c.in(1), c.in(2)))); });
HOLON_OP(addmv, "addmv(Tensor x, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor")
    .doc("beta x + alpha mat @ vec; x broadcasts.", "addmv(ones(2), ones(2, 3), ones(3))")
    .autocast(Autocast::kLower)
    .body([](BodyCall& c) { c.out.push_back(blend(c, c.in(0), matrix_vector("addmv", c.in(1), c.in(2)))); });
HOLON_OP(baddbmm, "baddbmm(Tensor x, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor")
    .doc("beta x + alpha times the products of the matrices of batch1 [b, m, k] and batch2 [b, k, n]; x broadcasts.",
         "baddbmm(ones(2, 3, 5), ones(2, 3, 4), ones(2, 4, 5))")
    .autocast(Autocast::kLower)
    .body([](BodyCall& c) { c.out.push_back(blend(c, c.in(0), batched("baddbmm", c.in(1), c.in(2)))); });
HOLON_OP(addbmm, "addbmm(Tensor x, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor")
    .doc("beta x + alpha times the sum of the products of the matrices of batch1 [b, m, k] and batch2 [b, k, n]; x "
         "broadcasts.",
         "addbmm(ones(3, 5), ones(2, 3, 4), ones(2, 4, 5))")
    .autocast(Autocast::kLower)
    .body([](BodyCall& c) {
      Tensor products = batched("addbmm", c.in(1), c.in(2));
      Tensor s = sum(products, Dims{0});
      c.out.push_back(blend(c, c.in(0), as(s, products.dtype())));
    });

HOLON_OP(einsum, "einsum(str equation, Tensor... operands) -> Tensor")
    .doc("Sums of products by named indices: \"bij,bjk->bik\". An index that the result lacks is summed over; one that "
         "appears twice in an operand takes its diagonal; \"...\" represents axes that broadcast; without \"->\" the "
         "result has the indices that appear once, in alphabetical order.",
         "einsum('ij,jk->ik', ones(2, 3), ones(3, 4))")
    .autocast(Autocast::kLower)
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(einsum_of(c.text("equation"_attr), c.inputs())); });
HOLON_OP(tensordot, "tensordot(Tensor x, Tensor other, int dims=2) -> Tensor")
    .doc("The sum of products over the last dims axes of x and the first of other.",
         "tensordot(ones(2, 3), ones(3, 4), 1)")
    .autocast(Autocast::kLower)
    .body([](BodyCall& c) {
      int64_t n = c.i("dims"_attr);
      if (n < 0 || n > c.in(0).ndim() || n > c.in(1).ndim())
        fail_value("tensordot: {} axes of x {} and other {} cannot be contracted.", n, c.in(0).shape(),
                   c.in(1).shape());
      Dims a, b;
      for (int64_t i = 0; i < n; ++i) a.push_back(i - n), b.push_back(i);
      c.out.push_back(tensordot_of(c.in(0), c.in(1), a, b));
    });
HOLON_OP(tensordot_axes, "tensordot_axes(Tensor x, Tensor other, int[] dims_x, int[] dims_other) -> Tensor")
    .doc("The sum of products over the axes dims_x of x and dims_other of other.",
         "tensordot(ones(2, 3), ones(2, 4), [0], [0])")
    .overload_of("tensordot")
    .body([](BodyCall& c) {
      c.out.push_back(tensordot_of(c.in(0), c.in(1), Dims(c.ints("dims_x"_attr)), Dims(c.ints("dims_other"_attr))));
    });

HOLON_OP(linalg_cross, "linalg_cross(Tensor x, Tensor other, *, int dim=-1) -> Tensor")
    .doc("The cross products of the vectors along an axis of size 3; the two are broadcast.",
         "linalg_cross(ones(3), ones(3))")
    .body([](BodyCall& c) {
      Tensor a = c.in(0), b = c.in(1);
      Dims shape = broadcast_shapes(a.shape(), b.shape(), "linalg_cross");
      int d = normalize_axis(c.i("dim"_attr), shape.size(), "linalg_cross");
      if (a.ndim() != b.ndim() || shape.size() == 0 || a.shape()[d] != 3 || b.shape()[d] != 3)
        fail_value("linalg_cross: x {} and other {} must have the same number of axes, and 3 elements along axis {}.",
                   a.shape(), b.shape(), c.i("dim"_attr));
      a = expand(a, shape), b = expand(b, shape);
      auto turn = [&](const Tensor& t, int64_t by) { return roll(t, {-by}, Dims{d}); };
      c.out.push_back(sub(mul(turn(a, 1), turn(b, 2)), mul(turn(a, 2), turn(b, 1))));
    });
HOLON_OP(cross, "cross(Tensor x, Tensor other, int? dim=None) -> Tensor")
    .doc("The cross products of the vectors along an axis of size 3; by default the first such axis.",
         "cross(ones(3), ones(3))")
    .autocast(Autocast::kPromote)
    .body([](BodyCall& c) {
      int64_t d = -1;
      if (c.has("dim"_attr)) {
        d = c.i("dim"_attr);
      } else {
        Dims shape = broadcast_shapes(c.in(0).shape(), c.in(1).shape(), "cross");
        for (int a = shape.size() - 1; a >= 0; --a)
          if (shape[a] == 3) d = a;
        if (shape.size() == 0 || shape[d < 0 ? shape.size() - 1 : static_cast<int>(d)] != 3)
          fail_value("cross: x {} and other {} have no axis of size 3.", c.in(0).shape(), c.in(1).shape());
      }
      c.out.push_back(linalg_cross(c.in(0), c.in(1), {.dim = d}));
    });

HOLON_OP(kron, "kron(Tensor x, Tensor other) -> Tensor")
    .doc("The Kronecker product: each element of x times the whole of other.", "kron(ones(2, 2), ones(3))")
    .body([](BodyCall& c) {
      int n = std::max(c.in(0).ndim(), c.in(1).ndim());
      Dims a, b, out;
      for (int d = 0; d < n; ++d) {
        auto size = [&](const Tensor& t) { return d < n - t.ndim() ? 1 : t.shape()[d - n + t.ndim()]; };
        a.push_back(size(c.in(0))), a.push_back(1);
        b.push_back(1), b.push_back(size(c.in(1)));
        out.push_back(size(c.in(0)) * size(c.in(1)));
      }
      c.out.push_back(reshape(mul(reshape(c.in(0), a), reshape(c.in(1), b)), out));
    });
HOLON_OP(trace, "trace(Tensor x) -> Tensor")
    .doc("The sum of a matrix's diagonal.", "trace(ones(3, 3))")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) {
      require_axes("trace", "x", c.in(0), 2);
      c.out.push_back(sum(diagonal(c.in(0))));
    });

HOLON_OP(
    linalg_vector_norm,
    "linalg_vector_norm(Tensor x, Scalar ord=2, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("(sum of |x|^ord)^(1/ord) over the axes dim, or all; inf and -inf are the largest and smallest |x|, 0 counts "
         "the nonzero elements.",
         "linalg_vector_norm(ones(2, 3))")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) {
      c.out.push_back(vector_norm_of(norm_input(c), c.scalar("ord"_attr).as_double(), dims_of(c), c.b("keepdim"_attr)));
    });
HOLON_OP(
    linalg_matrix_norm,
    "linalg_matrix_norm(Tensor x, Scalar ord, int[] dim=[-2,-1], bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("The largest (inf) or smallest (-inf) sum of a row's |x|, or of a column's (1, -1), of the matrices in two "
         "axes.",
         "linalg_matrix_norm(ones(2, 3), 1)")
    .body([](BodyCall& c) {
      c.out.push_back(matrix_norm_of("linalg_matrix_norm", norm_input(c), c.scalar("ord"_attr).as_double(),
                                     Dims(c.ints("dim"_attr)), c.b("keepdim"_attr)));
    });
HOLON_OP(linalg_matrix_norm_fro,
         "linalg_matrix_norm_fro(Tensor x, str ord='fro', int[] dim=[-2,-1], bool keepdim=False, *, dtype? dtype=None) "
         "-> Tensor")
    .doc("The root of the sum of squares of the matrices in two axes.", "linalg_matrix_norm(ones(2, 3))")
    .overload_of("linalg_matrix_norm")
    .body([](BodyCall& c) {
      require_frobenius("linalg_matrix_norm", c.text("ord"_attr));
      Dims dim(c.ints("dim"_attr));
      if (dim.size() != 2 || c.in(0).ndim() < 2)
        fail_value("linalg_matrix_norm: dim {} of x {} does not name two axes.", dim, c.in(0).shape());
      c.out.push_back(vector_norm_of(norm_input(c), 2, dim, c.b("keepdim"_attr)));
    });
HOLON_OP(linalg_norm,
         "linalg_norm(Tensor x, Scalar? ord=None, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("Without ord the root of the sum of squares over dim, or all; with ord a vector's norm where dim names one "
         "axis or x has one, a matrix's "
         "where there are two.",
         "linalg_norm(ones(2, 3))")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) {
      Tensor x = norm_input(c);
      if (!c.has("ord"_attr)) return c.out.push_back(vector_norm_of(x, 2, dims_of(c), c.b("keepdim"_attr)));
      Dims dim;
      if (c.has("dim"_attr))
        dim = Dims(c.ints("dim"_attr));
      else
        for (int a = 0; a < x.ndim(); ++a) dim.push_back(a);
      if (dim.size() != 1 && dim.size() != 2)
        fail_value("linalg_norm: a norm of order {} is defined for vectors and matrices; x is {} and dim names {} "
                   "axes. Name one or two.",
                   c.scalar("ord"_attr).str(), x.shape(), dim.size());
      double p = c.scalar("ord"_attr).as_double();
      c.out.push_back(dim.size() == 1 ? vector_norm_of(x, p, dim, c.b("keepdim"_attr))
                                      : matrix_norm_of("linalg_norm", x, p, dim, c.b("keepdim"_attr)));
    });
HOLON_OP(linalg_norm_fro,
         "linalg_norm_fro(Tensor x, str ord, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("'fro': the root of the sum of squares of matrices.", "linalg_norm(ones(2, 3), 'fro')")
    .overload_of("linalg_norm")
    .body([](BodyCall& c) {
      require_frobenius("linalg_norm", c.text("ord"_attr));
      c.out.push_back(vector_norm_of(norm_input(c), 2, dims_of(c), c.b("keepdim"_attr)));
    });
HOLON_OP(norm, "norm(Tensor x, Scalar? p=2, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("(sum of |x|^p)^(1/p) over the axes dim, or all; inf and -inf are the largest and smallest |x|, 0 counts the "
         "nonzero elements.",
         "norm(ones(2, 3))")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) {
      c.out.push_back(vector_norm_of(norm_input(c), c.has("p"_attr) ? c.scalar("p"_attr).as_double() : 2, dims_of(c),
                                     c.b("keepdim"_attr)));
    });
HOLON_OP(norm_fro, "norm_fro(Tensor x, str p, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("'fro': the root of the sum of squares over the axes dim, or all.", "norm(ones(2, 3), 'fro')")
    .overload_of("norm")
    .body([](BodyCall& c) {
      require_frobenius("norm", c.text("p"_attr));
      c.out.push_back(vector_norm_of(norm_input(c), 2, dims_of(c), c.b("keepdim"_attr)));
    });

}  // namespace holon::ops
