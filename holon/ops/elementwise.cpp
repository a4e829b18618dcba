#include "holon/ops/elementwise.h"

namespace holon::ops {

namespace {

OpBuilder& set_result(OpBuilder& b, Result result) {
  b.infer([result](Infer& c) {
    Dims shape = c.shape(0);
    for (size_t i = 1; i < c.n_in(); ++i)
      if (shape != c.shape(i)) shape = broadcast_shapes(shape, c.shape(i), c.op().name());
    c.out(shape, result == Result::kBool ? boolean : c.dtype_of(0));
  });
  return b.promotes(result == Result::kFloat).elementwise().in_place();
}

}  // namespace

OpBuilder define_unary(const char* name, void (*kernel)(KernelCall&), Result result, const char* file) {
  OpBuilder b = define_op(std::string(name) + "(Tensor x) -> Tensor", kOpVersion, file);
  return set_result(b, result).kernel(kernel);
}

OpBuilder define_binary(const char* name, void (*kernel)(KernelCall&), Result result, const char* file) {
  OpBuilder b = define_op(std::string(name) + "(Tensor x, Tensor other) -> Tensor", kOpVersion, file);
  return set_result(b, result).kernel(kernel).scalar_overload(std::string(name) + "_scalar");
}

OpBuilder define_scalar(const char* name, void (*kernel)(KernelCall&), Result result, const char* file) {
  OpBuilder b = define_op(std::string(name) + "_scalar(Tensor x, Scalar value, *, bool reverse=False) -> Tensor",
                          kOpVersion, file);
  return set_result(b, result).promotes_with({"value"}).kernel(kernel).hidden();
}

}  // namespace holon::ops
