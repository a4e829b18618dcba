// Kernels that add to what is there against the kernels that write.
#include <gtest/gtest.h>

#include <set>

#include "cases.h"

namespace holon::testing {
namespace {

void run(const OpDef& op, const Attrs& attrs, std::span<const Array> in, std::vector<Array>& out, bool adds) {
  SmallVec<const Array*, 4> from;
  SmallVec<Array*, 3> to;
  for (auto& a : in) from.push_back(&a);
  for (auto& a : out) to.push_back(&a);
  KernelCall call(op, attrs, from, to);
  (adds ? op.adds : op.kernel)(call);
}

TEST(KernelsThatAdd, AddWhatTheOthersWrite) {
  std::set<std::string> seen;
  for (auto& c : cases()) {
    const OpDef& op = find_op(c.op);
    if (!op.adds || is_composed(c)) continue;
    seen.insert(c.op);
    for (DType dtype : {float32, float64}) {
      SCOPED_TRACE(c.name() + " " + name(dtype));
      const Attrs attrs = make_attrs(c);
      std::vector<Array> in;
      SmallVec<Meta, 4> metas;
      for (size_t i = 0; i < c.in.size(); ++i) {
        const DType t = is_floating(c.in[i].dtype) ? dtype : c.in[i].dtype;
        in.push_back(array_of(input_values(c, i), c.in[i].shape, t));
        metas.push_back({c.in[i].shape, t});
      }
      Infer infer(op, attrs, metas, ~0u);
      op.infer(infer);
      std::vector<Array> written, added;
      std::vector<std::vector<double>> want;
      for (auto& m : infer.out_) {
        written.push_back(Array::empty(m.shape, m.dtype));
        std::vector<double> before(static_cast<size_t>(m.shape.numel()));
        for (size_t k = 0; k < before.size(); ++k) before[k] = static_cast<double>(mix(k) % 64) / 16;
        added.push_back(array_of(before, m.shape, m.dtype));
        want.push_back(before);
      }
      run(op, attrs, in, written, false);
      run(op, attrs, in, added, true);
      for (size_t o = 0; o < want.size(); ++o) {
        const std::vector<double> more = values_of(written[o]);
        for (size_t k = 0; k < more.size(); ++k) want[o][k] += more[k];
        EXPECT_EQ(differs(values_of(added[o]), want[o], tolerance(dtype)), "") << "output " << o;
      }
    }
  }
  EXPECT_EQ(seen, (std::set<std::string>{"embedding_backward", "linear_gradients", "linear_weight_grad", "matmul"}));
}

}  // namespace
}  // namespace holon::testing
