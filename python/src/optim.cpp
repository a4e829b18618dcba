// The update rules of optimizers, the clipping of gradients and the formulas of learning rates. python/holon/optim
// keeps groups and schedules.
#include "holon/base/index.h"
#include "holon/optim/update.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "args.h"
#include "bind.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/ops/cast.h"
#include "holon/optim/relayout.h"
#include "holon/optim/schedule.h"
#include "holon/tensor/tracer.h"
#include "optim.h"

namespace holon::python {

namespace {

std::vector<Tensor> tensor_list(nb::handle list) {
  std::vector<Tensor> result;
  result.reserve(nb::len(list));
  for (nb::handle item : list) {
    if (!is_tensor(item.ptr()))
      fail_type("a list of tensors is expected here; it contains a {}.", Py_TYPE(item.ptr())->tp_name);
    result.push_back(tensor_of(item.ptr()));
  }
  return result;
}

// Rules that differ from the one before the colon by a flag.
struct Variant {
  std::string_view name;
  bool optim::Rule::*flag;
};
constexpr Variant kVariants[] = {{"sgd:lr_in_momentum", &optim::Rule::lr_in_momentum},
                                 {"rmsprop:eps_in_root", &optim::Rule::eps_in_root},
                                 {"lamb:eps_in_root", &optim::Rule::eps_in_root},
                                 {"lamb:ratio_before_decay", &optim::Rule::ratio_before_decay}};

optim::RuleKind kind_of(std::string_view name) {
  const std::string_view names[] = {"sgd", "adam", "adagrad", "adadelta", "rmsprop", "lamb", "lars"};
  for (size_t i = 0; i < std::size(names); ++i)
    if (name == names[i]) return static_cast<optim::RuleKind>(i);
  fail_value("there is no update rule '{}'.", name);
}

// The names of options, as dicts have them.
struct OptionNames {
  PyObject* intern(const char* name) { return checked(PyUnicode_InternFromString(name)); }
  PyObject *lr = intern("lr"), *weight_decay = intern("weight_decay"), *eps = intern("eps"),
           *momentum = intern("momentum"), *dampening = intern("dampening"), *rho = intern("rho"),
           *alpha = intern("alpha"), *lr_decay = intern("lr_decay"), *initial = intern("initial_accumulator_value"),
           *trust = intern("trust_coefficient"), *nesterov = intern("nesterov"), *maximize = intern("maximize"),
           *amsgrad = intern("amsgrad"), *centered = intern("centered"), *decoupled = intern("decoupled"),
           *adam_w_mode = intern("adam_w_mode"), *bias_correction = intern("do_bias_correction"),
           *master_weights = intern("master_weights"), *betas = intern("betas");
};

}  // namespace

optim::Rule rule_of(std::string_view kind, nb::handle options) {
  static OptionNames& names = *new OptionNames;  // for the life of the process, as other interned names
  optim::Rule r;
  const auto* variant = std::ranges::find(kVariants, kind, &Variant::name);
  if (variant != std::end(kVariants)) {
    r.*(variant->flag) = true;
    kind = kind.substr(0, kind.find(':'));
  }
  r.kind = kind_of(kind);
  auto number = [&](PyObject* name, double* out) {
    PyObject* o = PyDict_GetItem(options.ptr(), name);
    if (o && o != Py_None && !to_float(o, out))
      fail_type("the option {} must be a number, got {}.", PyUnicode_AsUTF8(name), describe(o));
  };
  auto flag = [&](PyObject* name, bool* out) {
    PyObject* o = PyDict_GetItem(options.ptr(), name);
    if (!o || o == Py_None) return;
    int truth = PyObject_IsTrue(o);
    if (truth < 0) raise_python();
    *out = truth;
  };
  number(names.lr, &r.lr);
  number(names.weight_decay, &r.weight_decay);
  number(names.eps, &r.eps);
  number(names.momentum, &r.momentum);
  number(names.dampening, &r.dampening);
  number(names.rho, &r.rho);
  number(names.alpha, &r.rho);
  number(names.lr_decay, &r.lr_decay);
  number(names.initial, &r.initial_accumulator_value);
  number(names.trust, &r.trust_coefficient);
  flag(names.nesterov, &r.nesterov);
  flag(names.maximize, &r.maximize);
  flag(names.amsgrad, &r.amsgrad);
  flag(names.centered, &r.centered);
  flag(names.decoupled, &r.decoupled);
  flag(names.adam_w_mode, &r.decoupled);
  flag(names.bias_correction, &r.bias_correction);
  flag(names.master_weights, &r.master_weights);
  if (PyObject* betas = PyDict_GetItem(options.ptr(), names.betas)) {
    nb::object pair = nb::steal(checked(PySequence_Fast(betas, "the option betas must be a pair of numbers")));
    if (nb::len(pair) != 2 || !to_float(PySequence_Fast_GET_ITEM(pair.ptr(), 0), &r.beta1) ||
        !to_float(PySequence_Fast_GET_ITEM(pair.ptr(), 1), &r.beta2))
      fail_value("the option betas must be a pair of numbers, got {}.", describe(betas));
  }
  return r;
}

Tensor state_in(const nb::dict& state, const char* name) {
  PyObject* o = PyDict_GetItemString(state.ptr(), name);
  if (!o || o == Py_None) return {};
  if (!is_tensor(o)) fail_type("the state '{}' of a parameter must be a tensor, got {}.", name, describe(o));
  return tensor_of(o);
}

namespace {

// One step of parameters that have a gradient. states[i] is the dict of parameter i, with "step" and the rule's
// tensors; what is missing is put there.
void optimizer_step(const std::string& kind, HandleOf<"Sequence[Tensor]"> params,
                    nb::typed<nb::list, nb::typed<nb::dict, nb::str, nb::any>> states,
                    nb::typed<nb::dict, nb::str, nb::any> options) {
  const optim::Rule rule = rule_of(kind, options);
  std::vector<optim::Slot> slots(nb::len(states));
  if (nb::len(params) != slots.size())
    fail_value("optimizer_step: {} parameters and {} states.", nb::len(params), slots.size());
  size_t i = 0;
  for (nb::handle p : params) {
    optim::Slot& s = slots[i];
    if (!is_tensor(p.ptr())) fail_type("an optimizer updates tensors, got {}.", describe(p.ptr()));
    nb::dict state = nb::cast<nb::dict>(states[i++]);
    s.param = tensor_of(p.ptr());
    s.grad = s.param.grad();
    for (int k = 0; k < optim::kMaxStates; ++k)
      if (const char* name = optim::state_name(rule, k)) at_index(s.state, k) = state_in(state, name);
    if (rule.master_weights) s.master = state_in(state, "master");
    if (PyObject* step = PyDict_GetItemString(state.ptr(), "step")) {
      double x = 0;
      if (!to_float(step, &x)) fail_type("the state 'step' of a parameter must be a number, got {}.", describe(step));
      s.step = static_cast<int64_t>(x);
    }
  }
  std::vector<bool> had_master;
  std::vector<std::array<bool, optim::kMaxStates>> had;
  for (auto& s : slots) {
    had_master.push_back(s.master.defined());
    had.push_back({s.state[0].defined(), s.state[1].defined(), s.state[2].defined()});
  }
  {
    nb::gil_scoped_release released;
    optim::update(rule, slots);
  }
  for (i = 0; i < slots.size(); ++i) {
    const optim::Slot& s = slots[i];
    if (!s.grad.defined()) continue;
    nb::dict state = nb::cast<nb::dict>(states[i]);
    state["step"] = s.step;
    for (size_t k = 0; k < optim::kMaxStates; ++k)
      if (!had[i][k] && s.state[k].defined())
        state[optim::state_name(rule, static_cast<int>(k))] = wrap_object(s.state[k]);
    if (!had_master[i] && s.master.defined()) state["master"] = wrap_object(s.master);
  }
}

// A state tensor as the rule wants it for the parameter: its dtype, layout and device, in its own memory.
// Collective.
ObjectOf<"Tensor"> state_like(const std::string& kind, nb::typed<nb::dict, nb::str, nb::any> options,
                              const Tensor& param, const Tensor& value) {
  const optim::Rule rule = rule_of(kind, options);
  const GlobalSpec* spec = optim::state_spec(rule, param);
  NoGradGuard guard;
  Tensor t = value.detach();
  if (spec && t.spec() != spec) t = t.to_global(spec->placement, spec->nd_sbp);
  if (!spec) t = holon::to_device(t, param.device());
  t = t.to(optim::state_dtype(param));
  return wrap_object(t);
}

ObjectOf<"Tensor"> clip_grad_norm(HandleOf<"Sequence[Tensor]"> params, double max_norm, double norm_type,
                                  bool error_if_nonfinite) {
  auto p = tensor_list(params);
  Tensor norm;
  {
    std::optional<nb::gil_scoped_release> released;
    if (!tracer()) released.emplace();  // a capture asks Python for the user's line
    norm = optim::clip_grad_norm_(p, max_norm, norm_type, error_if_nonfinite);
  }
  return wrap_object(norm);
}

void clip_grad_value(HandleOf<"Sequence[Tensor]"> params, double clip_value) {
  auto p = tensor_list(params);
  std::optional<nb::gil_scoped_release> released;
  if (!tracer()) released.emplace();
  optim::clip_grad_value(p, clip_value);
}

bool scale_grads(HandleOf<"Sequence[Tensor]"> params, double factor) {
  auto p = tensor_list(params);
  nb::gil_scoped_release released;
  return optim::scale_grads(p, factor);
}

void bind_schedule(nb::module_& m) {
  using namespace nb::literals;
  m.def("step_factor", &optim::step_factor, "step"_a, "period"_a, "gamma"_a);
  m.def(
      "multi_step_factor",
      [](int64_t step, const std::vector<int64_t>& milestones, double gamma) {
        return optim::multi_step_factor(step, milestones, gamma);
      },
      "step"_a, "milestones"_a, "gamma"_a);
  m.def("exponential_factor", &optim::exponential_factor, "step"_a, "gamma"_a);
  m.def("constant_factor", &optim::constant_factor, "step"_a, "factor"_a, "total_iters"_a);
  m.def("linear_factor", &optim::linear_factor, "step"_a, "start"_a, "end"_a, "total_iters"_a);
  m.def("cosine_decay_factor", &optim::cosine_decay_factor, "step"_a, "decay_steps"_a, "alpha"_a);
  m.def(
      "warmup_factor",
      [](int64_t step, double factor, int64_t iters, const std::string& method) {
        return optim::warmup_factor(step, factor, iters, method);
      },
      "step"_a, "factor"_a, "iters"_a, "method"_a);
  m.def("cosine_annealing_lr", &optim::cosine_annealing_lr, "step"_a, "base"_a, "t_max"_a, "eta_min"_a);
  m.def("cosine_warm_restarts_lr", &optim::cosine_warm_restarts_lr, "step"_a, "base"_a, "t_0"_a, "t_mult"_a,
        "eta_min"_a, "decay_rate"_a = 1.0, "restart_limit"_a = 0);
  m.def("polynomial_lr", &optim::polynomial_lr, "step"_a, "base"_a, "steps"_a, "end"_a, "power"_a, "cycle"_a);
  nb::class_<optim::OneCycle>(m, "OneCycle", "One rise and one fall of the learning rate.")
      .def(nb::init<>())
      .def_rw("peak", &optim::OneCycle::peak)
      .def_rw("total_steps", &optim::OneCycle::total_steps)
      .def_rw("pct_start", &optim::OneCycle::pct_start)
      .def_rw("linear", &optim::OneCycle::linear)
      .def_rw("div_factor", &optim::OneCycle::div_factor)
      .def_rw("final_div_factor", &optim::OneCycle::final_div_factor)
      .def_rw("three_phase", &optim::OneCycle::three_phase)
      .def_rw("base_momentum", &optim::OneCycle::base_momentum)
      .def_rw("max_momentum", &optim::OneCycle::max_momentum)
      .def("lr", &optim::OneCycle::lr, "step"_a)
      .def("momentum", &optim::OneCycle::momentum, "step"_a);
  m.def(
      "cyclic_share",
      [](int64_t step, int64_t up, int64_t down, const std::string& mode, double gamma) {
        optim::Cyclic c;
        c.step_size_up = up;
        c.step_size_down = down;
        c.gamma = gamma;
        if (mode == "triangular2")
          c.mode = optim::Cyclic::Mode::kTriangular2;
        else if (mode == "exp_range")
          c.mode = optim::Cyclic::Mode::kExpRange;
        else if (mode != "triangular")
          fail_value("CyclicLR: the mode is '{}'; it must be 'triangular', 'triangular2' or 'exp_range'.", mode);
        return c.share(step);
      },
      "step"_a, "up"_a, "down"_a, "mode"_a, "gamma"_a);
  nb::class_<optim::Plateau>(m, "Plateau", "Detects when a metric has stopped improving.")
      .def(nb::init<>())
      .def_rw("maximize", &optim::Plateau::maximize)
      .def_rw("factor", &optim::Plateau::factor)
      .def_rw("patience", &optim::Plateau::patience)
      .def_rw("cooldown", &optim::Plateau::cooldown)
      .def_rw("threshold", &optim::Plateau::threshold)
      .def_rw("relative", &optim::Plateau::relative)
      .def_rw("best", &optim::Plateau::best)
      .def_rw("bad_steps", &optim::Plateau::bad_steps)
      .def_rw("cooling", &optim::Plateau::cooling)
      .def("better", &optim::Plateau::better, "metric"_a)
      .def("observe", &optim::Plateau::observe, "metric"_a);
}

// Lists of the same length, one entry for each tensor.
int64_t relayout(const std::vector<std::string>& names, HandleOf<"Sequence[Tensor]"> tensors,
                 HandleOf<"Sequence[placement]"> placements, HandleOf<"Sequence[_Sbp]"> sbps) {
  std::vector<Tensor> list = tensor_list(tensors);
  if (list.size() != names.size() || nb::len(placements) != list.size() || nb::len(sbps) != list.size())
    fail_value("relayout: {} names, {} tensors, {} placements and {} sbps.", names.size(), list.size(),
               nb::len(placements), nb::len(sbps));
  std::vector<optim::Move> moves;
  for (size_t i = 0; i < list.size(); ++i) moves.push_back({names[i], std::move(list[i]), {}});
  for (size_t i = 0; i < moves.size(); ++i) {
    const std::string call = fmt::format("relayout: '{}'", moves[i].name);
    moves[i].to = {expect_placement(placements[i], call.c_str()), expect_nd_sbp(sbps[i], call.c_str())};
  }
  nb::gil_scoped_release released;
  return optim::relayout(std::move(moves));
}

}  // namespace

void bind_optim(nb::module_& m) {
  using namespace nb::literals;
  m.def("optimizer_step", &optimizer_step, "rule"_a, "params"_a, "states"_a, "options"_a,
        "One step of the rule for all params that have a gradient; states are their dicts. Collective where a gradient "
        "is redistributed.");
  m.def(
      "optimizer_check",
      [](const std::string& kind, nb::typed<nb::dict, nb::str, nb::any> options) {
        optim::check(rule_of(kind, options));
      },
      "rule"_a, "options"_a, "Raises ValueError if an option of the rule is out of range.");
  m.def("optimizer_state_like", &state_like, "rule"_a, "options"_a, "param"_a, "value"_a,
        "The value in the dtype and layout of the rule's state for the parameter. Collective for global ones.");
  m.def("clip_grad_norm", &clip_grad_norm, "params"_a, "max_norm"_a, "norm_type"_a = 2.0,
        "error_if_nonfinite"_a = false,
        "Scales the gradients so that their total norm is at most max_norm; returns the norm before scaling.");
  m.def("clip_grad_value", &clip_grad_value, "params"_a, "clip_value"_a,
        "Limits every element of the gradients to the range from -clip_value to clip_value.");
  m.def("scale_grads", &scale_grads, "params"_a, "factor"_a,
        "Multiplies the gradients by a factor; returns whether all of them were finite before.");
  m.def(
      "relayout", &relayout, "names"_a, "tensors"_a, "placements"_a, "sbps"_a,
      "Moves each tensor to its placement and sbp, the objects staying the same; returns the bytes that this rank has "
      "taken from others. Collective.");
  nb::module_ schedule = m.def_submodule("schedule", "Learning rates as functions of the step.");
  bind_schedule(schedule);
}

}  // namespace holon::python
