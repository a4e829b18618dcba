// What the files of this folder share: a tensor's local part as one flat run of elements.
#pragma once

#include "holon/array/array.h"
#include "holon/tensor/tensor.h"

namespace holon::optim {

// The gradient in the layout of its parameter. Collective where it must be boxed.
Tensor grad_like(const Tensor& param, const Tensor& grad);

// The array's elements in the memory order of `like`, which is dense: itself if it lies so already, or a copy.
Array in_order_of(const Array& like, const Array& array);

// Calls f with the C++ type of a floating point dtype.
template <class F>
void visit_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16: return f(TypeTag<Float16>{});
    case DType::kBFloat16: return f(TypeTag<BFloat16>{});
    case DType::kFloat32: return f(TypeTag<float>{});
    default: return f(TypeTag<double>{});
  }
}

}  // namespace holon::optim
