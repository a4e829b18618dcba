#include "holon/conformance/check.h"

#include <exception>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/conformance/gradients.h"
#include "holon/conformance/layouts.h"
#include "holon/conformance/rules.h"

namespace holon::conformance {

namespace {

// Of a list of which each member means the same fault, so many.
constexpr size_t kMostOfAKind = 3;

void add(Report& r, const std::string& sample, const char* what, const std::vector<std::string>& found) {
  for (size_t i = 0; i < found.size() && i < kMostOfAKind; ++i)
    r.faults.push_back(fmt::format("{}: {} {}", sample, what, found[i]));
  if (found.size() > kMostOfAKind)
    r.faults.push_back(fmt::format("{}: and {} more", sample, found.size() - kMostOfAKind));
}

void check_gradient(Report& r, const Subject& s) {
  bool compared = false;
  try {
    if (const std::string wrong = gradient_error(s, &compared); !wrong.empty())
      r.faults.push_back(fmt::format("{}: the gradient of {}", s.name, wrong));
  } catch (const std::exception& e) {
    // In float64, which a kernel need not take.
    r.notes.push_back(fmt::format("{}: the gradient was not compared with finite differences: {}", s.name, e.what()));
  }
  r.gradients += compared;
}

void check_layouts(Report& r, const Subject& s) {
  for (const World& world : worlds()) {
    ++r.worlds;
    try {
      add(r, s.name, fmt::format("on {}, with inputs as", world.name).c_str(),
          differing_layouts(s, world, "cpu", boxing::ParameterPolicy::kGather));
    } catch (const std::exception& e) {
      r.faults.push_back(fmt::format("{}: the call on local tensors fails: {}", s.name, e.what()));
      return;
    }
  }
}

}  // namespace

std::string Report::str() const {
  std::string text =
      fmt::format("{}: {}; {} samples, {} signatures on parts, {} gradients against differences, {} worlds of ranks\n",
                  name,
                  is_sound()         ? "sound"
                      : samples == 0 ? "not checked"
                                     : fmt::format("{} faults", faults.size()),
                  samples, signatures, gradients, worlds);
  for (auto& fault : faults) text += "  " + fault + "\n";
  for (auto& note : notes) text += "  note: " + note + "\n";
  return text;
}

Report check_op(std::string_view name, std::span<const Sample> samples) {
  const OpDef* op = try_find_op(name);
  if (!op) fail_value("check_op: there is no op \"{}\".", name);
  for (const Sample& s : samples)
    if (s.op != name) fail_value("check_op: the sample \"{}\" is not one of {}.", s.name(), name);
  Report r{.name = std::string(name)};
  if (samples.empty())
    r.notes.push_back("no sample: none could be drawn from the schema. Give one, e.g. \"sum [5, 3]; dim=[0]\"");
  if (!op->no_rule_reason.empty()) r.notes.push_back("it has no sharding rule: " + op->no_rule_reason);
  for (const Sample& s : samples) {
    ++r.samples;
    const Subject subject(s);
    try {
      add(r, subject.name, "the rule is wrong:", wrong_signatures(s, &r.signatures));
      add(r, subject.name, "the rule", redistributing_signatures(s));
      if (op->no_rule_reason.empty()) add(r, subject.name, "the rule lacks", missing_signatures(s));
    } catch (const std::exception& e) {
      r.faults.push_back(fmt::format("{}: the rule fails: {}", subject.name, e.what()));
    }
    if (s.differences) check_gradient(r, subject);
    check_layouts(r, subject);
  }
  return r;
}

Report check_function(const Subject& function) {
  Report r{.name = function.name, .samples = 1};
  check_gradient(r, function);
  check_layouts(r, function);
  return r;
}

}  // namespace holon::conformance
