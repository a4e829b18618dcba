#include "holon/tensor/replace_value.h"

#include <algorithm>
#include <cstdint>

namespace holon {

void replace_value(const Tensor& to, const Tensor& from) {
  TensorImpl& impl = *to.impl();
  uint32_t version = impl.array.defined() ? impl.array.storage->version : 0;
  impl.array = from.array();
  impl.shape = from.shape();
  impl.dtype = from.dtype();
  impl.device = from.impl()->device;
  impl.spec = from.spec();
  // What backward kept of the old value must not pass for current.
  if (impl.array.defined()) impl.array.storage->version = std::max(impl.array.storage->version, version) + 1;
}

}  // namespace holon
