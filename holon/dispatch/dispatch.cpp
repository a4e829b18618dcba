#include "holon/dispatch/dispatch.h"

#include <algorithm>
#include <optional>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/trace.h"
#include "holon/boxing/events.h"
#include "holon/boxing/planner.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/context_handoff.h"
#include "holon/contract/moves.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/draw_seed.h"
#include "holon/dispatch/gradient_forms.h"
#include "holon/dispatch/local_call.h"
#include "holon/dispatch/on_device.h"
#include "holon/dispatch/planned_call.h"
#include "holon/dispatch/record.h"
#include "holon/dispatch/redistribute_input.h"
#include "holon/dispatch/signature.h"
#include "holon/dispatch/views.h"
#include "holon/op_names/cast.h"
#include "holon/tensor/observer.h"
#include "holon/tensor/parameter.h"
#include "holon/tensor/tracer.h"

namespace holon {

RandomState::RandomState() {
  if (const int number = Context::current().number()) seed = hash_words(seed, number);
}

RandomState& random_state() { return Context::current().part<RandomState>(); }

// A thread that takes a rank draws numbers of its own, which follow from the rank's seed.
static const bool kSeedInherited = comm::inherit_in_handoff([]() -> std::function<void()> {
  return [seed = random_state().seed, seeded = random_state().seeded] {
    random_state().seed = hash_words(seed, Context::current().number());
    random_state().seeded = seeded;
  };
});

void manual_seed(uint64_t seed) {
  RandomState& state = random_state();
  state.seed = seed;
  state.seeded = true;
  state.local_counter = state.global_counter = 0;
  forget_agreed_seeds();
}

namespace {

const Array kUndefined{};

// Above this many bytes a kernel takes longer than handing over the interpreter's lock.
constexpr size_t kLongKernelBytes = 64 << 10;

struct Scan {
  bool global = false, grad = false, symbolic = false;
  uint32_t present = 0;
};

[[noreturn]] void fail_mixed(const OpDef& op, std::span<const Tensor> inputs) {
  std::string kinds;
  for (auto& t : inputs)
    if (t.defined()) kinds += std::string(kinds.empty() ? "" : ", ") + (t.is_global() ? "global" : "local");
  fail_runtime(
      "{}: Got input tensors with inconsistent attributes! op_type_name: {}. attributes of inputs is: {} ({}). Make "
      "the local ones global by to_global(placement, sbp).",
      op.name(), op.name(), kinds, rank_text());
}

Scan scan(const OpDef& op, std::span<const Tensor> inputs) {
  Scan s;
  const Tensor* first = nullptr;
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto& t = inputs[i];
    if (!t.defined()) {
      if (op.schema.input_list)
        fail_type("{}: tensor {} of the list is undefined. Leave it out, or give it a value.", op.public_name(), i);
      for (auto& a : op.schema.args)
        if (a.input == static_cast<int>(i) && !a.optional)
          fail_type("{}: argument {} is missing. Signature: {}", op.name(), a.name, op.schema.text);
      continue;
    }
    s.present |= 1u << std::min<size_t>(i, 31);
    s.grad |= t.requires_grad();
    s.symbolic |= t.is_symbolic();
    if (!first) {
      first = &t;
      s.global = t.is_global();
      continue;
    }
    if (t.is_global() != s.global) fail_mixed(op, inputs);
    if (s.global && !(t.spec()->placement == first->spec()->placement)) [[unlikely]]
      fail_runtime(
          "{}: Expected all tensors to be on the same placement, but found at least two placements, {} (positional {}) "
          "and {} (positional {})! Move one by to_global.",
          op.name(), first->placement(), first - inputs.data(), t.placement(), i);
  }
  if (!first && op.schema.n_inputs > 0 && op.schema.input_list)
    fail_value("{}: an empty list of tensors was passed; at least one is needed.", op.name());
  return s;
}

[[noreturn]] void fail_symbolic(const OpDef& op, std::span<const Tensor> inputs) {
  for (auto& t : inputs)
    if (t.defined()) t.require_value(op.name());
  HOLON_CHECK(false, "no symbolic input of {}", op.name());
}

bool is_promoted(const OpDef& op, size_t input) { return op.promoted_inputs >> std::min<size_t>(input, 31) & 1; }

}  // namespace

DType common_dtype(const OpDef& op, std::span<const Tensor> inputs, const Attrs& attrs) {
  DType of_axes = boolean, of_0d = boolean;
  bool any_axes = false, any_0d = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto& t = inputs[i];
    if (!t.defined() || !is_promoted(op, i)) continue;
    bool is_0d = t.ndim() == 0;
    DType& into = is_0d ? of_0d : of_axes;
    bool& any = is_0d ? any_0d : any_axes;
    into = any ? promote(into, t.dtype()) : t.dtype();
    any = true;
  }
  DType common = !any_0d                    ? of_axes
      : !any_axes                           ? of_0d
      : category(of_0d) > category(of_axes) ? promote(of_axes, of_0d)
                                            : of_axes;
  for (int a : op.promote_attrs)
    if (attrs.has(a)) common = attrs.as_scalar(a).promote_with(common);
  return op.promotes_to_float && !is_floating(common) ? float32 : common;
}

namespace {

// A number that the integers of the result cannot hold would wrap around: 2**32 would equal 0.
void check_number(const OpDef& op, const Scalar& number, DType common) {
  if (number.kind() != Scalar::Kind::kInt || is_floating(common) || common == int64 || common == boolean) return;
  const int bits = 8 * static_cast<int>(size_bytes(common)) - (common == uint8 ? 0 : 1);
  const int64_t most = (int64_t{1} << bits) - 1, least = common == uint8 ? -most : -most - 1;
  const int64_t v = number.as_int();
  if (v >= least && v <= most) return;
  std::string_view called = op.public_name();
  if (called.ends_with("_scalar")) called.remove_suffix(7);
  fail_value("{}: the number {} does not fit {}, the type of the tensor. Convert the tensor first, e.g. x.to(int64).",
             called, v, name(common));
}

void promote_inputs(const OpDef& op, TensorVec& inputs, const Attrs& attrs) {
  // The usual case first: floating point tensors of one dtype need nothing, whatever the other number.
  bool alike = true;
  for (auto& t : inputs) alike &= t.defined() && t.dtype() == inputs[0].dtype();
  if (alike && is_floating(inputs[0].dtype())) return;
  DType common = common_dtype(op, inputs, attrs);
  for (int a : op.promote_attrs)
    if (attrs.has(a)) check_number(op, attrs.as_scalar(a), common);
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto& t = inputs[i];
    if (!t.defined() || t.dtype() == common || !is_promoted(op, i)) continue;
    Attrs a;
    a.push_dtype(common);
    t = dispatch_one(op::cast, {t}, a);
  }
}

void check_attrs(const OpDef& op, const Attrs& attrs) {
  if (static_cast<int>(attrs.size()) != op.schema.n_attrs) [[unlikely]]
    fail_type("{}: takes {} attributes, got {}. Signature: {}", op.name(), op.schema.n_attrs, attrs.size(),
              op.schema.text);
  for (int at : op.required_attrs)
    if (!attrs.has(at)) [[unlikely]]
      for (auto& a : op.schema.args)
        if (a.attr == at) fail_type("{}: argument {} is missing. Signature: {}", op.name(), a.name, op.schema.text);
}

void run_kernel(const OpDef& op, const Attrs& attrs, std::span<const Array* const> in, std::span<Array* const> out,
                const KernelCall::GlobalPart* part) {
  HOLON_CHECK(op.kernel, "op {} has no kernel", op.name());
  KernelCall call(op, attrs, in, out);
  call.set_global(part);
  if (runs_on_device(call)) [[unlikely]]
    return run_on_device(op, call);
  size_t bytes = 0;
  for (auto* a : out) bytes += a->nbytes();
  for (auto* a : in) bytes += a->defined() ? a->nbytes() : 0;
  BlockingScope blocking(bytes > kLongKernelBytes);
  op.kernel(call);
}

// Memory for an output: pinned where the call asks for it.
Array allocate(const OpDef& op, const Attrs& attrs, const Dims& shape, const Dims& strides, DType dtype,
               Device device) {
  if (op.pin_memory_attr < 0 || !attrs.as_bool(op.pin_memory_attr)) [[likely]]
    return Array::empty_strided(shape, strides, dtype, device);
  if (!device.is_host())
    fail_runtime("{}: pin_memory was requested together with {}; only CPU memory can be pinned. Leave one of them out.",
                 op.public_name(), device);
  Array a = Array::empty_pinned(shape, strides, dtype);
  a.device = device;
  return a;
}

void run_local(const OpDef& op, const Attrs& attrs, std::span<const Tensor> inputs, uint32_t present, TensorVec& outs) {
  SmallVec<Meta, 4> metas;
  SmallVec<const Array*, 4> in;
  Device device = common_device(op, inputs);
  for (auto& t : inputs) {
    if (t.defined()) {
      metas.push_back({t.shape(), t.dtype()});
      in.push_back(&t.array());
    } else {
      metas.emplace_back();
      in.push_back(&kUndefined);
    }
  }
  if (op.device_attr >= 0 && attrs.has(op.device_attr)) device = attrs.as_device(op.device_attr);
  Infer infer(op, attrs, metas, present);
  infer.run();
  if (Tracer* trace = tracer()) [[unlikely]] {
    for (auto& m : infer.out_) outs.push_back(Tensor::without_data(m.shape, m.dtype, nullptr, device));
    return trace->op(op, attrs, inputs, outs);
  }
  if (op.view) {
    const Meta& out = infer.out_[0];
    Ref<TensorImpl> made = new_view(op, attrs, inputs[0], out.shape, out.dtype, false);
    made->array = *in[0];
    ViewCall call(op, attrs, *in[0], out.shape);
    op.view(call, made->array);
    if (made->array.storage != in[0]->storage) is_no_view(*made);
    made->become_local();
    outs.push_back(Tensor(std::move(made)));
    return;
  }
  SmallVec<Array*, 3> out;
  for (auto& m : infer.out_) {
    Tensor t = Tensor::local(allocate(op, attrs, m.shape, output_strides(op, m.shape, in), m.dtype, device));
    out.push_back(&t.impl()->array);
    outs.push_back(std::move(t));
  }
  run_kernel(op, attrs, in, out, nullptr);
}

// What a kernel reads of other ranks' parts itself: at most what would bring the inputs together.
boxing::BoxingEvent read_inside(const OpDef& op, const ChosenSignature& signature, const TensorVec& inputs) {
  std::optional<boxing::BoxingEvent> all;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const GlobalSpec *from = signature.in[i], *to = signature.read_as[i];
    if (from == to) continue;
    const Tensor& x = inputs[i];
    boxing::BoxingEvent e =
        boxing::implicit_event(op.name(),
                               capturing_tracer() ? boxing::plan(from, to, x.shape(), x.dtype())
                                                  : contract::plan_move({op.name(), from, to, x.shape(), x.dtype(),
                                                                         contract::Why::kInside, input_name(op, i)}));
    if (all)
      all->bytes += e.bytes, all->max_bytes += e.max_bytes;
    else
      all = e;
  }
  HOLON_CHECK(all, "{} reads no input of other ranks", op.name());
  all->inside = true;
  return *all;
}

// inputs become the redistributed ones: the same logical tensors, with the values that the kernel saw; saved, if it is
// filled, the forms of them that backward keeps.
void run_global(const OpDef& op, const Attrs& attrs, TensorVec& inputs, const Scan& s, TensorVec& outs,
                TensorVec& saved) {
  GradientForms* const forms = GradientForms::current();
  if (forms) [[unlikely]]
    if (auto moved = forms->redistributed(inputs); moved && takes_without_moving(op, attrs, *moved, s.present))
      inputs = std::move(*moved);
  const PlannedCall& call = planned_call(op, attrs, inputs, s.present, s.grad);
  if (call.redistributed) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensor& t = inputs[i];
      const GlobalSpec* to = call.signature.in[i];
      if (!t.defined() || t.spec() == to) continue;
      const bool parameter = t.nd_sbp().has_split() && is_parameter(t);
      Tensor redistributed = redistribute_input(op.name(), t, to, {input_name(op, i), call.signature.in}, parameter);
      // Backward keeps a parameter as it is stored, and redistributes it again if it must: a copy would live until
      // then. What comes from outside and is only cut (a table that every rank has) may be wanted whole there.
      const bool cut = call.cut >> std::min<size_t>(i, 31) & 1;
      if (s.grad && (parameter || (cut && t.is_leaf()))) {
        if (saved.empty()) saved = inputs;
      } else if (!saved.empty()) {
        saved[i] = redistributed;
      }
      if (forms && !cut) forms->note(t, redistributed);
      t = std::move(redistributed);
    }
  }
  Tracer* const trace = tracer();
  if (op.view && !trace) {
    const Meta& out = call.out[0];
    Ref<TensorImpl> made = new_view(op, attrs, inputs[0], out.shape, out.dtype, call.redistributed != 0);
    made->become_global(out.shape, out.dtype, call.signature.out[0]);
    if (call.local.member) {
      made->array = inputs[0].array();
      ViewCall view(op, attrs, inputs[0].array(), call.local.out_shape[0]);
      op.view(view, made->array);
    }
    outs.push_back(Tensor(std::move(made)));
    return;
  }
  for (size_t o = 0; o < call.out.size(); ++o)
    outs.push_back(Tensor::global({}, call.out[o].shape, call.out[o].dtype, call.signature.out[o]));
  std::optional<boxing::BoxingEvent> inside;
  if (!call.signature.read_as.empty()) [[unlikely]]
    inside = read_inside(op, call.signature, inputs);
  if (trace) [[unlikely]] {
    if (inside) boxing::record_implicit(*inside);
    return trace->op(op, attrs, inputs, outs);
  }
  if (!call.local.member) return;
  SmallVec<const Array*, 4> in;
  for (auto& t : inputs) in.push_back(t.defined() ? &t.array() : &kUndefined);
  SmallVec<Array*, 3> out;
  Device device = call.signature.out[0]->placement.device();
  for (size_t o = 0; o < outs.size(); ++o) {
    Array& a = outs[o].impl()->array;
    const Dims& shape = call.local.out_shape[o];
    a = allocate(op, attrs, shape, output_strides(op, shape, in), call.out[o].dtype, device);
    out.push_back(&a);
  }
  const uint64_t before = inside ? comm::stats().bytes_read : 0;
  run_kernel(op, attrs, in, out, &call.local.part);
  if (!inside) return;
  // Which elements it reads may depend on more than layouts.
  inside->bytes = static_cast<int64_t>(comm::stats().bytes_read - before);
  boxing::record_implicit(*inside);
}

void describe(tracing::Span& span, const TensorVec& outs) {
  if (outs.empty() || !outs[0].defined()) return;
  const Tensor& out = outs[0];
  span.arg("out", fmt::format("{} {}", name(out.dtype()), out.shape()));
  if (out.is_global()) span.arg("layout", out.spec()->str());
}

void fill_draw(const OpDef& op, std::span<const Tensor> inputs, Attrs& attrs, bool global) {
  if (attrs.has(op.seed_attr)) {
    if (!attrs.has(op.counter_attr)) attrs.set_int(op.counter_attr, 0);
    return;
  }
  if (Tracer* trace = tracer()) [[unlikely]] {
    attrs.set_int(op.seed_attr, 0);
    attrs.set_int(op.counter_attr, trace->draw(global));
    return;
  }
  RandomState& r = random_state();
  const uint64_t seed = !global
      ? seed_of_local_draws(r)
      : seed_of_global_draws(inputs.empty() ? attrs.as_placement(op.placement_attr) : inputs[0].spec()->placement);
  attrs.set_int(op.seed_attr, static_cast<int64_t>(seed));
  attrs.set_int(op.counter_attr, global ? r.global_counter++ : r.local_counter++);
}

void tell(Observer& observer, const OpDef& op, std::span<const Tensor> inputs, std::span<const Tensor> outs,
          bool composed) {
  if (tracer()) return;
  const bool converts = composed && (op.schema.name == "to_global" || op.schema.name == "to_local");
  observer.op(op.name(), {op.view != nullptr, op.random, op.flops != nullptr, composed, converts}, inputs, outs);
}

// inputs: the caller's own, which become what the kernel saw. outs: filled.
void dispatch_into(const OpDef& op, TensorVec& inputs, const Attrs& given, TensorVec& outs) {
  tracing::Span span(op.schema.name, "op");
  check_attrs(op, given);
  std::optional<Float8Product> float8;
  if (Context::current().autocast()) [[unlikely]]
    float8 = autocast_inputs(op, inputs);
  if (float8 && float8->result.defined()) [[unlikely]] {
    outs = {float8->result};
    return;
  }
  Scan s = scan(op, inputs);
  if (s.symbolic && !tracer()) [[unlikely]]
    fail_symbolic(op, inputs);
  if (op.is_composed(inputs)) {
    BodyCall call(op, given, inputs);
    op.body(call);
    outs = std::move(call.out);
    if (Observer* o = observer()) [[unlikely]]
      tell(*o, op, inputs, outs, true);
    return;
  }
  if (op.promotes) promote_inputs(op, inputs, given);
  if (op.schema.n_inputs == 0 && op.placement_attr >= 0) {
    s.global = given.has(op.placement_attr);
    if (s.global != given.has(op.sbp_attr))
      fail_layout("{}: placement and sbp must be given together; only {} was given. Give both for a global tensor, "
                  "neither for a local one.",
                  op.name(), s.global ? "placement" : "sbp");
    if (s.global && op.device_attr >= 0 && given.has(op.device_attr))
      fail_layout(
          "{}: both placement and device were given. A global tensor has a placement, a local one has a device.",
          op.name());
  }
  Attrs drawn;
  const Attrs* attrs = &given;
  if (op.random) {
    drawn = given;
    fill_draw(op, inputs, drawn, s.global);
    attrs = &drawn;
  }
  TensorVec saved, as_given;
  if (observer()) [[unlikely]]
    as_given = inputs;
  if (s.global)
    run_global(op, *attrs, inputs, s, outs, saved);
  else
    run_local(op, *attrs, inputs, s.present, outs);
  if (span) [[unlikely]]
    describe(span, outs);
  if (s.grad && op.grad && grad_enabled()) {
    record(op, *attrs, inputs, outs, saved);
  } else if (s.grad && !op.method && !op.function && grad_enabled()) [[unlikely]] {
    record_without_gradient(op, inputs, outs);
  } else if (op.requires_grad_attr >= 0 && attrs->as_bool(op.requires_grad_attr)) {
    for (auto& t : outs) t.set_requires_grad();
  } else if (s.global && !inputs.empty() && shows_parameter(op) && is_parameter(inputs[0])) [[unlikely]] {
    mark_parameter(outs[0]);
  }
  if (float8) [[unlikely]]
    round_gradients(*float8, outs);
  if (Observer* o = observer()) [[unlikely]]
    tell(*o, op, as_given.empty() ? inputs : as_given, outs, false);
}

}  // namespace

TensorVec dispatch(const OpDef& op, TensorVec inputs, const Attrs& attrs) {
  TensorVec outs;
  dispatch_into(op, inputs, attrs, outs);
  return outs;
}

Tensor dispatch_one(const OpDef& op, TensorVec inputs, const Attrs& attrs) {
  TensorVec outs;
  dispatch_into(op, inputs, attrs, outs);
  return std::move(outs[0]);
}

std::vector<Signature> signatures_of_call(const OpDef& op, TensorVec inputs, const Attrs& attrs) {
  Scan s = scan(op, inputs);
  if (op.is_composed(inputs))
    fail_runtime("{}: it is composed of other ops and has no signatures. Ask for those of the ops that its body calls.",
                 op.name());
  if (op.schema.n_inputs == 0) return {};
  if (op.promotes) promote_inputs(op, inputs, attrs);
  SmallVec<Meta, 4> metas;
  for (auto& t : inputs) metas.push_back(t.defined() ? Meta{t.shape(), t.dtype()} : Meta{});
  Infer infer(op, attrs, metas, s.present);
  infer.run();
  return signatures_of(op, attrs, metas, infer.out_);
}

std::vector<Tensor> call(std::string_view op, TensorList inputs) { return call(op, inputs, {}); }
std::vector<Tensor> call(std::string_view name, TensorList inputs, const std::vector<NamedAttr>& attrs) {
  const OpDef& op = find_op(name);
  if (!op.schema.input_list && inputs.size() != to_size(op.schema.n_inputs))
    fail_type("{}: {} tensors were given, it takes {}; an absent one is Tensor(). Signature: {}", op.name(),
              inputs.size(), op.schema.n_inputs, op.schema.text);
  return dispatch(op, TensorVec(inputs), make_attrs(op.schema, attrs));
}

}  // namespace holon
