#include "holon/models/weights.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/formats/open.h"
#include "holon/checkpoint/loading.h"
#include "holon/ops/cast.h"

namespace holon::models {

using checkpoint::KeyMap;
using checkpoint::KeyRule;

namespace {

// The rules, and one for each of the other tensors, which keeps its name.
std::vector<KeyRule> all_rules(const nn::StateDict& own, const CheckpointNames& names) {
  std::vector<KeyRule> rules = names.rules;
  std::set<std::string> done;
  for (auto& rule : rules) done.insert(rule.to.begin(), rule.to.end());
  for (auto& [name, t] : own)
    if (!done.contains(name)) rules.push_back({{name}, {name}});
  return rules;
}

// What the files should have, by name.
std::map<std::string, Dims> expected_shapes(const nn::StateDict& own, const KeyMap& map) {
  std::vector<checkpoint::NamedShape> ours;
  for (auto& [name, t] : own) ours.push_back({name, t.dtype(), t.shape()});
  std::map<std::string, Dims> out;
  for (auto& made : map.inverse().resolve(ours)) out.emplace(made.name, made.shape);
  return out;
}

std::string without(const std::string& base, const std::string& name) {
  return name.starts_with(base) ? name.substr(base.size()) : name;
}

bool is_ignored(const CheckpointNames& names, const std::string& name) {
  return std::any_of(names.ignored.begin(), names.ignored.end(), [&](const std::string& text) {
    return text.ends_with('*') ? name.starts_with(text.substr(0, text.size() - 1)) : name.ends_with(text);
  });
}

std::string listed(const char* what, const std::vector<std::string>& names) {
  return names.empty() ? "" : fmt::format("\n{} ({}): {}", what, names.size(), fmt::join(names, ", "));
}

// That of the parameters, which quantised weights are read as.
std::optional<DType> floating_dtype(const nn::StateDict& own) {
  for (auto& [name, t] : own)
    if (is_floating(t.dtype())) return t.dtype();
  return {};
}

// How the files at hand name what a model's checkpoints have.
struct Naming {
  bool has_base = false, older = false;
  std::string in_file(const CheckpointNames& names, const std::string& name) const {
    const std::string here = has_base ? name : without(names.base, name);
    for (auto& [now, before] : names.older)
      if (older && here.ends_with(now)) return here.substr(0, here.size() - now.size()) + before;
    return here;
  }
};

struct Found {
  Naming naming;
  std::vector<std::string> ignored;
  std::string problems;  // all of them, or ""
};

Found compare(const checkpoint::Source& source, const std::map<std::string, Dims>& wanted,
              const CheckpointNames& names) {
  Found found;
  const auto infos = source.tensors();
  auto any = [&](auto&& is) { return std::any_of(infos.begin(), infos.end(), [&](auto& t) { return is(t.name); }); };
  found.naming.has_base = any([&](const std::string& name) { return name.starts_with(names.base); });
  for (auto& [now, before] : names.older)
    found.naming.older |= any([&end = before](const std::string& name) { return name.ends_with(end); });
  std::map<std::string, Dims> expected;
  for (auto& [name, shape] : wanted) expected.emplace(found.naming.in_file(names, name), shape);
  std::vector<std::string> missing, extra, misfits;
  std::set<std::string> there;
  for (auto& info : infos) {
    there.insert(info.name);
    auto it = expected.find(info.name);
    if (it != expected.end()) {
      if (it->second != info.shape)
        misfits.push_back(fmt::format("{} is {}, not {}", info.name, info.shape, it->second));
    } else if (is_ignored(names, info.name)) {
      found.ignored.push_back(info.name);
    } else {
      extra.push_back(info.name);
    }
  }
  for (auto& [name, shape] : expected)
    if (!there.contains(name)) missing.push_back(fmt::format("{} {}", name, shape));
  if (!missing.empty() || !extra.empty() || !misfits.empty())
    found.problems = fmt::format("the tensors of {} are not those of the model in its config.json.{}{}{}\nGive the "
                                 "config.json that belongs to these tensors, or complete the files.",
                                 source.name(), listed("missing", missing), listed("not expected", extra),
                                 listed("of another shape", misfits));
  return found;
}

}  // namespace

std::optional<std::string> name_in_checkpoint(const std::string& name, const CheckpointNames& names) {
  for (auto& rule : names.rules) {
    if (std::find(rule.to.begin(), rule.to.end(), name) == rule.to.end()) continue;
    if (rule.how.kind == KeyRule::kSame) return rule.from.front();
    return {};
  }
  return name;
}

void load_weights(nn::Module& module, const FilePath& folder, const CheckpointNames& names) {
  NoGradGuard guard;
  const nn::StateDict own = module.state_dict();
  std::vector<KeyRule> rules = all_rules(own, names);
  const auto expected = expected_shapes(own, KeyMap(rules));
  LoadOptions options;
  options.dequantize = floating_dtype(own);
  Found found;
  checkpoint::together("from_pretrained", [&] {
    found = compare(*checkpoint::as_requested(checkpoint::open_source(folder.string()), options), expected, names);
  });
  if (!found.problems.empty()) fail_value("from_pretrained: {}", found.problems);
  for (auto& rule : rules)
    for (auto& name : rule.from) name = found.naming.in_file(names, name);
  for (auto& name : found.ignored) rules.push_back({{name}, {name}});
  options.key_map = KeyMap(std::move(rules));
  options.like = own;
  options.strict = false;  // the names have been compared; what is ignored is not read
  const nn::StateDict loaded = load(folder, options).state_dict();
  std::set<std::string> parameters;
  for (auto& [name, t] : module.named_parameters()) parameters.insert(name);
  std::map<std::string, Tensor> before(own.begin(), own.end());
  for (auto& [name, t] : loaded) {
    const Tensor value = t.to(before.at(name).dtype());
    if (parameters.contains(name))
      module.replace_parameter(name, value);
    else
      module.replace_buffer(name, value);
  }
}

void save_weights(const nn::StateDict& weights, const FilePath& folder, const CheckpointNames& names) {
  nn::StateDict own = weights;
  for (auto& [name, t] : own) t = t.detach();  // they are joined outside of training: no policy of parameters applies
  SaveOptions options;
  options.format = Format::kHuggingFace;
  options.key_map = KeyMap(all_rules(own, names));
  save(own, folder, options);
}

}  // namespace holon::models
