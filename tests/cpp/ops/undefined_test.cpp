// Undefined tensors, gradients that are not there and placements without ranks raise, wherever they are used.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "cases.h"
#include "holon/autograd/engine.h"
#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/operators.h"
#include "holon/ops/shape.h"
#include "holon/ops/values.h"
#include "holon/tensor/print.h"
#include "holon/tensor/visualize.h"
#include "tests/cpp/error_of.h"

namespace holon::testing {
namespace {

TEST(Undefined, WhatIsAskedOfATensorRaises) {
  const Tensor none, x = ones({2}).set_requires_grad();
  Tensor to_change;
  const std::vector<std::pair<const char*, std::function<void()>>> calls{
      {"shape", [&] { none.shape(); }},
      {"size", [&] { none.size(0); }},
      {"ndim", [&] { none.ndim(); }},
      {"numel", [&] { none.numel(); }},
      {"dtype", [&] { none.dtype(); }},
      {"is_local", [&] { none.is_local(); }},
      {"is_global", [&] { none.is_global(); }},
      {"spec", [&] { none.spec(); }},
      {"device", [&] { none.device(); }},
      {"placement", [&] { none.placement(); }},
      {"nd_sbp", [&] { none.nd_sbp(); }},
      {"array", [&] { none.array(); }},
      {"is_pinned", [&] { none.is_pinned(); }},
      {"data", [&] { none.data<float>(); }},
      {"requires_grad", [&] { none.requires_grad(); }},
      {"set_requires_grad", [&] { to_change.set_requires_grad(); }},
      {"set_requires_grad(false)", [&] { to_change.set_requires_grad(false); }},
      {"is_leaf", [&] { none.is_leaf(); }},
      {"is_symbolic", [&] { none.is_symbolic(); }},
      {"grad", [&] { none.grad(); }},
      {"set_grad", [&] { to_change.set_grad(ones({1})); }},
      {"set_grad of none", [&] { to_change.set_grad({}); }},
      {"retain_grad", [&] { to_change.retain_grad(); }},
      {"register_hook", [&] { to_change.register_hook([](const Tensor& g) { return g; }); }},
      {"detach", [&] { none.detach(); }},
      {"backward", [&] { none.backward(); }},
      {"item", [&] { none.item(); }},
      {"full", [&] { none.full(); }},
      {"to_vector", [&] { to_vector<float>(none); }},
      {"place", [&] { place(none, Placement::all("cpu"), sbp::broadcast()); }},
      {"visualize", [&] { visualize(none); }},
      {"a gradient's shape", [&] { x.grad().shape(); }},
      {"a gradient's value", [&] { x.grad().item(); }},
      {"a gradient's data",
       [&] {
         Tensor g = x.grad();
         g.data<float>();
       }},
  };
  for (auto& [name, call] : calls)
    EXPECT_NE(error_of(call).find("undefined"), std::string::npos) << name << ": " << error_of(call);
  for (auto& call : std::vector<std::function<void()>>{
           [&] { none + x; }, [&] { x + none; }, [&] { x* x.grad(); }, [&] { none * 2.0; }, [&] { -none; },
           [&] { none.sum(); }, [&] { x.matmul(none); }, [&] { none.to(float64); },
           [&] { none.to_global(Placement::all("cpu"), sbp::broadcast()); }, [&] { none.to_local(); },
           [&] {
             cat({x, none});
           },
           [&] {
             cat({none, x});
           },
           [&] { stack({none}); }, [&] { add_(none, x); },
           [&] { autograd::backward(std::vector<Tensor>{none}, {}, false, false); }})
    EXPECT_NE(error_of(call), "no error");
  EXPECT_FALSE(none.defined());
  EXPECT_NE(to_string(none), "");
}

TEST(Undefined, WhatIsAskedOfAPlacementRaises) {
  const Placement none;
  const NdSbp no_sbp;
  for (auto& call : std::vector<std::function<void()>>{
           [&] { none.ranks(); }, [&] { none.size(); }, [&] { none.hierarchy(); }, [&] { none.device(); },
           [&] { none.device_type(); }, [&] { none.simulated(); }, [&] { none.index_of(0); }, [&] { none.contains(0); },
           [&] { none.coordinate(0); }, [&] { none.group(0, 0); }})
    EXPECT_NE(error_of(call).find("undefined placement"), std::string::npos) << error_of(call);
  EXPECT_NE(error_of([&] { no_sbp[0]; }).find("undefined sbp"), std::string::npos);
  EXPECT_NE(error_of([&] { no_sbp.with(0, sbp::broadcast()); }).find("undefined sbp"), std::string::npos);
  EXPECT_NE(error_of([&] { NdSbp(sbp::split(0))[1]; }).find("no entry 1"), std::string::npos);
  EXPECT_NE(error_of([&] { NdSbp(sbp::split(0))[-1]; }).find("no entry -1"), std::string::npos);
  EXPECT_FALSE(none);
  EXPECT_EQ(none, Placement());
  EXPECT_FALSE(no_sbp.has_split() || no_sbp.has_partial() || no_sbp.is_broadcast() || no_sbp.size());
  const Tensor x = ones({2});
  for (auto& call : std::vector<std::function<void()>>{
           [&] { x.to_global(none, sbp::broadcast()); }, [&] { x.to_global(Placement::all("cpu"), no_sbp); },
           [&] { ones({2}, {.placement = none, .sbp = sbp::broadcast()}); },
           [&] { ones({2}, {.placement = Placement::all("cpu")}); }, [&] { place(x, none, sbp::broadcast()); },
           [&] { place(x, Placement::all("cpu"), no_sbp); },
           [&] {
             tensor({1, 2}, {.placement = Placement::all("cpu")});
           }})
    EXPECT_NE(error_of(call), "no error");
}

bool is_required(const OpDef& op, size_t input) {
  for (auto& a : op.schema.args)
    if (a.input == static_cast<int>(input)) return !a.optional;
  return op.schema.input_list;
}

// Every op with each of its inputs undefined in turn.
TEST(Undefined, InputsOfOpsRaise) {
  auto tell = [](const Case& c) {
    if (std::getenv("HOLON_TEST_VERBOSE")) std::fprintf(stderr, "%s\n", c.name().c_str());  // a crash leaves the last
  };
  auto try_all = [&](const Case& c, const std::function<Tensor(size_t)>& make) {
    const OpDef& op = find_op(c.op);
    for (size_t missing = 0; missing <= c.in.size(); ++missing) {  // the last time all of them
      bool required = false;
      TensorVec in;
      for (size_t i = 0; i < c.in.size(); ++i) {
        const bool leave_out = i == missing || missing == c.in.size();
        in.push_back(leave_out ? Tensor() : make(i));
        required |= leave_out && is_required(op, i);
      }
      if (in.empty()) return;
      const std::string found = error_of([&] { dispatch(op, in, make_attrs(c)); });
      if (required) {
        EXPECT_NE(found, "no error") << c.name() << " without input " << missing;
      }
      if (op.in_place) error_of([&] { dispatch_in_place(op, in, make_attrs(c)); });
    }
  };
  for (const Case& c : cases()) {
    tell(c);
    try_all(c, [&](size_t i) {
      if (c.in[i].fill == Input::Fill::kAbsent) return Tensor();
      Tensor t = Tensor::local(array_of(input_values(c, i), c.in[i].shape, c.in[i].dtype));
      if (is_floating(t.dtype()) && has_gradient(find_op(c.op))) t.set_requires_grad();
      return t;
    });
  }
  comm::run_ranks(2, [&](int) {
    const Placement all = Placement::all("cpu");
    std::string last;
    for (const Case& c : cases()) {
      if (c.op == last) continue;  // one sample of each
      last = c.op;
      try_all(c, [&](size_t i) {
        if (c.in[i].fill == Input::Fill::kAbsent) return Tensor();
        return place(Tensor::local(array_of(input_values(c, i), c.in[i].shape, c.in[i].dtype)), all, sbp::broadcast());
      });
    }
  });
}

}  // namespace
}  // namespace holon::testing
