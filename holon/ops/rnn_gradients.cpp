#include "holon/ops/rnn_gradients.h"

#include <vector>

#include "holon/base/index.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

Tensor one_less(const Tensor& x) { return sub(x, 1.0, {.reverse = true}); }
// d with the derivative of what gave y.
Tensor through_sigmoid(const Tensor& d, const Tensor& y) { return mul(d, mul(y, one_less(y))); }
Tensor through_tanh(const Tensor& d, const Tensor& y) { return mul(d, one_less(square(y))); }

// a + b, of which each may be undefined.
Tensor plus(const Tensor& a, const Tensor& b) { return !a.defined() ? b : !b.defined() ? a : add(a, b); }

// Part i of x [batch, parts H], or undefined.
Tensor part(const Tensor& x, int64_t i, int64_t units) {
  return x.defined() ? slice(x, 1, i * units, (i + 1) * units) : Tensor();
}

}  // namespace

RnnGradients rnn_gradients(const RnnSteps& of, const Tensor& dy, const Tensor& dc, const Tensor& dsaved) {
  const int64_t steps = of.y.shape()[0], units = of.h0.shape()[1];
  const bool lstm = of.mode == "lstm", gru = of.mode == "gru";
  std::vector<Tensor> gates(to_size(steps)), hidden(to_size(steps));
  Tensor dh, dcell;
  auto at = [](const Tensor& t, int64_t step) { return t.defined() ? select(t, 0, step) : Tensor(); };
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = of.reverse ? i : steps - 1 - i, before = of.reverse ? t + 1 : t - 1;
    const bool first = of.reverse ? before == steps : before < 0;
    const Tensor h = at(of.y, t), h_before = first ? of.h0 : at(of.y, before);
    const Tensor extra = lstm || gru ? at(dsaved, t) : Tensor();
    dh = plus(dh, at(dy, t));
    if (!dh.defined()) dh = zeros_like(h.detach());
    if (!lstm && !gru) {
      Tensor d = of.mode == "tanh" ? through_tanh(dh, h) : mul(dh, cast(gt(h.detach(), 0.0), dh.dtype()));
      at_index(gates, t) = d;
      dh = matmul(d, of.w_hh);
      continue;
    }
    const Tensor kept = at(of.saved, t);
    if (lstm) {
      const Tensor in = part(kept, 0, units), forget = part(kept, 1, units), cell_in = part(kept, 2, units),
                   out = part(kept, 3, units), cell = tanh(at(of.c, t)), c_before = first ? of.c0 : at(of.c, before);
      dcell = plus(plus(dcell, at(dc, t)), through_tanh(mul(dh, out), cell));
      at_index(gates, t) = cat({through_sigmoid(plus(mul(dcell, cell_in), part(extra, 0, units)), in),
                                through_sigmoid(plus(mul(dcell, c_before), part(extra, 1, units)), forget),
                                through_tanh(plus(mul(dcell, in), part(extra, 2, units)), cell_in),
                                through_sigmoid(plus(mul(dh, cell), part(extra, 3, units)), out)},
                               1);
      dcell = mul(dcell, forget);
      dh = matmul(at_index(gates, t), of.w_hh);
      continue;
    }
    // n = tanh(x + reset hidden), h = (1 - update) n + update h_before
    const Tensor reset = part(kept, 0, units), update = part(kept, 1, units), n = part(kept, 2, units),
                 of_hidden = part(kept, 3, units);
    const Tensor dn = through_tanh(plus(mul(dh, one_less(update)), part(extra, 2, units)), n);
    const Tensor dr = through_sigmoid(plus(mul(dn, of_hidden), part(extra, 0, units)), reset);
    const Tensor dz = through_sigmoid(plus(mul(dh, sub(h_before, n)), part(extra, 1, units)), update);
    at_index(gates, t) = cat({dr, dz, dn}, 1);
    at_index(hidden, t) = cat({dr, dz, plus(mul(dn, reset), part(extra, 3, units))}, 1);
    dh = add(mul(dh, update), matmul(at_index(hidden, t), of.w_hh));
  }
  return {stack(gates, 0), gru ? stack(hidden, 0) : Tensor(), dh, dcell};
}

}  // namespace holon::ops
