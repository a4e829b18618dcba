#include "holon/conformance/rules.h"

#include <cstring>
#include <mutex>

#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/boxing/events.h"
#include "holon/comm/run_ranks.h"
#include "holon/conformance/subject.h"
#include "holon/conformance/values.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/signature.h"
#include "holon/global/slice.h"

// A kernel is run on the parts of every rank in turn, without a world.
namespace holon::conformance {

namespace {

using Sbps = SmallVec<Sbp, 4>;
using Fill = Input::Fill;

std::string text_of(const Sbps& in, const Sbps& out) {
  std::string s;
  for (auto& x : in) s += x.str() + " ";
  s += "->";
  for (auto& x : out) s += " " + x.str();
  return s;
}

struct Piece {
  Dims offset, shape;
};

Piece piece(const Dims& shape, Sbp sbp, int64_t ranks, int64_t rank) {
  Piece p{Dims::filled(shape.size(), 0), shape};
  if (!sbp.is_split()) return p;
  Interval i = balanced_split(shape[sbp.axis], ranks, rank);
  p.offset[sbp.axis] = i.begin;
  p.shape[sbp.axis] = i.size;
  return p;
}

// Copies between a whole and its piece; to_piece or from it, adding if `add`.
void transfer(std::vector<double>& whole, const Dims& shape, const Piece& p, std::vector<double>& part, bool to_piece,
              bool add) {
  Dims strides = contiguous_strides(shape), at = Dims::filled(shape.size(), 0);
  for (auto& v : part) {
    size_t e = 0;
    for (int d = 0; d < shape.size(); ++d) e += static_cast<size_t>((p.offset[d] + at[d]) * strides[d]);
    if (to_piece)
      v = whole[e];
    else
      whole[e] = add ? whole[e] + v : v;
    for (int d = shape.size() - 1; d >= 0 && ++at[d] == p.shape[d]; --d) at[d] = 0;
  }
}

// A call whose kernel can be run on parts.
class Call {
 public:
  explicit Call(const Sample& c, uint64_t variant = 0) : c_(c), op(find_op(c.op)), attrs(make_attrs(c)) {
    const Subject subject(c);
    for (size_t i = 0; i < c.in.size(); ++i) {
      in.push_back({c.in[i].shape, c.in[i].dtype});
      values_.push_back(subject.values(i, variant));
      present_.push_back(c.in[i].fill != Input::Fill::kAbsent);
      mask_ |= static_cast<uint32_t>(present_[i]) << i;
    }
    if (is_composed(c) || op.random || c.in.empty()) return;
    for (auto& m : in)
      if (op.promotes && (m.dtype != in[0].dtype || !is_floating(m.dtype))) return;
    Infer infer(op, attrs, in, mask_);
    op.infer(infer);
    for (auto& m : infer.out_) out.push_back(m);
    Sbps in_whole, out_whole;
    for (size_t i = 0; i < in.size(); ++i) in_whole.push_back(sbp::broadcast());
    for (size_t o = 0; o < out.size(); ++o) out_whole.push_back(sbp::broadcast());
    std::string wrong;
    truth_ = run(in_whole, out_whole, 1, &wrong);
    usable = wrong.empty();
  }

  // Whether running on the parts gives the parts of the result; why not otherwise.
  std::string wrong(const Sbps& in_sbp, const Sbps& out_sbp, int64_t ranks) {
    std::string text;
    auto got = run(in_sbp, out_sbp, ranks, &text);
    if (!text.empty()) return text;
    for (size_t o = 0; o < out.size(); ++o)
      if (std::string d = differs(got[o], truth_[o], tolerance(out[o].dtype)); !d.empty())
        return fmt::format("output {}: {}", o, d);
    return {};
  }

  // Of the choices for each output, those of which the op's own inference on the parts gives the parts; none at all
  // where it fails.
  std::vector<std::vector<Sbp>> fitting(const Sbps& in_sbp, std::vector<std::vector<Sbp>> choices,
                                        std::initializer_list<int64_t> of_ranks) const {
    for (int64_t ranks : of_ranks)
      for (int64_t r = 0; r < ranks; ++r) {
        SmallVec<Meta, 4> local;
        for (size_t i = 0; i < in.size(); ++i)
          local.push_back({piece(in[i].shape, in_sbp[i], ranks, r).shape, in[i].dtype});
        try {
          Infer infer(op, attrs, local, mask_);
          op.infer(infer);
          for (size_t o = 0; o < out.size(); ++o)
            std::erase_if(choices[o],
                          [&](Sbp s) { return infer.out_[o].shape != piece(out[o].shape, s, ranks, r).shape; });
        } catch (const Error&) {
          return std::vector<std::vector<Sbp>>(out.size());
        }
      }
    return choices;
  }

  bool present(size_t i) const { return present_[i]; }

 private:
  std::vector<std::vector<double>> run(const Sbps& in_sbp, const Sbps& out_sbp, int64_t ranks, std::string* wrong) {
    std::vector<std::vector<double>> result;
    for (auto& m : out) result.emplace_back(static_cast<size_t>(m.shape.numel()));
    std::vector<std::vector<double>> rest = values_;  // what the last rank's addend is
    for (int64_t r = 0; r < ranks; ++r) {
      SmallVec<Array, 4> arrays;
      SmallVec<Array, 3> outs;
      KernelCall::GlobalPart part;
      for (size_t i = 0; i < in.size(); ++i) {
        Piece p = piece(in[i].shape, in_sbp[i], ranks, r);
        part.in_shape.push_back(in[i].shape);
        part.in_offset.push_back(p.offset);
        part.in_spec.push_back(nullptr);
        if (!present_[i]) {
          arrays.push_back({});
          continue;
        }
        std::vector<double> v(static_cast<size_t>(p.shape.numel()));
        transfer(values_[i], in[i].shape, p, v, true, false);
        if (in_sbp[i].is_partial()) {
          for (size_t e = 0; e < v.size(); ++e) {
            double mine = r + 1 < ranks ? (static_cast<double>(mix(e, static_cast<uint64_t>(r), i) % 129) - 64) /
                    (is_floating(in[i].dtype) ? 64 : 1)
                                        : rest[i][e];
            rest[i][e] -= mine;
            v[e] = mine;
          }
        }
        arrays.push_back(array_of(v, p.shape, in[i].dtype));
      }
      for (size_t o = 0; o < out.size(); ++o) {
        Piece p = piece(out[o].shape, out_sbp[o], ranks, r);
        part.out_shape.push_back(out[o].shape);
        part.out_offset.push_back(p.offset);
        outs.push_back(Array::empty_strided(p.shape,
                                            op.layout == Layout::kChannelsLast && p.shape.size() >= 4
                                                ? channels_last_strides(p.shape)
                                                : contiguous_strides(p.shape),
                                            out[o].dtype));
        if (outs[o].nbytes())
          std::memset(outs[o].bytes(), 0x4d, outs[o].nbytes());  // a kernel that leaves something out is seen
      }
      part.counts_once = !out_sbp[0].is_partial() || r == 0;
      SmallVec<const Array*, 4> in_ptr;
      SmallVec<Array*, 3> out_ptr;
      for (auto& a : arrays) in_ptr.push_back(&a);
      for (auto& a : outs) out_ptr.push_back(&a);
      try {
        if (op.view) {
          outs[0] = arrays[0];
          Dims shape = piece(out[0].shape, out_sbp[0], ranks, r).shape;
          ViewCall view(op, attrs, arrays[0], shape);
          op.view(view, outs[0]);
        } else {
          KernelCall call(op, attrs, in_ptr, out_ptr);
          call.set_global(&part);
          op.kernel(call);
        }
      } catch (const Error& e) {
        *wrong = e.what();
        return result;
      }
      for (size_t o = 0; o < out.size(); ++o) {
        Piece p = piece(out[o].shape, out_sbp[o], ranks, r);
        if (outs[o].shape != p.shape) {
          *wrong = fmt::format("output {} is {} on rank {}, not {}", o, outs[o].shape, r, p.shape);
          return result;
        }
        auto v = values_of(outs[o]);
        if (out_sbp[o].is_broadcast() && r > 0 && differs(v, result[o], 0) != "") {
          *wrong = fmt::format("output {} as broadcast is not alike on rank {}", o, r);
          return result;
        }
        transfer(result[o], out[o].shape, p, v, false, out_sbp[o].is_partial());
      }
    }
    return result;
  }

  const Sample& c_;
  std::vector<std::vector<double>> values_, truth_;
  std::vector<bool> present_;
  uint32_t mask_ = 0;

 public:
  const OpDef& op;
  Attrs attrs;
  SmallVec<Meta, 4> in;
  SmallVec<Meta, 3> out;
  bool usable = false;
};

bool partial_bools(const Signature& s, std::span<const Meta> in) {
  for (size_t i = 0; i < in.size(); ++i)
    if (s.in[i].is_partial() && in[i].dtype == boolean) return true;
  return false;
}

bool units_fit(const Signature& s, int64_t ranks) { return !s.even_units || s.even_units % ranks == 0; }

std::vector<Sbp> choices(const Meta& m, bool partial) {
  std::vector<Sbp> list{sbp::broadcast()};
  for (int a = 0; a < m.shape.size(); ++a) list.push_back(sbp::split(a));
  if (partial && is_floating(m.dtype)) list.push_back(sbp::partial_sum());
  return list;
}

// All ways to pick one of each list.
template <class F>
void for_each_pick(const std::vector<std::vector<Sbp>>& lists, F f) {
  for (auto& list : lists)
    if (list.empty()) return;
  std::vector<size_t> at(lists.size(), 0);
  while (true) {
    Sbps pick;
    for (size_t i = 0; i < lists.size(); ++i) pick.push_back(lists[i][at[i]]);
    f(pick);
    size_t i = 0;
    while (i < lists.size() && ++at[i] == lists[i].size()) at[i++] = 0;
    if (i == lists.size()) return;
  }
}

}  // namespace

bool runs_on_parts(const Sample& s) { return Call(s).usable; }

std::vector<std::string> wrong_signatures(const Sample& sample, int* checked) {
  std::vector<std::string> found;
  Call call(sample);
  if (!call.usable) return found;
  for (auto& s : signatures_of(call.op, call.attrs, call.in, call.out))
    for (int64_t ranks : {2, 3, 4}) {
      if (!units_fit(s, ranks) || s.communicates) continue;
      if (checked) ++*checked;
      const std::string wrong =
          partial_bools(s, call.in) ? "there are no partial sums of bools" : call.wrong(s.in, s.out, ranks);
      if (!wrong.empty()) found.push_back(fmt::format("{} on {} ranks: {}", text_of(s.in, s.out), ranks, wrong));
    }
  return found;
}

std::vector<std::string> redistributing_signatures(const Sample& c) {
  std::vector<std::string> found;
  Call call(c);
  if (!call.usable) return found;
  const Subject subject(c);
  auto signatures = signatures_of(call.op, call.attrs, call.in, call.out);
  for (int64_t ranks : {2, 3}) {
    std::mutex mutex;
    std::string wrong;
    try {
      comm::run_ranks(static_cast<int>(ranks), [&](int rank) {
        Placement all = Placement::all("cpu");
        NoGradGuard no_grad;
        for (auto& s : signatures) {
          if (!units_fit(s, ranks)) continue;
          TensorVec in;
          for (size_t i = 0; i < call.in.size(); ++i)
            in.push_back(!call.present(i) ? Tensor()
                                          : Tensor::global(part_of(subject.values(i), c.in[i].shape, c.in[i].dtype, all,
                                                                   s.in[i], rank),
                                                           c.in[i].shape, c.in[i].dtype, intern_spec(all, s.in[i])));
          boxing::reset_boxing_counters();
          TensorVec outs = dispatch(call.op, in, call.attrs);
          std::string text;
          // What kernels read of other ranks' parts themselves is an event, too.
          if (boxing::boxing_counters().events != (s.reads != 0)) text = "redistributes its inputs";
          // Where two signatures take the same inputs, the first is chosen.
          const Signature* first = nullptr;
          for (auto& t : signatures)
            if (!first && units_fit(t, ranks)) {
              bool same = true;
              for (size_t i = 0; i < call.in.size(); ++i) same &= !call.present(i) || t.in[i] == s.in[i];
              if (same) first = &t;
            }
          for (size_t o = 0; o < outs.size(); ++o)
            if (!(outs[o].nd_sbp()[0] == first->out[o])) text = "gives " + outs[o].nd_sbp().str();
          if (text.empty()) continue;
          std::lock_guard lock(mutex);
          wrong = text_of(s.in, s.out) + ": " + text;
        }
      });
    } catch (const std::exception& e) {
      wrong = e.what();
    }
    if (!wrong.empty()) found.push_back(fmt::format("{} on {} ranks", wrong, ranks));
  }
  return found;
}

std::vector<std::string> missing_signatures(const Sample& c) {
  std::vector<std::string> missing;
  Call call(c);
  if (!call.usable) return missing;
  for (auto& m : call.in)
    for (int64_t n : m.shape)
      if (n < 2) return missing;
  for (auto& m : call.out)
    if (m.shape.numel() == 0) return missing;
  auto signatures = signatures_of(call.op, call.attrs, call.in, call.out);
  std::vector<std::vector<Sbp>> ins, outs;
  for (size_t i = 0; i < call.in.size(); ++i)
    ins.push_back(call.present(i) ? choices(call.in[i], true) : std::vector<Sbp>{sbp::broadcast()});
  for (auto& m : call.out) outs.push_back(choices(m, true));
  // No function into bools is linear; addends of comparisons can be right by chance.
  if (call.out[0].dtype == boolean)
    for (size_t i = 0; i < ins.size(); ++i) ins[i] = call.present(i) ? choices(call.in[i], false) : ins[i];
  for_each_pick(ins, [&](const Sbps& in) {
    bool whole = true;
    for (auto& s : in) whole &= s.is_broadcast();
    if (whole) return;
    for_each_pick(call.fitting(in, outs, {2, 3}), [&](const Sbps& out) {
      for (auto& s : signatures) {
        bool same = true;
        for (size_t i = 0; i < in.size(); ++i) same &= s.in[i] == in[i] || !call.present(i);
        for (size_t o = 0; o < out.size(); ++o) same &= s.out[o] == out[o];
        if (same) return;
      }
      for (int64_t ranks : {2, 3})
        if (!call.wrong(in, out, ranks).empty()) return;
      for (uint64_t variant : {1, 2, 3, 4})
        if (!Call(c, variant).wrong(in, out, 2).empty()) return;
      missing.push_back(text_of(in, out));
    });
  });
  return missing;
}

}  // namespace holon::conformance
