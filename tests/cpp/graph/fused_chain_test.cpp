// Fused chains against the ops one after the other: the same kernels on blocks, so the same bits.
#include <gtest/gtest.h>

#include <cstring>

#include "holon/base/parallel.h"
#include "holon/dispatch/dispatch.h"
#include "holon/graph/program/fused.h"
#include "holon/kernels/copy.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/compare.h"
#include "holon/ops/norm.h"
#include "holon/ops/random.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::graph {
namespace {

struct Part {
  const char* op;
  std::vector<int16_t> in;
  std::vector<NamedAttr> attrs = {};
};

struct Chain {
  FusedBody body;
  std::vector<Tensor> expected;  // of each result

  Chain(const std::vector<Tensor>& in, const std::vector<Part>& parts, std::vector<int16_t> results = {}) {
    std::vector<Tensor> made = in;
    for (auto& p : parts) {
      const OpDef& op = find_op(p.op);
      FusedPart part{&op, make_attrs(op.schema, p.attrs), {}};
      TensorVec operands;
      for (int16_t k : p.in) {
        part.in.push_back(k);
        operands.push_back(made[static_cast<size_t>(k)]);
      }
      made.push_back(dispatch_one(op, operands, part.attrs));
      body.parts.push_back(part);
    }
    if (results.empty()) results.push_back(static_cast<int16_t>(parts.size()) - 1);
    for (int16_t r : results) {
      body.results.push_back(r);
      expected.push_back(made[in.size() + static_cast<size_t>(r)]);
    }
  }
};

FusedChain::Operand layout(const Array& a) { return {a.shape, a.strides, a.dtype}; }

std::string bytes_of(const Array& a) {
  Array dense = kernels::contiguous(a);
  return {reinterpret_cast<const char*>(dense.bytes()), dense.nbytes()};
}

// Runs the chain into outputs like the expected ones and compares their bytes.
void expect_equal(const std::vector<Tensor>& in, const Chain& chain, const std::string& what) {
  std::vector<FusedChain::Operand> ins, outs;
  std::vector<const Array*> from;
  std::vector<Array> made;
  std::vector<Array*> to;
  for (auto& x : in) {
    ins.push_back(layout(x.array()));
    from.push_back(&x.array());
  }
  for (auto& y : chain.expected) {
    made.push_back(Array::empty_strided(y.array().shape, y.array().strides, y.dtype()));
    outs.push_back(layout(made.back()));
  }
  for (auto& a : made) to.push_back(&a);
  FusedChain fused(chain.body, ins, outs);
  for (int repeat = 0; repeat < 2; ++repeat) {
    fused.run(from, to);
    for (size_t r = 0; r < made.size(); ++r)
      EXPECT_TRUE(bytes_of(made[r]) == bytes_of(chain.expected[r].array())) << what << ", result " << r;
  }
}

Tensor noise(const Dims& shape, DType dtype = float32) {
  if (dtype == boolean) return gt(randn(shape), 0.0);
  return is_floating(dtype) ? randn(shape).to(dtype) : randint(-9, 9, shape).to(dtype);
}

TEST(FusedChain, EqualsTheOpsOneByOne) {
  for (int threads : {1, 2}) {
    set_num_threads(threads);
    for (const Dims& s :
         {Dims{}, Dims{1}, Dims{7}, Dims{0, 3}, Dims{3, 1025}, Dims{5, 7, 11}, Dims{300, 301}, Dims{2, 70000}})
      for (DType t : {float32, float64, bfloat16, float16}) {
        const std::string what = s.str() + " " + name(t);
        Tensor a = noise(s, t), b = noise(s, t), c = noise(s, t), mask = noise(s, boolean), one = noise({}, t);
        expect_equal({a, b, c}, Chain({a, b, c}, {{"add", {0, 1}}, {"mul", {3, 2}}}), what);
        expect_equal({a, b, mask},
                     Chain({a, b, mask},
                           {{"gelu_backward", {0, 1}},
                            {"mul_scalar", {3}, {{"value", 0.5}}},
                            {"masked_fill", {4, 2}, {{"value", -1.5}}},
                            {"cast", {5}, {{"dtype", float64}}},
                            {"relu", {6}}}),
                     what + " with casts and masks");
        expect_equal({a, one}, Chain({a, one}, {{"sub", {0, 1}}, {"square", {2}}, {"div", {3, 0}}}),
                     what + " with a number");
        // Every value leaves, and one is read by several.
        expect_equal({a, b},
                     Chain({a, b}, {{"tanh", {0}}, {"mul", {2, 1}}, {"add", {2, 3}}, {"lt", {4, 0}}}, {0, 1, 2, 3}),
                     what + " with all results");
      }
  }
  set_num_threads(1);
}

TEST(FusedChain, Broadcasts) {
  const Dims s{6, 40, 130};
  Tensor x = noise(s);
  for (const Dims& other :
       {Dims{130}, Dims{40, 1}, Dims{40, 130}, Dims{6, 1, 1}, Dims{6, 1, 130}, Dims{1, 1, 1}, Dims{1, 40, 1}}) {
    Tensor y = noise(other);
    expect_equal({x, y}, Chain({x, y}, {{"add", {0, 1}}, {"relu", {2}}, {"mul", {1, 3}}}), other.str());
    expect_equal({y, x}, Chain({y, x}, {{"sub", {0, 1}}, {"maximum", {2, 0}}}), other.str() + " first");
  }
  // Long rows are cut along themselves.
  Tensor wide = noise({3, 40000}), row = noise({40000}), column = noise({3, 1});
  expect_equal({wide, row, column}, Chain({wide, row, column}, {{"add", {0, 1}}, {"mul", {3, 2}}}), "wide");
}

TEST(FusedChain, TakesAnyStrides) {
  Tensor x = noise({8, 5, 33}), y = noise({33, 8, 5});
  Tensor turned = permute(y, {1, 2, 0}), cut = chunk(noise({8, 5, 99}), 3, -1)[1];
  expect_equal({x, turned, cut}, Chain({x, turned, cut}, {{"add", {0, 1}}, {"mul", {3, 2}}, {"sigmoid", {4}}}),
               "unlike strides");
  // Channels last in and out.
  Tensor image = permute(noise({4, 30, 31, 16}), {0, 3, 1, 2}), other = permute(noise({4, 30, 31, 16}), {0, 3, 1, 2});
  Chain chain({image, other}, {{"add", {0, 1}}, {"relu", {2}}});
  EXPECT_EQ(chain.expected[0].array().strides, image.array().strides);
  expect_equal({image, other}, chain, "channels last");
}

TEST(FusedChain, WritesOverAnInputThatNobodyReadsLater) {
  Tensor a = noise({3000}), b = noise({3000});
  Chain chain({a, b}, {{"exp", {0}}, {"add", {0, 2}}, {"mul", {3, 1}}}, {2});
  std::vector<FusedChain::Operand> in{layout(a.array()), layout(b.array())};
  FusedChain fused(chain.body, in, {{in[0]}});
  EXPECT_TRUE(fused.may_overwrite(0, 0));
  EXPECT_FALSE(fused.may_overwrite(1, 0)) << "the last op reads it as its second operand";
  Array over = kernels::contiguous(a.array()).view(a.array().shape, a.array().strides), *to[] = {&over};
  over.storage = allocate_storage(over.nbytes());
  kernels::copy(a.array(), over);
  const Array* from[] = {&over, &b.array()};
  fused.run(from, to);
  EXPECT_TRUE(bytes_of(over) == bytes_of(chain.expected[0].array()));
  // An early result that is written where a later op still reads.
  Chain early({a, b}, {{"exp", {0}}, {"add", {0, 2}}}, {0, 1});
  std::vector<FusedChain::Operand> out{in[0], in[0]};
  FusedChain two(early.body, in, out);
  EXPECT_FALSE(two.may_overwrite(0, 0));
  EXPECT_TRUE(two.may_overwrite(0, 1));
  // Another dtype, a broadcast operand.
  Tensor one = noise({1});
  Chain comparing({a, one}, {{"add", {0, 1}}, {"gt", {2, 0}}});
  std::vector<FusedChain::Operand> in2{layout(a.array()), layout(one.array())};
  FusedChain bools(comparing.body, in2, {{layout(comparing.expected[0].array())}});
  EXPECT_FALSE(bools.may_overwrite(0, 0));
  EXPECT_FALSE(bools.may_overwrite(1, 0));
}

TEST(FusedChain, AnErrorLeavesItUsable) {
  set_num_threads(2);
  Tensor a = noise({100000}, int32), zeros_in = add(abs(noise({100000}, int32)), 1);
  Chain chain({a, zeros_in}, {{"add_scalar", {0}, {{"value", int64_t{3}}}}, {"floor_divide", {2, 1}}});
  Array bad = kernels::contiguous(zeros_in.array());
  bad.storage = allocate_storage(bad.nbytes());
  kernels::copy(zeros_in.array(), bad);
  bad.data<int32_t>()[70000] = 0;
  std::vector<FusedChain::Operand> in{layout(a.array()), layout(bad)};
  FusedChain fused(chain.body, in, {{in[0]}});
  Array out = Array::empty(a.shape(), int32), *to[] = {&out};
  const Array *wrong[] = {&a.array(), &bad}, *right[] = {&a.array(), &zeros_in.array()};
  EXPECT_THROW(fused.run(wrong, to), Error);
  fused.run(right, to);
  EXPECT_TRUE(bytes_of(out) == bytes_of(chain.expected[0].array()));
  set_num_threads(1);
}

TEST(FusedChain, TakesMatricesOneByOne) {
  for (int threads : {1, 2}) {
    set_num_threads(threads);
    for (const Dims& lead : {Dims{3, 2}, Dims{5}, Dims{1}, Dims{}, Dims{0}}) {
      auto of = [&](int64_t m, int64_t n) {
        Dims s = lead;
        s.push_back(m);
        s.push_back(n);
        return s;
      };
      const int nd = lead.size() + 2;
      Tensor q = noise(of(9, 4)), k = noise(of(7, 4)), v = noise(of(7, 5)), mask = noise({9, 7}), row = noise({7});
      Tensor kt = transpose(k, nd - 2, nd - 1);
      // The weights leave, too; the mask is one for all.
      Chain chain({q, kt, mask, v, row},
                  {{"matmul_scaled", {0, 1}, {{"alpha", 0.5}}},
                   {"add", {5, 2}},
                   {"mul", {6, 4}},
                   {"softmax", {7}},
                   {"matmul", {8, 3}}},
                  {3, 4});
      expect_equal({q, kt, mask, v, row}, chain, lead.str() + "+2 axes");
      Tensor dy = noise(of(9, 5)), p = softmax(noise(of(9, 7)), -1), vt = transpose(v, nd - 2, nd - 1),
             pt = transpose(p, nd - 2, nd - 1);
      expect_equal({dy, vt, p, pt, k},
                   Chain({dy, vt, p, pt, k},
                         {{"matmul", {0, 1}},
                          {"matmul", {3, 0}},
                          {"softmax_backward", {5, 2}, {{"dim", int64_t{-1}}}},
                          {"matmul", {7, 4}}},
                         {1, 3}),
                   lead.str() + "+2 axes, backward");
    }
  }
  set_num_threads(1);
}

TEST(FusedChain, RefusesWhatIsNotElementwise) {
  EXPECT_TRUE(fusible(find_op("add")) && fusible(find_op("gelu")) && fusible(find_op("cast")) &&
              fusible(find_op("where")));
  for (const char* op : {"sum", "softmax", "matmul", "dropout_mask", "fill", "zero", "triu", "reshape", "normal_fill"})
    EXPECT_FALSE(fusible(find_op(op))) << op;
  FusedBody body;
  const OpDef& op = find_op("sum");
  body.parts.push_back({&op, make_attrs(op.schema, {}), {0}});
  body.results.push_back(0);
  FusedChain::Operand x{{4}, {1}, float32};
  EXPECT_THROW(FusedChain(body, {&x, 1}, {&x, 1}), Error);
}

}  // namespace
}  // namespace holon::graph
