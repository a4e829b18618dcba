#include "holon/graph/options/options.h"

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/dispatch/autocast.h"
#include "holon/graph/schedule/scheme.h"

namespace holon::graph {

namespace {

using O = CompileOptions;

template <auto Field>
constexpr Option row(const char* name, const char* text, void (*check)(const O&) = nullptr, bool local = false) {
  using T = std::decay_t<decltype(O{}.*Field)>;
  return {name,
          text,
          local,
          [](const O& o) { return OptionValue(o.*Field); },
          [](O* o, OptionValue value) { o->*Field = std::get<T>(std::move(value)); },
          check};
}

constexpr bool kLocal = true;

void check_amp(const O& o) {
  if (o.amp && !is_autocast_dtype(*o.amp))
    fail_value("config.enable_amp: the dtype is {}; it must be bfloat16, float16, float8_e4m3fn or float8_e5m2.",
               holon::name(*o.amp));
}
void check_micro_batches(const O& o) {
  if (o.micro_batches < 1)
    fail_value("config.set_gradient_accumulation_steps: {} micro-batches; there must be at least one.",
               o.micro_batches);
}
void check_zero_stage(const O& o) {
  if (o.zero_stage < 0 || o.zero_stage > 3)
    fail_value("config.enable_zero: stage {}; it is 1 (optimizer states are split over data-parallel ranks), 2 "
               "(gradients too) or 3 (parameters too).",
               o.zero_stage);
}
void check_shards(const O& o) {
  if (o.zero_min_elements < 0)
    fail_value("config.enable_zero: shards of at least {} elements; give a number that is at least 0.",
               o.zero_min_elements);
}
void check_budget(const O& o) {
  if (o.memory_budget_bytes < 0)
    fail_value("config.set_memory_budget: {} bytes; give a positive number, or 0 for no limit.", o.memory_budget_bytes);
}
void check_buckets(const O& o) {
  if (o.bucket_bytes < 0)
    fail_value("config.set_bucket_bytes: {} bytes; give a positive number, or 0 for no buckets.", o.bucket_bytes);
}

// Another name of a scheme is replaced by its name.
constexpr Option schedule_row() {
  Option o = row<&O::schedule>("schedule", "schedule {}");
  o.set = [](O* o, OptionValue value) {
    const auto& name = std::get<std::string>(value);
    o->schedule = name == kAutoSchedule ? name : find_scheme("config.set_schedule", name)->name;
  };
  return o;
}

constexpr Option kOptions[] = {
    row<&O::amp>("amp", "amp {}", check_amp),
    row<&O::micro_batches>("micro_batches", "{} micro-batches", check_micro_batches),
    row<&O::uneven>("uneven", "uneven if need be"),
    schedule_row(),
    row<&O::zero_stage>("zero_stage", "ZeRO {}", check_zero_stage),
    row<&O::zero_min_elements>("zero_min_elements", "shards of at least {} elements", check_shards),
    row<&O::recompute>("recompute", "recomputes {}"),
    row<&O::memory_budget_bytes>("memory_budget_bytes", "memory budget {} bytes", check_budget),
    row<&O::bucket_bytes>("bucket_bytes", "buckets of {} bytes", check_buckets),
    row<&O::disabled_passes>("disabled_passes", "without pass {}"),
    row<&O::verify>("verify", "verified after each pass", nullptr, kLocal),
    row<&O::contract>("contract", "held to the contract {}", nullptr, kLocal),
    row<&O::zero_axis>("zero_axis", "shards along axis {}"),
    row<&O::choose_sbp>("choose_sbp", "sbps chosen"),
    row<&O::keep_parameters>("keep_parameters", "parameters kept"),
    row<&O::sum_last>("sum_last", "gradients summed last"),
    row<&O::fold_bytes>("fold_bytes", "constants of up to {} bytes"),
};

const Option& find(std::string_view name) {
  std::string names;
  for (const Option& o : kOptions) {
    if (name == o.name) return o;
    names += (names.empty() ? "" : ", ") + std::string(o.name);
  }
  fail_value("config: there is no option '{}'. There are {}.", name, names);
}

const char* type_of(const OptionValue& value) {
  constexpr const char* kNames[] = {"a bool", "an int", "a dtype or none", "a string", "a list of strings"};
  return kNames[value.index()];
}

void add(std::string* all, const Option& o, const OptionValue& value) {
  auto part = [&](const auto&... of) {
    if (!all->empty()) *all += ", ";
    *all += fmt::format(fmt::runtime(o.text), of...);
  };
  if (auto* on = std::get_if<bool>(&value)) {
    if (*on) part();
    if (!*on && std::get<bool>(o.get({}))) *all += fmt::format("{}not {}", all->empty() ? "" : ", ", o.text);
  } else if (auto* n = std::get_if<int64_t>(&value)) {
    part(*n);
  } else if (auto* dtype = std::get_if<std::optional<DType>>(&value)) {
    if (*dtype) part(holon::name(**dtype));
  } else if (auto* text = std::get_if<std::string>(&value)) {
    part(*text);
  } else {
    for (auto& entry : std::get<std::vector<std::string>>(value)) part(entry);
  }
}

}  // namespace

std::span<const Option> option_table() { return kOptions; }

void set_option(CompileOptions* options, std::string_view name, OptionValue value) {
  const Option& o = find(name);
  const OptionValue now = o.get(*options);
  if (value.index() != now.index())
    fail_value("config: the option '{}' is {}; got {}.", name, type_of(now), type_of(value));
  CompileOptions changed = *options;
  o.set(&changed, std::move(value));
  if (o.check) o.check(changed);
  *options = std::move(changed);
}

OptionValue get_option(const CompileOptions& options, std::string_view name) { return find(name).get(options); }

std::string str(const CompileOptions& options) {
  const CompileOptions plain;
  std::string text;
  for (const Option& o : kOptions)
    if (const OptionValue value = o.get(options); value != o.get(plain)) add(&text, o, value);
  return text;
}

std::string agreed_text(const CompileOptions& options) {
  std::string text;
  for (const Option& o : kOptions)
    if (!o.local) add(&text, o, o.get(options));
  return text;
}

}  // namespace holon::graph
