#include "holon/kernels/cuda/attention_library.h"

#include <bit>

#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/dnn.h"
#include "holon/kernels/cuda/library_layout.h"
#include "holon/kernels/cudnn.h"
#include "holon/kernels/half.h"

namespace holon::kernels::cuda {
namespace {

// The library compiles a kernel for each shape, which takes about a second. So it gets lengths that recur: training has
// multiples of this; prompts, and steps of generation with one more key each, rarely do.
constexpr int64_t kLengths = 64;
constexpr int64_t kPack = 8;  // elements in 16 bytes

bool fits(const Array& a) {
  if (a.strides[3] != 1 || !is_aligned(a)) return false;
  for (int i = 0; i < 3; ++i)
    if (a.shape[i] != 1 && (a.strides[i] <= 0 || a.strides[i] % kPack)) return false;
  return true;
}

Array laid_out(const Array& a) { return fits(a) ? a : copy_of(a, contiguous_strides(a.shape)); }

template <class F>
bool into(Array& out, F&& f) {
  return into_layout(out, fits(out), contiguous_strides(out.shape), f);
}

// Strides along axes of one element are free: those that have no bearing on others are as in a contiguous array.
void set_strides(const Array& a, int64_t (&strides)[3]) {
  const Dims used = fits(a) ? a.strides : contiguous_strides(a.shape);
  const Dims dense = contiguous_strides(a.shape);
  for (int i = 0; i < 3; ++i) strides[i] = a.shape[i] == 1 ? dense[i] : used[i];
}

// What each query sees, in the library's terms. False: it has none for that, or some query may see nothing, whose
// result the library leaves open.
bool describe_sight(const Attention& o, Sdpa* a) {
  const int64_t diagonal = o.first_query - o.first_key;
  if (!o.causal) return true;
  if (diagonal < 0) return false;
  a->window = o.window && o.window < a->t + diagonal ? o.window : 0;
  a->causal = a->window || diagonal < a->s - 1;
  if (!a->causal) return true;
  a->diagonal = diagonal;
  return (diagonal == 0 || diagonal == a->s - a->t) && (!a->window || a->t <= a->s);
}

bool describe(const Array& q, const Array& k, const Array& v, const Attention& o, Sdpa* a) {
  if (!cudnn_enabled() || !is_half(q.dtype) || o.mask.defined() || o.documents.defined() || o.dropout > 0) return false;
  *a = {};
  a->dtype = static_cast<int64_t>(q.dtype);
  a->b = q.shape[0], a->h = q.shape[1], a->g = k.shape[1], a->t = q.shape[2], a->s = k.shape[2];
  a->d = q.shape[3], a->e = v.shape[3];
  if (a->s == 0 || a->d == 0 || a->e == 0 || a->d % kPack || a->e % kPack) return false;
  if (a->t % kLengths || a->s % kLengths) return false;
  a->scale = std::bit_cast<int64_t>(o.scale);
  set_strides(q, a->q), set_strides(k, a->k), set_strides(v, a->v);
  return describe_sight(o, a);
}

// The sums as the library has them.
template <class F>
bool into_sums(Array* lse, F&& f) {
  if (!lse) return f(static_cast<float*>(nullptr));
  return into_layout(*lse, lse->is_contiguous(), contiguous_strides(lse->shape),
                     [&](const Array& to) { return f(to.data<float>()); });
}

}  // namespace

bool library_attention(const Array& q, const Array& k, const Array& v, const Attention& options, Array& out,
                       Array* lse) {
  Sdpa a;
  if (!describe(q, k, v, options, &a)) return false;
  set_strides(out, a.out);
  a.lse = lse != nullptr;
  if (!supports(a)) return false;
  const Array from_q = laid_out(q), from_k = laid_out(k), from_v = laid_out(v);
  return into(out, [&](const Array& to) {
    return into_sums(lse, [&](float* sums) {
      return sdpa(a, from_q.bytes(), from_k.bytes(), from_v.bytes(), to.bytes(), sums);
    });
  });
}

bool library_attention_backward(const Array& dout, const Array& q, const Array& k, const Array& v, const Array& out,
                                const Array& lse, const Attention& options, Array& dq, Array& dk, Array& dv) {
  Sdpa a;
  if (!describe(q, k, v, options, &a)) return false;
  a.backward = 1;
  set_strides(out, a.out), set_strides(dout, a.dout);
  set_strides(dq, a.dq), set_strides(dk, a.dk), set_strides(dv, a.dv);
  if (!supports(a)) return false;
  const Array from_q = laid_out(q), from_k = laid_out(k), from_v = laid_out(v), from_out = laid_out(out),
              from_dout = laid_out(dout);
  const Array sums = contiguous(lse);
  return into(dq, [&](const Array& to_q) {
    return into(dk, [&](const Array& to_k) {
      return into(dv, [&](const Array& to_v) {
        return sdpa_backward(a, from_dout.bytes(), from_q.bytes(), from_k.bytes(), from_v.bytes(), from_out.bytes(),
                             sums.data<float>(), to_q.bytes(), to_k.bytes(), to_v.bytes());
      });
    });
  });
}

}  // namespace holon::kernels::cuda
