// Attention by cuDNN's graphs: its flash attention, whose backward pass is told to be deterministic.
#include <bit>
#include <vector>

#include "holon/kernels/cuda/dnn.h"
#include "holon/kernels/cuda/vendor_cudnn.h"

#ifdef HOLON_CUDNN_GRAPHS

namespace holon::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

struct Described {
  std::vector<int64_t> sizes, strides;
};
Described described(int64_t b, int64_t heads, int64_t rows, int64_t width, const int64_t (&strides)[3]) {
  return {{b, heads, rows, width}, {strides[0], strides[1], strides[2], 1}};
}

// Which keys each query sees.
template <class Options>
void set_sight(const Sdpa& a, Options& options) {
  if (!a.causal) return;
  options.set_diagonal_alignment(a.diagonal ? fe::DiagonalAlignment_t::BOTTOM_RIGHT : fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (a.window) options.set_diagonal_band_left_bound(a.window);
}

void make(const Sdpa& a, fe::graph::Graph& graph) {
  graph.set_io_data_type(cudnn::type_of(a.dtype))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  auto input = [&](const Described& d, Uid uid) {
    return graph.tensor(fe::graph::Tensor_attributes().set_uid(uid).set_dim(d.sizes).set_stride(d.strides));
  };
  auto output = [](const cudnn::Tensor& t, const Described& d, Uid uid) {
    t->set_output(true).set_uid(uid).set_dim(d.sizes).set_stride(d.strides);
  };
  const Described of_lse{{a.b, a.h, a.t, 1}, {a.h * a.t, a.t, 1, 1}};
  const auto q = input(described(a.b, a.h, a.t, a.d, a.q), kQ), k = input(described(a.b, a.g, a.s, a.d, a.k), kK),
             v = input(described(a.b, a.g, a.s, a.e, a.v), kV);
  const auto scale = static_cast<float>(std::bit_cast<double>(a.scale));
  if (!a.backward) {
    auto options = fe::graph::SDPA_attributes().set_attn_scale(scale).set_generate_stats(a.lse != 0);
    set_sight(a, options);
    const auto [out, lse] = graph.sdpa(q, k, v, options);
    output(out, described(a.b, a.h, a.t, a.e, a.out), kOut);
    if (!a.lse) return;
    output(lse, of_lse, kLse);
    lse->set_data_type(fe::DataType_t::FLOAT);
    return;
  }
  const auto out = input(described(a.b, a.h, a.t, a.e, a.out), kOut),
             dout = input(described(a.b, a.h, a.t, a.e, a.dout), kDout), lse = input(of_lse, kLse);
  lse->set_data_type(fe::DataType_t::FLOAT);
  auto options = fe::graph::SDPA_backward_attributes().set_attn_scale(scale).set_deterministic_algorithm(true);
  set_sight(a, options);
  const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, lse, options);
  output(dq, described(a.b, a.h, a.t, a.d, a.dq), kDq);
  output(dk, described(a.b, a.g, a.s, a.d, a.dk), kDk);
  output(dv, described(a.b, a.g, a.s, a.e, a.dv), kDv);
}

cudnn::Plan* plan_of(const Sdpa& a) {
  // The deterministic backward pass keeps parts of dq for blocks of keys: 0.4 GB for GPT-2's 16 x 1024 tokens, 2.3 GB
  // for 4 x 4096 with 16 heads of 128.
  const cudnn::Limits limits{.workspace_bytes = int64_t{4} << 30};
  return cudnn::plan_of(a, limits, a.backward ? "the gradient of attention" : "attention",
                        [&a](fe::graph::Graph& graph) { make(a, graph); });
}

}  // namespace

bool supports(const Sdpa& a) { return plan_of(a) != nullptr; }

bool sdpa(const Sdpa& a, const void* q, const void* k, const void* v, void* out, float* lse) {
  cudnn::Plan* plan = plan_of(a);
  return plan && cudnn::run(*plan, {{kQ, q}, {kK, k}, {kV, v}, {kOut, out}, {kLse, lse}}, "attention");
}

bool sdpa_backward(const Sdpa& a, const void* dout, const void* q, const void* k, const void* v, const void* out,
                   const float* lse, void* dq, void* dk, void* dv) {
  cudnn::Plan* plan = plan_of(a);
  return plan &&
      cudnn::run(*plan,
                 {{kQ, q}, {kK, k}, {kV, v}, {kOut, out}, {kLse, lse}, {kDout, dout}, {kDq, dq}, {kDk, dk}, {kDv, dv}},
                 "the gradient of attention");
}

}  // namespace holon::kernels::cuda

#else

namespace holon::kernels::cuda {

bool supports(const Sdpa&) { return false; }
bool sdpa(const Sdpa&, const void*, const void*, const void*, void*, float*) { return false; }
bool sdpa_backward(const Sdpa&, const void*, const void*, const void*, const void*, const void*, const float*, void*,
                   void*, void*) {
  return false;
}

}  // namespace holon::kernels::cuda
#endif
