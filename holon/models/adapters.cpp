// Adapters of models, and their files in PEFT's form: adapter_config.json, and adapter_model.safetensors with
// "base_model.model.PATH.lora_A.weight" [r, in] and "base_model.model.PATH.lora_B.weight" [out, r] of each module.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/formats/open.h"
#include "holon/models/model.h"
#include "holon/models/products.h"
#include "holon/nn/init.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"

namespace holon::models {

namespace {

constexpr const char *kConfig = "adapter_config.json", *kTensors = "adapter_model.safetensors";
constexpr const char* kWeight = ".weight";

// A module that can have an adapter, and what it is called in transformers: "" where it is a part of another one there.
struct Candidate {
  nn::ProductModule product;
  std::string name;
};

// Routers have none: what they compute is not always a call.
std::vector<Candidate> candidates_of(const Model& model) {
  const CheckpointNames names = model.checkpoint_names();
  std::vector<Candidate> out;
  for (auto& p : products_of(model)) {
    if (is_router(p.path)) continue;
    std::string name = name_in_checkpoint(p.path + kWeight, names).value_or("");
    if (name.ends_with(kWeight)) name.resize(name.size() - std::string_view(kWeight).size());
    out.push_back({p, std::move(name)});
  }
  return out;
}

bool fits(const std::string& target, const Candidate& c) {
  if (target == "all-linear") return !is_head(c.product.path);
  auto ends = [&](const std::string& path) {
    return !path.empty() && (path == target || path.ends_with("." + target));
  };
  return ends(c.product.path) || ends(c.name);
}

// "k_proj (2), q_proj (2)".
std::string last_names(const std::vector<Candidate>& candidates) {
  std::map<std::string, int> count;
  for (auto& c : candidates) ++count[std::string(last_name(c.product.path))];
  std::string text;
  for (auto& [name, n] : count) text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", name, n);
  return text;
}

std::string in_file(const Candidate& c, const char* factor) {
  return fmt::format("base_model.model.{}.{}.weight", c.name, factor);
}

// Of the modules with adapters; the others, for messages and names, are all candidates.
std::vector<Candidate> adapted(const Model& model) {
  std::vector<Candidate> out;
  for (auto& c : candidates_of(model))
    for (auto& p : model.lora()->products())
      if (p.path == c.product.path) out.push_back(c);
  return out;
}

bool same_paths(const std::vector<Candidate>& a, const std::vector<Candidate>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](auto& x, auto& y) { return x.product.path == y.product.path; });
}

// What names exactly the adapted modules in transformers: last parts of their paths if these name no others, else whole
// paths.
checkpoint::Value::List targets_of(const Model& model, const std::vector<Candidate>& with) {
  std::set<std::string> last, paths, of_others;
  for (auto& c : with) last.emplace(last_name(c.name)), paths.insert(c.name);
  auto other = [&](const std::string& name) {
    const std::string path = name.substr(0, name.rfind('.'));
    if (name.ends_with(kWeight) && !paths.contains(path)) of_others.emplace(last_name(path));
  };
  const CheckpointNames names = model.checkpoint_names();
  std::set<std::string> done;
  for (auto& rule : names.rules) {
    for (auto& name : rule.from) other(name);
    done.insert(rule.to.begin(), rule.to.end());
  }
  for (auto& [name, t] : model.state_dict())
    if (!done.contains(name) && name.find(".lora_") == name.npos) other(name);
  const bool exact = std::none_of(last.begin(), last.end(), [&](auto& name) { return of_others.contains(name); });
  checkpoint::Value::List out;
  for (auto& name : exact ? last : paths) out.emplace_back(name);
  return out;
}

const nn::Lora& lora_of(const Model& model, const char* op) {
  if (!model.lora()) fail_runtime("{}: the model has no adapters. Call add_lora() or load_adapter() first.", op);
  return *model.lora();
}

nn::LoraOptions options_of(const Config& c) {
  if (const std::string type = c.text("peft_type", "LORA"); type != "LORA")
    fail_value("load_adapter: {}: peft_type is '{}'; only LORA is known.", c.source(), type);
  auto refuse = [&](const char* key, bool there) {
    if (there)
      fail_value("load_adapter: {}: {} is set, which is not supported. Merge the adapter into its model with PEFT, and "
                 "read that.",
                 c.source(), key);
  };
  for (const char* key : {"use_dora", "lora_bias", "use_qalora"}) refuse(key, c.flag(key, false));
  refuse("bias", c.text("bias", "none") != "none");
  for (const char* key :
       {"rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication", "trainable_token_indices"}) {
    const checkpoint::Value* value = c.find(key);
    refuse(key, value && !value->is_null() && value->size() > 0);
  }
  return {.r = c.integer("r"),
          .alpha = c.number("lora_alpha", 8),
          .dropout = c.number("lora_dropout", 0),
          .rslora = c.flag("use_rslora", false)};
}

// The modules of the model that a file's tensors are adapters of. Errors: all tensors that fit none.
std::vector<Candidate> modules_in(const Model& model, const checkpoint::Source& source, int64_t r, int64_t group_size) {
  std::map<std::string, Dims> there;
  for (auto& info : source.tensors()) there.emplace(info.name, info.shape);
  std::vector<Candidate> found;
  std::vector<std::string> problems;
  for (auto& c : candidates_of(model)) {
    if (c.name.empty() || !(there.contains(in_file(c, "lora_A")) || there.contains(in_file(c, "lora_B")))) continue;
    const auto [in, out] = nn::product_sizes(model, c.product, group_size);
    found.push_back(c);
    for (auto& [factor, shape] : {std::pair("lora_A", Dims{r, in}), std::pair("lora_B", Dims{out, r})}) {
      const std::string name = in_file(c, factor);
      auto at = there.find(name);
      if (at == there.end())
        problems.push_back(name + " is missing");
      else if (at->second != shape)
        problems.push_back(fmt::format("{} is {}, not {}", name, at->second, shape));
      if (at != there.end()) there.erase(at);
    }
  }
  for (auto& [name, shape] : there) problems.push_back(name + " is not of a module that can have an adapter");
  if (!problems.empty() || found.empty())
    fail_value("load_adapter: the tensors of {} do not fit the model: {}. Give the adapter of this model.",
               source.name(), problems.empty() ? "there are none" : fmt::format("{}", fmt::join(problems, ", ")));
  return found;
}

}  // namespace

std::vector<std::string> Model::lora_candidates() const {
  std::vector<std::string> out;
  for (auto& c : candidates_of(*this)) out.push_back(c.product.path);
  return out;
}

void Model::add_lora(const LoraOptions& o) {
  if (lora())
    fail_value("add_lora: the model has adapters of rank {} already. Call remove_lora() first.", lora()->options().r);
  const std::vector<Candidate> candidates = candidates_of(*this);
  std::vector<nn::ProductModule> products;
  for (auto& c : candidates)
    if (std::any_of(o.target_modules.begin(), o.target_modules.end(), [&](auto& t) { return fits(t, c); }))
      products.push_back(c.product);
  for (auto& target : o.target_modules)
    if (std::none_of(candidates.begin(), candidates.end(), [&](auto& c) { return fits(target, c); }))
      fail_value("add_lora: target_modules: '{}' is not the end of the path of any module that can have an adapter. "
                 "Those that can: {}; or \"all-linear\".",
                 target, last_names(candidates));
  changes_->lora.emplace(*this, products, o, changes_->group_size);
}

void Model::merge_lora() {
  lora_of(*this, "merge_lora");
  changes_->lora->merge();
}

void Model::unmerge_lora() {
  lora_of(*this, "unmerge_lora");
  changes_->lora->unmerge();
}

void Model::remove_lora() {
  lora_of(*this, "remove_lora");
  changes_->lora->remove();
  changes_->lora.reset();
}

void Model::save_adapter(const FilePath& folder, const std::string& base) const {
  const nn::LoraOptions& o = lora_of(*this, "save_adapter").options();
  const std::vector<Candidate> with = adapted(*this);
  nn::StateDict tensors;
  bool transposed = false;
  for (auto& c : with) {
    if (c.name.empty())
      fail_runtime("save_adapter: '{}' is a part of a module in transformers, and PEFT's files have no place for its "
                   "adapter. Adapt other modules, or save state_dict().",
                   c.product.path);
    transposed |= c.product.transposed;
    for (const char* factor : {"lora_A", "lora_B"})
      tensors.emplace_back(in_file(c, factor),
                           get_parameter(fmt::format("{}.{}.weight", c.product.path, factor)).detach());
  }
  const std::filesystem::path at(folder.string());
  checkpoint::together("save_adapter", [&] {
    if (Context::current().rank() == 0) std::filesystem::create_directories(at);
  });
  save(tensors, at / kTensors, {.global_dst_rank = 0});
  checkpoint::together("save_adapter", [&] {
    if (Context::current().rank() != 0) return;
    Config c;
    c.set("peft_type", "LORA");
    c.set("task_type", causal_sizes() ? checkpoint::Value("CAUSAL_LM") : checkpoint::Value());
    c.set("base_model_name_or_path", base.empty() ? checkpoint::Value() : checkpoint::Value(base));
    c.set("inference_mode", true);
    c.set("r", o.r);
    // PEFT's is an integer.
    c.set("lora_alpha",
          o.alpha == std::floor(o.alpha) && std::abs(o.alpha) < 1e9 ? checkpoint::Value(static_cast<int64_t>(o.alpha))
                                                                    : checkpoint::Value(o.alpha));
    c.set("lora_dropout", o.dropout);
    c.set("use_rslora", o.rslora);
    c.set("target_modules", targets_of(*this, with));
    c.set("fan_in_fan_out", transposed);
    c.set("bias", "none");
    c.write("save_adapter", folder, kConfig);
  });
}

void Model::load_adapter(const FilePath& folder) {
  const auto file = std::filesystem::path(folder.string()) / kTensors;
  nn::LoraOptions options;
  std::vector<Candidate> with;
  checkpoint::together("load_adapter", [&] {
    options = options_of(Config::read(folder, kConfig));
    with = modules_in(*this, *checkpoint::open_source(file), options.r, changes_->group_size);
  });
  std::vector<nn::ProductModule> products;
  for (auto& c : with) products.push_back(c.product);
  const bool adds = !lora();
  if (adds) {
    nn::init::SkipGuard no_draws;  // each value is replaced
    changes_->lora.emplace(*this, products, options, changes_->group_size);
  } else if (const nn::LoraOptions& own = lora()->options(); own.r != options.r || own.alpha != options.alpha ||
             own.rslora != options.rslora || lora()->is_merged() || !same_paths(adapted(*this), with)) {
    fail_value("load_adapter: the model has other adapters, of rank {}, or they are merged. Call remove_lora() first.",
               own.r);
  }
  NoGradGuard guard;
  LoadOptions reading;
  std::vector<Tensor> into;
  for (auto& c : with)
    for (const char* factor : {"lora_A", "lora_B"}) {
      into.push_back(get_parameter(fmt::format("{}.{}.weight", c.product.path, factor)));
      reading.like.emplace_back(in_file(c, factor), into.back());
    }
  checkpoint::Value loaded;
  try {
    loaded = load(file, reading);
  } catch (...) {
    if (adds) remove_lora();
    throw;
  }
  for (size_t i = 0; i < into.size(); ++i) copy_(into[i], loaded[reading.like[i].first].tensor().to(into[i].dtype()));
}

}  // namespace holon::models
