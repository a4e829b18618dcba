#include "holon/kernels/cpu/onednn.h"

#include "holon/base/error.h"

namespace holon::kernels::onednn {

using dnnl::memory;

const dnnl::engine& engine() {
  static auto* e = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *e;
}

bool computes(DType dtype) {
  static const bool has_bfloat16 = [] {
    const auto isa = dnnl::get_effective_cpu_isa();
    return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
  }();
  return dtype == DType::kFloat32 || (dtype == DType::kBFloat16 && has_bfloat16);
}

memory::data_type type_of(DType dtype) {
  HOLON_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16, "oneDNN: expected float32 or bfloat16, got {}.",
              name(dtype));
  return dtype == DType::kFloat32 ? memory::data_type::f32 : memory::data_type::bf16;
}

memory::desc strided(const int64_t* sizes, const int64_t* strides, int n, memory::data_type type) {
  return memory::desc(memory::dims(sizes, sizes + n), type, memory::dims(strides, strides + n));
}

memory at(const memory::desc& desc, const void* data) { return memory(desc, engine(), const_cast<void*>(data)); }

void run(const dnnl::primitive& primitive, const Arguments& arguments) {
  thread_local dnnl::stream stream(engine());
  primitive.execute(stream, arguments);
  stream.wait();
}

}  // namespace holon::kernels::onednn
